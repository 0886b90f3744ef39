"""Taskiq: a list, whose messages are not acknowledged, or a stream, whose messages are."""

from __future__ import annotations

import asyncio
import os

from benchmarks.extras import require
from benchmarks.redis.apps.surroundings import SOCKET, ran

_brokers = require("taskiq_redis", "taskiq-redis")
_url = f"unix://{os.environ[SOCKET]}"
broker = (
    _brokers.RedisStreamBroker(_url, consumer_id="0")  # reads messages that already wait, too
    if os.environ.get("BENCHMARKS_BROKER") == "stream"
    else _brokers.ListQueueBroker(_url)
)
_runner = asyncio.Runner()


@broker.task  # type: ignore[untyped-decorator]
async def noop() -> None:
    ran()


async def _submit(times: int) -> None:
    for _ in range(times):
        await noop.kiq()


def submit(times: int) -> None:
    _runner.run(_submit(times))
