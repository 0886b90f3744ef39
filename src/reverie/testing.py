"""Helpers for your own tests: move a clock by hand, run what is ready, assert what waits.

    scheduler = Scheduler("memory://", clock=(clock := ManualClock()))
    scheduler.submit("export", user_id="ann", content="7")
    assert_enqueued(scheduler, "export", user_id="ann", content="7")
    drain(scheduler)
    clock.advance(5)
    drain(scheduler)

Without `with scheduler:` no worker runs, so nothing happens behind the test's back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from reverie.backends.moves import Status
from reverie.backends.views import StatusQuery

if TYPE_CHECKING:
    from reverie.face.scheduler import AsyncScheduler, Scheduler
    from reverie.message import Message

__all__ = ["ManualClock", "assert_enqueued", "drain", "enqueued"]


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start_ms: int | None = None) -> None:
        """Start at `start_ms`; default: the machine's time now."""
        self._now = start_ms if start_ms is not None else time.time_ns() // 1_000_000
        self._lock = threading.Lock()
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []

    def now(self) -> int:
        """Milliseconds since 1970, as last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock and wake everyone whose time has come. Safe from any thread."""
        with self._lock:
            self._now += round(seconds * 1000)
            for until, loop, event in self._waiters:
                if until <= self._now and not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    async def wait(self, event: asyncio.Event, until: int | None) -> None:
        """Return when `event` is set or the clock was moved to `until`."""
        if until is None:
            await event.wait()
            return
        waiter = (until, asyncio.get_running_loop(), event)
        with self._lock:
            if until <= self._now:
                return
            self._waiters.append(waiter)
        try:
            await event.wait()
        finally:
            with self._lock:
                self._waiters.remove(waiter)


def drain(scheduler: Scheduler) -> None:
    """Run all messages that are ready now and those that follow from them; then nothing is running."""
    scheduler.run(_drain(scheduler.asynchronous))


def enqueued(scheduler: Scheduler, label: str, *, user_id: str, **fields: Any) -> list[Message]:
    """The waiting messages of a user that have this label and these fields."""
    messages = scheduler.run(_waiting(scheduler.asynchronous, user_id))
    wanted = {"label": label, **fields}
    return [m for m in messages if all(getattr(m, name) == value for name, value in wanted.items())]


def assert_enqueued(
    scheduler: Scheduler, label: str, *, user_id: str, count: int | None = None, **fields: Any
) -> None:
    """Fail unless messages with this label and these fields wait: at least one, or exactly `count`."""
    found = len(enqueued(scheduler, label, user_id=user_id, **fields))
    if found == count or (count is None and found):
        return
    waiting = scheduler.run(_waiting(scheduler.asynchronous, user_id))
    wanted = ", ".join(f"{name}={value!r}" for name, value in {"label": label, **fields}.items())
    raise AssertionError(
        f"expected {'a message' if count is None else count} with {wanted} for {user_id!r}, found {found}; "
        f"waiting are: {[(m.label, m.content) for m in waiting]}"
    )


async def _drain(scheduler: AsyncScheduler) -> None:
    await scheduler.open()
    await scheduler.runtime.drain()


async def _waiting(scheduler: AsyncScheduler, user_id: str) -> list[Message]:
    await scheduler.open()
    query = StatusQuery(user_id=user_id, with_message=True, limit=100_000)
    rows = (await scheduler.runtime.backend.views.read(query)).rows
    return [row.message for row in rows if row.status is Status.WAITING and row.message is not None]
