"""Waiting until a user has no work. All who wait for the same user share one query to the queue at a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from reverie.observe.finishes import Finishes

__all__ = ["LONGEST_WAIT_S", "IdleWatch", "Idleness"]

Cubes = frozenset[str] | None
"""The cubes whose work counts for a caller; None: all."""
LONGEST_WAIT_S = 86_400.0
"""The longest wait for a user to be idle: a day."""
GATHER_S = 0.05
"""The shortest time between two looks for one caller, in seconds, whether news or polling causes them."""


class Idleness(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks of a user still wait or run, and how long the wait has lasted."""

    active_tasks: int
    elapsed_seconds: float
    timed_out: bool = False

    @property
    def status(self) -> str:
        """`running`, `idle` or `timeout`."""
        return "timeout" if self.timed_out else "running" if self.active_tasks else "idle"


class IdleWatch:
    """Serves everyone in one process who waits for a user to be idle. Belongs to one event loop."""

    def __init__(self, count: Callable[[str], Awaitable[int]], finishes: Finishes) -> None:
        """`count` returns how many tasks of a user wait or run."""
        self._count = count
        self._finishes = finishes
        self._looks: dict[tuple[str, Cubes], _Looks] = {}

    async def states(
        self,
        user_id: str,
        timeout: float,  # noqa: ASYNC109
        poll: float,
        cubes: Cubes = None,
    ) -> AsyncGenerator[Idleness]:
        """Yield the idleness of a user: now, then at each multiple of `poll` seconds, and at the end.

        Callers with the same `poll` get their answers at the same moments, from the same look, unless other
        `cubes` count for them. If this process does the work, the answer that the user is idle comes at once.
        """
        began = time.monotonic()
        deadline = began + min(timeout, LONGEST_WAIT_S)
        with self._attend(user_id, cubes) as looks, self._finishes.watch_user(user_id) as settled:
            while True:
                settled.clear()
                active = await looks.look()
                now = time.monotonic()
                over = bool(active) and now >= deadline
                yield Idleness(active_tasks=active, elapsed_seconds=round(now - began, 3), timed_out=over)
                if over or not active:
                    return
                await _idle_or(min(_tick_after(now, poll), deadline), looks, settled)

    @contextmanager
    def _attend(self, user_id: str, cubes: Cubes) -> Iterator[_Looks]:
        looks = self._looks.setdefault((user_id, cubes), _Looks(lambda: self._count(user_id)))
        looks.attendants += 1
        try:
            yield looks
        finally:
            looks.attendants -= 1
            if not looks.attendants:
                del self._looks[user_id, cubes]


class _Looks:
    """Looks at the work of one user, one at a time; all who wait for the user share them."""

    def __init__(self, count: Callable[[], Awaitable[int]]) -> None:
        self._count = count
        self._present: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None
        self.attendants = 0

    async def look(self) -> int:
        """Count the user's tasks, in a look that begins after this call. Calls made until then share it."""
        if self._next is None:
            self._next = asyncio.create_task(self._look_after(self._present))
            self._next.add_done_callback(_hear)
        return await asyncio.shield(self._next)

    async def _look_after(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait({before})
        self._present, self._next = self._next, None
        return await self._count()


async def _idle_or(moment: float, looks: _Looks, settled: asyncio.Event) -> None:
    """Return at `moment` (of the monotonic clock), or as soon as the user has no work left."""
    while (left := moment - time.monotonic()) > 0:
        try:
            async with asyncio.timeout(left):
                await settled.wait()
                settled.clear()
                if not await looks.look():
                    return
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            return


def _tick_after(now: float, poll: float) -> float:
    """The next multiple of `poll` after `now`; one that is closer than half of `GATHER_S` is skipped."""
    poll = max(poll, GATHER_S)
    return ((now + GATHER_S / 2) // poll + 1) * poll


def _hear(look: asyncio.Task[int]) -> None:
    """Fetch the error of a look, because asyncio complains if every caller has gone and nobody does."""
    if not look.cancelled():
        look.exception()
