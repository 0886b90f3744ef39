"""The refused credentials that this worker knows of: it does not claim messages that it could not run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reverie.backends.moves import Want
    from reverie.base.clock import Clock
    from reverie.dispatch.registry import Handler

__all__ = ["Pauses"]

MOST_CREDENTIALS = 10_000
"""The most refused credentials that are remembered for a label; beyond that, the oldest is forgotten."""


class Pauses:
    """The ends of the pauses of each label's credentials, on this process's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.labels: dict[str, dict[str, int]] = {}
        """label → credential → end of its pause, for credentials that were refused and not accepted since."""
        self._whole: dict[str, tuple[str, int]] = {}
        """label → (credential, end of the pause), for labels with a single credential."""

    def pause(self, handler: Handler, credential: str, wait_ms: int) -> None:
        """Do not use a credential for `wait_ms`; then one message tests whether it is accepted again."""
        until = self._clock.now() + wait_ms
        known = self.labels.setdefault(handler.label, {})
        known[credential] = until
        if len(known) > MOST_CREDENTIALS:
            del known[next(iter(known))]
        if credential == handler.credential:
            self._whole[handler.label] = (credential, until)

    def resume(self, handler: Handler, credential: str) -> None:
        """End the pause of a credential that is accepted again."""
        known = self.labels.get(handler.label, {})
        known.pop(credential, None)
        if not known:
            self.labels.pop(handler.label, None)
        if credential == handler.credential:
            self._whole.pop(handler.label, None)

    def left_ms(self, label: str, credential: str) -> int | None:
        """Milliseconds left of a pause; 0 when it is time for a probe; None without a pause."""
        until = self.labels.get(label, {}).get(credential)
        return None if until is None else max(0, until - self._clock.now())

    def narrow(self, handler: Handler, want: Want) -> Want | None:
        """What to claim of a label: nothing during a pause, one message after it, else all that is wanted.

        A label with several credentials is not narrowed, because one of them may be accepted: there the
        breaker checks each message after its claim.
        """
        credential, until = self._whole.get(handler.label, (None, 0))
        if credential is None or credential != handler.credential:
            return want
        if until > self._clock.now():
            return None
        return msgspec.structs.replace(want, slots=1, per_slot=1, quantum=1)

    def next_end(self) -> int | None:
        """When the next pause of a whole label ends; None if there is none."""
        if not self._whole:
            return None
        now = self._clock.now()
        return min((until for _, until in self._whole.values() if until > now), default=None)

    async def wait(self, until: int) -> None:
        """Wait until this moment; may return early."""
        await self._clock.wait(asyncio.Event(), until)
