"""Celery: lists and a hash, results ignored."""

from __future__ import annotations

import os

from benchmarks.extras import require
from benchmarks.redis.apps.surroundings import SOCKET, ran

queue = require("celery", "celery").Celery("bench", broker=f"redis+socket://{os.environ[SOCKET]}")
queue.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


@queue.task  # type: ignore[untyped-decorator]
def noop() -> None:
    ran()


def submit(times: int) -> None:
    for _ in range(times):
        noop.delay()
