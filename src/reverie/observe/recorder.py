"""The recorder: turns what a process does with messages into events, if anyone listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.moves import Move, Status
from reverie.observe.events import Event, EventName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.moves import Claim, Settlement
    from reverie.clock import Clock
    from reverie.message import Key, Message
    from reverie.observe.bus import EventBus

__all__ = ["Recorder"]

STATUS_AFTER = {
    Move.COMPLETE: Status.COMPLETED,
    Move.CANCEL: Status.CANCELLED,
    Move.BURY: Status.FAILED,
}
"""How a message stands after these moves; after all others it waits again."""
FAILING = (EventName.FINISH, EventName.FAILED)
"""What a run that failed is told as."""


class Recorder:
    """Of one process. Each method takes a whole batch; callers look at `active` before they prepare one."""

    def __init__(self, bus: EventBus, clock: Clock, lease_ms: int) -> None:
        """`lease_ms` is how long this process claims messages for."""
        self._bus = bus
        self._clock = clock
        self._lease_ms = lease_ms

    @property
    def active(self) -> bool:
        """Whether anyone listens."""
        return self._bus.active

    def enqueued(self, messages: Sequence[Message], at: int | None = None) -> None:
        """These were accepted; `at` is from before, so that no claim of them seems to be earlier."""
        if self._bus.wants(EventName.ENQUEUE):
            at = self._clock.now() if at is None else at
            self._bus.publish([_told(EventName.ENQUEUE, at, message, Status.WAITING) for message in messages])

    def dequeued(self, claims: Sequence[Claim], worker: str) -> None:
        """A worker has claimed these."""
        if not self._bus.wants(EventName.DEQUEUE):
            return
        at = self._clock.now()
        self._bus.publish([self._event(EventName.DEQUEUE, at, claim, worker) for claim in claims])

    def started(self, claims: Sequence[Claim], worker: str) -> None:
        """Their handler begins."""
        if not self._bus.wants(EventName.START):
            return
        at = self._clock.now()
        self._bus.publish([self._event(EventName.START, at, claim, worker) for claim in claims])

    def finished(
        self, settlements: Sequence[Settlement], worker: str, seconds: Mapping[tuple[Key, str], float]
    ) -> None:
        """Their runs have ended so; `seconds` has those whose handlers have run, by key and claim id."""
        at = self._clock.now()
        events = []
        for settlement in settlements:
            claim = settlement.claim
            took = seconds.get((claim.key, claim.claim_id))
            if took is None and settlement.move in {Move.RELEASE, Move.LOSE} and settlement.error is None:
                continue  # it was only handed back
            status = STATUS_AFTER.get(settlement.move, Status.WAITING)
            exec_ms = None if took is None else round(took * 1000, 3)
            names = FAILING if settlement.move in {Move.RETRY, Move.BURY} else (EventName.FINISH,)
            error = settlement.error
            events += [
                self._event(name, at, claim, worker, status=status, exec_ms=exec_ms, error=error)
                for name in names
            ]
        self._bus.publish(events)
        if follow_ups := [message for settlement in settlements for message in settlement.follow_ups]:
            self.enqueued(follow_ups)

    def cancelled(self, messages: Sequence[Message]) -> None:
        """Someone has cancelled these while they waited."""
        at, status = self._clock.now(), Status.CANCELLED
        self._bus.publish([_told(EventName.FINISH, at, message, status, "cancelled") for message in messages])

    def ended(self, messages: Sequence[Message], error: str = "deadline or lost too often") -> None:
        """Time has ended these: they became dead letters without a run that said so."""
        at, status = self._clock.now(), Status.FAILED
        self._bus.publish(
            [_told(name, at, message, status, error) for message in messages for name in FAILING]
        )

    def _event(
        self,
        name: EventName,
        at: int,
        claim: Claim,
        worker: str,
        *,
        status: Status = Status.IN_PROGRESS,
        exec_ms: float | None = None,
        error: str | None = None,
    ) -> Event:
        message, since, submitted = claim.message, claim.waiting_since, claim.submitted_at
        ended = status is not Status.IN_PROGRESS and status is not Status.WAITING
        return Event(
            name,
            at,
            *_subject(message),
            worker,
            message.attempts + 1,
            status,
            None if since is None else max(0, claim.lease_until - self._lease_ms - since),
            exec_ms,
            max(0, at - submitted) if ended and submitted is not None else None,
            error,
        )


def _told(name: EventName, at: int, message: Message, status: Status, error: str | None = None) -> Event:
    """What happens to a message that nobody holds."""
    return Event(name, at, *_subject(message), status=status, error=error)


def _subject(message: Message) -> tuple[str, str, str, str, str | None, str | None]:
    """Which message it is about, in the order of the fields of an event."""
    return (
        message.label,
        message.user_id,
        message.item_id,
        message.mem_cube_id,
        message.task_id,
        message.trace_id,
    )
