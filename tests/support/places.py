"""Whole products to walk through: queue and memory in one SQLite file, queue on Redis, all in memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from reverie.face.scheduler import Scheduler
from reverie.settings import Settings, load_settings
from support.forked import REVERIE, run_command
from support.servers import Valkey, valkey_server

if TYPE_CHECKING:
    from collections.abc import Iterator

APPS = Path(__file__).parents[1] / "chaos"
"""Where the handlers of worker processes under test are."""
PATHS = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(APPS), str(APPS.parent), os.environ.get("PYTHONPATH", "")])
    )
}
"""What their processes need in their environment."""


@dataclass
class Place:
    """Where one product keeps its things, and how to run it."""

    kind: str
    folder: Path
    queue_url: str
    memory_url: str
    extra: dict[str, str] = field(default_factory=dict)
    redis: Valkey | None = None
    """The server of the queue, if there is one."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")},
            "REVERIE_DATA_DIR": str(self.folder),
            "REVERIE_QUEUE__URL": self.queue_url,
            "REVERIE_MEMORY__URL": self.memory_url,
            **self.extra,
        }

    def settings(self) -> Settings:
        return load_settings(
            data_dir=self.folder, queue={"url": self.queue_url}, memory={"url": self.memory_url}
        )

    @contextmanager
    def scheduler(self) -> Iterator[Scheduler]:
        """Look in from this process, without a worker."""
        with Scheduler(settings=self.settings()).used() as scheduler:
            yield scheduler

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the shell to its end."""
        return run_command(arguments, self.environment | environment, self.folder)

    @contextmanager
    def worker(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `reverie worker` until the block ends; then it must stop cleanly, unless it was killed."""
        process = subprocess.Popen(
            [REVERIE, "worker", *arguments],
            env=self.environment | PATHS | environment,
            cwd=self.folder,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()

    @contextmanager
    def server(self, *arguments: str, **environment: str) -> Iterator[Server]:
        """Run `reverie serve` on a free port until the block ends."""
        process = subprocess.Popen(
            [REVERIE, "serve", "--port", "0", *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            match = re.search(r"http://\S+", first)
            assert match, first + process.stderr.read()
            with httpx.Client(base_url=match[0], timeout=30) as client:
                yield Server(process, client)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@dataclass
class Server:
    """A running server and a client for it."""

    process: subprocess.Popen[str]
    client: httpx.Client


@contextmanager
def memory(folder: Path) -> Iterator[Place]:
    yield Place("memory", folder, "memory://", "memory://")


@contextmanager
def sqlite(folder: Path) -> Iterator[Place]:
    url = f"sqlite:///{folder / 'reverie.db'}"
    yield Place("sqlite", folder, url, url)


@contextmanager
def redis(folder: Path, **config: str) -> Iterator[Place]:
    with valkey_server(**config) as server:
        yield Place("redis", folder, server.url, f"sqlite:///{folder / 'memory.db'}", redis=server)


PLACES = {"memory": memory, "sqlite": sqlite, "redis": redis}
SHARED = ["sqlite", "redis"]
"""Places that several processes can use."""
