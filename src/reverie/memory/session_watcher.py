"""The session watcher: lets sessions fail that nobody has heard of for long, and reports slow ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.memory.sessions import KeepsSessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.base.clock import Clock
    from reverie.memory.interface import MemoryStore
    from reverie.memory.sessions import Session

__all__ = ["SessionWatcher"]

log = get_logger(__name__)

AT_ONCE = 1000
"""The most sessions that one look lets fail; the others follow at once."""


class SessionWatcher(LoopService):
    """Looks at sessions each minute. Several processes may do so: each session fails once."""

    name = "session-watcher"

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        *,
        timeout_s: float,
        check_s: float,
        drain_s: float,
        tell: Callable[[Session, str], None],
    ) -> None:
        """`tell` is called with each session that has failed (`timeout`) or ends slowly (`slow_end`)."""
        super().__init__()
        self._store = store if isinstance(store, KeepsSessions) else None
        self._clock = clock
        self._timeout_ms = round(timeout_s * 1000)
        self._check_s = check_s
        self._drain_ms = round(drain_s * 1000)
        self._tell = tell
        self._slow: set[tuple[str, str, int]] = set()
        """Ends that were reported as slow, each once."""

    async def start(self) -> None:
        """See `Service.start`. A store without sessions needs no watcher."""
        if self._store is not None:
            await super().start()

    async def look(self) -> list[Session]:
        """Let sessions fail whose last hook is too long ago; the answer is these."""
        assert self._store is not None
        now = self._clock.now()
        failed: list[Session] = []
        while True:
            some = await self._store.time_out_sessions(now - self._timeout_ms, now, AT_ONCE)
            failed += some
            if len(some) < AT_ONCE:
                break
        for session in failed:
            log.warning("session.timeout", session_id=session.session_id, agent=session.agent)
            self._tell(session, "timeout")
        slow = await self._store.slow_ends(now - self._drain_ms, AT_ONCE)
        ends = {(one.user_id, one.session_id, one.ended_at or 0): one for one in slow}
        for key in ends.keys() - self._slow:
            hint = "its last messages are not settled yet; it ends when they are"
            log.warning("session.slow_end", session_id=ends[key].session_id, hint=hint)
            self._tell(ends[key], "slow_end")
        self._slow = set(ends)
        return failed

    async def _turn(self) -> None:
        await self.look()
        await self._rest(self._clock, min(self._check_s, self._drain_ms / 1000))
