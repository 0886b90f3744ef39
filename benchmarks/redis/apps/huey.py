"""Huey: lists, results not stored."""

from __future__ import annotations

import os

from benchmarks.extras import require
from benchmarks.redis.apps.surroundings import SOCKET, ran

queue = require("huey", "huey").RedisHuey("bench", url=f"unix://{os.environ[SOCKET]}", results=False)


@queue.task()  # type: ignore[untyped-decorator]
def noop() -> None:
    ran()


def submit(times: int) -> None:
    for _ in range(times):
        noop()
