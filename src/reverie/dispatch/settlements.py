"""Turn outcomes into settlements: what each run means for its message, its lane and its next attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Move, Settlement
from reverie.dispatch.answers import Failed
from reverie.effect import check_effect
from reverie.errors import InvalidMessageError
from reverie.failures import FailureKind
from reverie.message import SYSTEM_USER, MessageLimits, check_message, derived_id, level_of
from reverie.outcome import LONGEST_DELAY_S, Bury, Cancel, Died, Done, Retry, Snooze, delay_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.interface import Batch
    from reverie.dispatch.registry import Handler
    from reverie.message import Lane, Message
    from reverie.outcome import Outcome

__all__ = ["SettlementPolicy", "backoff_ms"]


MOVES = {Cancel: Move.CANCEL, Bury: Move.BURY, Died: Move.LOSE}
"""The moves of outcomes that need no further decision."""
COMES_AGAIN = frozenset({Move.RETRY, Move.RELEASE, Move.LOSE})
"""Moves after which the rest of an ordered lane has to wait."""
LEAST_RATE_LIMIT_S = 2.0
"""Seconds that a message waits after a rate limit, if the provider does not ask for more."""
RATE_LIMIT_JITTER_S = 1.0
"""Seconds over which the messages that met a rate limit are spread."""


def backoff_ms(handler: Handler, attempts: int) -> int:
    """How long a message waits after this many failed attempts: doubling, capped, with full jitter."""
    ceiling = min(handler.max_backoff_s, handler.backoff_s * 2 ** min(attempts - 1, 60))
    return round(random.uniform(0, ceiling) * 1000)  # noqa: S311  jitter, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementPolicy:
    """Decides the settlement of each outcome."""

    limits: MessageLimits = field(default_factory=MessageLimits)
    level_of: Callable[[str], int] = level_of
    """The level of a follow-up's label."""
    on_bug: Callable[[str, str, str], None] = lambda *_: None
    """Called for every failure of class bug, with its label, its cause, and the whole reason."""

    def settlements(self, batch: Batch, outcomes: Sequence[Outcome | None]) -> list[Settlement]:
        """One settlement for each claim. If a message must run again, the rest of its lane is released."""
        handler = batch.handler
        stopped: set[Lane] = set()
        settlements = []
        for claim, outcome in zip(batch.claims, outcomes, strict=True):
            if outcome is None or (stopped and claim.lane in stopped):
                settlement = Settlement(claim=claim, move=Move.RELEASE, attempt=False)
            else:
                settlement = self._settlement(claim, outcome, handler)
                if handler.ordered and settlement.move in COMES_AGAIN:
                    stopped.add(claim.lane)
            settlements.append(settlement)
        return settlements

    def failed(
        self,
        claim: Claim,
        handler: Handler,
        reason: str | None,
        *,
        after: float | None = None,
        at_least: float | None = None,
    ) -> Settlement:
        """Settle a failed run: retry the message after a backoff, or bury it after the last attempt.

        `after` replaces the backoff. `at_least` is added to the backoff, because messages that were all told
        to come back at the same moment should not run together.
        """
        reason = _text(reason)
        attempts = claim.message.attempts + 1
        if attempts >= handler.max_attempts:
            return Settlement(claim=claim, move=Move.BURY, error=reason or "no attempts left")
        delay_ms = backoff_ms(handler, attempts) if after is None else _delay_ms(after)
        delay_ms += _delay_ms(at_least or 0)
        return Settlement(claim=claim, move=Move.RETRY, delay_ms=delay_ms, error=reason)

    def conflicted(self, claim: Claim, handler: Handler, error: str | None) -> Settlement:
        """Settle a run whose effects met another version of an item: again at once, or a bug after many."""
        if claim.message.conflicts + 1 < MOST_CONFLICTS:
            return Settlement(claim=claim, move=Move.RELEASE, attempt=False, conflict=True, error=error)
        reason = f"bug: its effects met another version {MOST_CONFLICTS} times in a row: {error}"
        self.on_bug(claim.message.label, "conflict", reason)
        return self.failed(claim, handler, reason)

    def _settlement(self, claim: Claim, outcome: Outcome, handler: Handler) -> Settlement:
        try:
            match outcome:
                case Done():
                    return self._done(claim, outcome)
                case Failed():
                    return self._failed(claim, outcome, handler)
                case Retry():
                    return self.failed(claim, handler, outcome.reason, after=delay_of(outcome))
                case Snooze():
                    return _handed_back(claim, delay_of(outcome) or 0, outcome.reason)
                case _:
                    return Settlement(
                        claim=claim,
                        move=MOVES[type(outcome)],
                        attempt=not isinstance(outcome, Died),
                        error=_text(outcome.reason),
                    )
        except InvalidMessageError as error:
            reason = f"bug: an effect or a follow-up was refused: {error}"
        except Exception as error:  # noqa: BLE001  a bad answer is its handler's failure
            reason = f"bug: the handler's answer cannot be kept: {error!r}"
        self.on_bug(claim.message.label, "answer", reason)
        return self.failed(claim, handler, reason)

    def _failed(self, claim: Claim, outcome: Failed, handler: Handler) -> Settlement:
        failure = outcome.failure
        if failure.kind in {FailureKind.QUOTA, FailureKind.CREDENTIALS}:
            return _handed_back(claim, failure.retry_after_s or handler.max_backoff_s, outcome.reason)
        if failure.kind is FailureKind.RATE_LIMITED:
            after = max(failure.retry_after_s or 0, LEAST_RATE_LIMIT_S)
            jitter = random.uniform(0, RATE_LIMIT_JITTER_S)  # noqa: S311  jitter, not a secret
            return _handed_back(claim, after + jitter, outcome.reason)
        if failure.kind is FailureKind.BUG:
            self.on_bug(claim.message.label, failure.cause, outcome.reason or "")
        return self.failed(claim, handler, outcome.reason, at_least=failure.retry_after_s)

    def _done(self, claim: Claim, outcome: Done) -> Settlement:
        if not outcome.effects and not outcome.follow_ups:
            return Settlement(claim=claim, move=Move.COMPLETE)
        effects = tuple(outcome.effects)
        for effect in effects:
            check_effect(effect, self.limits)
        follow_ups = self._children(claim.message, outcome.follow_ups) if outcome.follow_ups else ()
        return Settlement(claim=claim, move=Move.COMPLETE, effects=effects, follow_ups=follow_ups)

    def _children(self, parent: Message, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The follow-ups of a message, with ids derived from its own: a repeated run gives the same ids.

        Only a message of the system may have follow-ups of the system. This is how work for every tenant fans
        out, page by page.
        """
        new_ids = [derived_id(*parent.key, "follow-up", index) for index in range(len(messages))]
        ids = {message.item_id: new_id for message, new_id in zip(messages, new_ids, strict=True)}
        children = tuple(
            msgspec.structs.replace(
                message,
                item_id=new_id,
                depends_on=tuple(ids.get(item_id, item_id) for item_id in message.depends_on),
                task_id=message.task_id or parent.task_id,
                trace_id=message.trace_id or parent.trace_id,
                level=self.level_of(message.label),
            )
            for message, new_id in zip(messages, new_ids, strict=True)
        )
        for child in children:
            check_message(child, self.limits, of_system=parent.user_id == SYSTEM_USER)
        return children


MOST_CONFLICTS = 5
"""A run fails after this many conflicts in a row, because its handler never reads the present version."""


def _handed_back(claim: Claim, after: float, reason: str | None) -> Settlement:
    """Release a message to rest, without using an attempt; the reason is kept for people to see."""
    return Settlement(
        claim=claim, move=Move.RELEASE, attempt=False, delay_ms=_delay_ms(after), error=_text(reason)
    )


def _delay_ms(seconds: float) -> int:
    return round(min(max(0.0, seconds), LONGEST_DELAY_S) * 1000)


def _text(reason: object) -> str | None:
    """A reason as text that can be stored. The word `cancelled` alone is reserved for the queue."""
    if reason is None:
        return None
    text = str(reason).encode(errors="backslashreplace").decode()
    return "failed: cancelled" if text == "cancelled" else text
