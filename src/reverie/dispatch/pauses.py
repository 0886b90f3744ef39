"""What this worker knows of credentials that are refused, so that it does not claim what it could not run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reverie.backends.moves import Want
    from reverie.clock import Clock
    from reverie.dispatch.registry import Handler

__all__ = ["Pauses"]

MOST_CREDENTIALS = 10_000
"""Refused credentials that are remembered for a label; beyond that, those whose pause is over are not."""


class Pauses:
    """Until when which credential of which label is not to be used, on this process's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, dict[str, int]] = {}

    def pause(self, label: str, credential: str, wait_ms: int) -> None:
        """Do not use this credential for so long; then one message tries whether it is accepted again."""
        known, now = self._until.setdefault(label, {}), self._clock.now()
        known[credential] = now + wait_ms
        if len(known) > MOST_CREDENTIALS:
            self._until[label] = {name: until for name, until in known.items() if until > now}

    def resume(self, label: str, credential: str) -> None:
        """It is accepted again."""
        known = self._until.get(label, {})
        known.pop(credential, None)
        if not known:
            self._until.pop(label, None)

    def any_of(self, label: str) -> bool:
        """Whether a credential of this label was refused and not accepted since."""
        return label in self._until

    def left_ms(self, label: str, credential: str) -> int | None:
        """Milliseconds left of a pause; 0 when it is time to try; None when nothing is wrong."""
        until = self._until.get(label, {}).get(credential)
        return None if until is None else max(0, until - self._clock.now())

    def narrow(self, handler: Handler, want: Want) -> Want | None:
        """What to claim of a label: nothing during a pause, one message after it, else all that is wanted."""
        if handler.label not in self._until or callable(handler.credential):
            return want  # of several credentials one may be fine: who is paused is seen message by message
        left_ms = self.left_ms(handler.label, handler.credential)
        if left_ms is None:
            return want
        return None if left_ms else msgspec.structs.replace(want, lanes=1, messages=1, quantum=1)

    def __bool__(self) -> bool:
        return bool(self._until)

    async def ends(self) -> None:
        """Return when a pause ends, so that there is something new to claim."""
        now = self._clock.now()
        moments = [moment for known in self._until.values() for moment in known.values() if moment > now]
        await self._clock.wait(asyncio.Event(), min(moments, default=None))
