"""A small pool of daemon threads.

When the interpreter ends, the standard pool joins its threads, so a handler that hangs would keep the process
alive; it also refuses new work, so nothing could be drained at exit. This pool does neither: its threads are
daemons, and a thread that hangs can be given up and replaced.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ThreadPool"]

T = TypeVar("T")


class ThreadPool:
    """Runs functions on at most `size` daemon threads, which are started when first needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._alive: set[threading.Thread] = set()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on a thread of the pool."""
        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            grow = self._busy > self._threads and self._threads < self._size
            if grow:
                self._threads += 1
        self._jobs.put((future, function))
        if grow:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._alive.add(thread)
            thread.start()
        return future

    def replace_one(self) -> None:
        """Allow one more thread, in place of one that hangs."""
        with self._lock:
            self._size += 1

    def close(self, wait_s: float = 0) -> None:
        """End all threads after the jobs submitted before this call, and wait at most `wait_s` for that."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)
            self._threads = 0
            ending, self._alive = self._alive, set()
        until = time.monotonic() + wait_s
        for thread in ending:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001  the future carries it to its caller
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, function
            with self._lock:
                self._busy -= 1
