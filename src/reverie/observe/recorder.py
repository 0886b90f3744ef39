"""The recorder: publishes what a process does with messages as events, if anyone listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Move, Status
from reverie.observe.events import Event, EventName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.moves import Claim, Settlement, Submitted
    from reverie.base.clock import Clock
    from reverie.message import Message
    from reverie.observe.bus import EventBus

__all__ = ["Recorder"]

STATUS_AFTER = {
    Move.COMPLETE: Status.COMPLETED,
    Move.CANCEL: Status.CANCELLED,
    Move.BURY: Status.FAILED,
}
"""The status of a message after each of these moves; after all other moves it waits again."""
HANDED_BACK = frozenset({Move.RELEASE, Move.LOSE})
"""Moves that cause no event if no handler has run and there is no error."""
FAILED = frozenset({Move.RETRY, Move.BURY})
"""Moves of a failed run: they cause a `finish` event and a `message_processing_failed` event."""


class Recorder:
    """Publishes events about what one process does with messages, a batch at a time, if anyone listens."""

    def __init__(self, bus: EventBus, clock: Clock, lease_ms: int) -> None:
        """`lease_ms` is the lease with which this process claims messages."""
        self._bus = bus
        self._clock = clock
        self._lease_ms = lease_ms

    @property
    def active(self) -> bool:
        """Whether anyone listens."""
        return self._bus.active

    def now(self) -> int:
        """The time by the clock of the events, in epoch milliseconds."""
        return self._clock.now()

    def accepted(self, messages: Sequence[Message], answers: Sequence[Submitted], at: int) -> None:
        """Announce the newly accepted messages of a submit that began at `at`."""
        if self._bus.wants(EventName.ENQUEUE):
            self.enqueued(
                [m for m, answer in zip(messages, answers, strict=True) if answer.status == "accepted"], at
            )

    def enqueued(self, messages: Sequence[Message], at: int | None = None) -> None:
        """Announce accepted messages; `at` is before the submit, so that no claim seems to be earlier."""
        if self._bus.wants(EventName.ENQUEUE):
            at = self._clock.now() if at is None else at
            self._bus.publish([_told(EventName.ENQUEUE, at, message, Status.WAITING) for message in messages])

    def dequeued(self, claims: Sequence[Claim], worker: str) -> bool:
        """Announce claims of a worker; return whether anyone listens to events."""
        if not self._bus.active:
            return False
        self._held(EventName.DEQUEUE, claims, worker)
        return True

    def started(self, claims: Sequence[Claim], worker: str) -> None:
        """Announce that the handler of these claims begins."""
        self._held(EventName.START, claims, worker)

    def finished(self, settlements: Sequence[Settlement], worker: str, seconds: Mapping[int, float]) -> None:
        """Announce how runs ended; `seconds` maps `id(claim)` to the time of its handler, if that ran."""
        if not self._bus.active:
            return
        at = self._clock.now()
        events = []
        for settlement in settlements:
            claim, move, error = settlement.claim, settlement.move, settlement.error
            took = seconds.get(id(claim))
            if took is None and move in HANDED_BACK and error is None:
                continue
            status = STATUS_AFTER.get(move, Status.WAITING)
            submitted = claim.submitted_at
            event = Event(
                EventName.FINISH,
                at,
                *_subject(claim.message),
                worker,
                claim.message.attempts + 1,
                status,
                self._queue_wait_ms(claim),
                None if took is None else int(took * 1_000_000) / 1000,
                None if status is Status.WAITING or submitted is None else max(0, at - submitted),
                error,
            )
            events.append(event)
            if move in FAILED:
                last = move is Move.BURY
                events.append(msgspec.structs.replace(event, event=EventName.FAILED, last=last))
        self._bus.publish(events)
        if follow_ups := [message for settlement in settlements for message in settlement.follow_ups]:
            self.enqueued(follow_ups)

    def cancelled(self, messages: Sequence[Message]) -> None:
        """Announce messages that were cancelled while they waited."""
        at, status = self._clock.now(), Status.CANCELLED
        self._bus.publish([_told(EventName.FINISH, at, message, status, "cancelled") for message in messages])

    def ended(self, messages: Sequence[Message], error: str = "deadline or lost too often") -> None:
        """Announce messages that became dead letters without a run: past their deadline, lost too often."""
        if not self._bus.active:
            return
        at, status = self._clock.now(), Status.FAILED
        finished = [_told(EventName.FINISH, at, message, status, error) for message in messages]
        failed = [msgspec.structs.replace(event, event=EventName.FAILED, last=True) for event in finished]
        self._bus.publish([event for pair in zip(finished, failed, strict=True) for event in pair])

    def _held(self, name: EventName, claims: Sequence[Claim], worker: str) -> None:
        """Publish one event for each claim that a worker holds."""
        if self._bus.wants(name):
            at, wait, status = self._clock.now(), self._queue_wait_ms, Status.IN_PROGRESS
            self._bus.publish(
                [
                    Event(name, at, *_subject(m), worker, m.attempts + 1, status, wait(claim))
                    for claim in claims
                    for m in (claim.message,)
                ]
            )

    def _queue_wait_ms(self, claim: Claim) -> int | None:
        since = claim.waiting_since
        return None if since is None else max(0, claim.lease_until - self._lease_ms - since)


def _told(name: EventName, at: int, message: Message, status: Status, error: str | None = None) -> Event:
    """Make an event about a message that no worker holds."""
    return Event(name, at, *_subject(message), status=status, error=error)


def _subject(message: Message) -> tuple[str, str, str, str, str | None, str | None]:
    """The fields that say which message an event is about, in the order of `Event`."""
    return (
        message.label,
        message.user_id,
        message.item_id,
        message.mem_cube_id,
        message.task_id,
        message.trace_id,
    )
