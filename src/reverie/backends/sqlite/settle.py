"""Settling: recording how runs ended. Each settlement is written whole or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import compress
from typing import TYPE_CHECKING

from reverie.backends.moves import OF_MEMORY, Move, Settled, Status
from reverie.backends.sqlite.advance import lose
from reverie.backends.sqlite.attempts import note_run
from reverie.backends.sqlite.claim import claimed_together, identity
from reverie.backends.sqlite.rows import load_statements, status_of, to_json
from reverie.backends.sqlite.step import ANY_DEPENDANTS, UNWRITABLE
from reverie.backends.sqlite.submit import insert
from reverie.backends.trigger_state import Run
from reverie.base.failpoints import failpoint
from reverie.errors import VersionConflictError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from reverie.backends.moves import Settlement
    from reverie.backends.sqlite.step import Step
    from reverie.message import Key, Message

    _UniqueName = tuple[str, str, str, str | None]
    """User, cube, label and unique key."""

__all__ = ["settle"]

SQL = load_statements("settle.sql")
STORED_STATUS = {
    Move.COMPLETE: "completed",
    Move.RETRY: "pending",
    Move.RELEASE: "pending",
    Move.CANCEL: "failed",
    Move.BURY: "failed",
}
"""A cancelled message is stored as failed with the error `cancelled`."""
APPLIED = Settled(state="applied")
OUTCOME = {Move.RETRY: "retry", Move.RELEASE: "handed_back", Move.CANCEL: "cancelled", Move.BURY: "failed"}


def settle(step: Step, settlements: Sequence[Settlement]) -> list[Settled]:
    """End claims and release their lanes.

    Completions are written together. If that fails, because a claim is no longer valid or the effects or
    follow-ups of a message cannot be written, nothing of it is kept. Then only completions of lanes without
    effects and follow-ups are written together. The messages of the other lanes are settled one by one, in
    order, because effects may meet a conflict, after which nothing later in their lane is settled.
    """
    succeeding = _lanes_with_successors(settlements)
    is_ended = _end_together(step, settlements, succeeding)
    if not any(is_ended):
        changing = {one.claim.handle[1] for one in settlements if one.effects or one.follow_ups}
        if changing - succeeding:
            is_ended = _end_together(step, settlements, succeeding | changing)
    conflicted: set[int] = set()
    answers = []
    for settlement, ended in zip(settlements, is_ended, strict=True):
        lane = settlement.claim.handle[1]
        if ended:
            answers.append(APPLIED)
        elif lane in conflicted:
            answers.append(Settled(state="conflict"))
        else:
            answers.append(_settle_one(step, settlement))
            if answers[-1].state == "conflict":
                conflicted.add(lane)
    step.finish()
    failpoint("inside_settle")
    return answers


def _lanes_with_successors(settlements: Sequence[Settlement]) -> set[int]:
    """The lanes of follow-ups whose unique key another one of the settled messages has.

    Whether such a follow-up is a duplicate depends on which of the messages have ended before it.
    """
    if not any(one.follow_ups for one in settlements):
        return set()
    holders: defaultdict[_UniqueName, set[Key]] = defaultdict(set)
    for one in settlements:
        if one.claim.message.unique_key is not None:
            holders[_unique_name(one.claim.message)].add(one.claim.key)
    return {
        one.claim.handle[1]
        for one in settlements
        for message in one.follow_ups
        if holders and holders.get(_unique_name(message), set()) - {one.claim.key}
    }


def _unique_name(message: Message) -> _UniqueName:
    return message.user_id, message.mem_cube_id, message.label, message.unique_key


def _end_together(step: Step, settlements: Sequence[Settlement], apart: Container[int]) -> list[bool]:
    """End the completions of all lanes that are not `apart`, with few statements.

    The answer says of each settlement whether it was ended. If one of them cannot be written, none is.
    """
    fits = [one.move is Move.COMPLETE and one.claim.handle[1] not in apart for one in settlements]
    together = list(compress(settlements, fits))
    if not together:
        return fits
    try:
        with step.savepoint():
            _write_completions(step, together)
    except (_StaleClaimError, VersionConflictError, *UNWRITABLE):
        return [False] * len(settlements)
    expires = step.now + step.limits.retention_ms
    step.expect(expires)
    for lane, count in Counter(one.claim.handle[1] for one in together).items():
        change = step.lane(lane)
        change.release(0, count)
        change.depth -= count
    for label, count in Counter(one.claim.message.label for one in together).items():
        step.counts.move(label, Status.IN_PROGRESS, Status.COMPLETED, count)
    for settlement in together:
        if settlement.claim.message.user_key is not None:
            _tell_trigger(step, settlement, Status.COMPLETED)
    if any(step.rows(ANY_DEPENDANTS)[0]):
        step.ended += [(*settlement.claim.key, Status.COMPLETED) for settlement in together]
    return fits


def _write_completions(step: Step, settlements: Sequence[Settlement]) -> None:
    """Complete messages, and write their effects and their follow-ups."""
    _end_claims(step, settlements)
    effects = [(one.claim.message, one.effects, one.prepared) for one in settlements if one.effects]
    if effects and step.apply_effects is not None:
        step.apply_effects(step.connection, effects, step.now)
    if follow_ups := [message for one in settlements for message in one.follow_ups]:
        insert(step, follow_ups)


class _StaleClaimError(Exception):
    """A claim is no longer valid."""


def _end_claims(step: Step, settlements: Sequence[Settlement]) -> None:
    """Complete messages, one statement for all that one step has claimed."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for settlement in settlements:
        rows[claimed_together(settlement.claim)].append(settlement.claim.handle[0])
    always = {"now": step.now, "expires": step.now + step.limits.retention_ms}
    for claimed, numbers in rows.items():
        step.connection.execute(SQL["end_claims"], always | {"claimed": claimed, "rows": to_json(numbers)})
        if step.connection.changes() != len(numbers):
            raise _StaleClaimError


def _settle_one(step: Step, settlement: Settlement) -> Settled:
    """Write one settlement, and note the change of its lane, the counts, the dependants and the trigger."""
    claim, move = settlement.claim, settlement.move
    if move is Move.LOSE:
        applied = lose(step, identity(claim), claim.handle[1])
        return APPLIED if applied else Settled(state="stale")
    try:
        with step.savepoint():
            status = _end_claim(step, settlement)
    except VersionConflictError as error:
        return Settled(state="conflict", error=str(error))
    except UNWRITABLE as error:
        return Settled(state="rejected", error=repr(error))
    if status is None:
        return Settled(state="stale")
    message = claim.message
    change = step.lane(claim.handle[1])
    change.release(settlement.delay_ms if move in {Move.RETRY, Move.RELEASE} else 0)
    step.counts.move(message.label, Status.IN_PROGRESS, status)
    if status is not Status.WAITING:
        change.depth -= 1
        step.ended.append((message.user_id, message.item_id, status))
    if message.user_key is not None:
        _tell_trigger(step, settlement, status)
    return APPLIED


def _end_claim(step: Step, settlement: Settlement) -> Status | None:
    """Write one settlement with its effects and follow-ups; None if the worker has lost the claim."""
    move, claim = settlement.move, settlement.claim
    row, user_id, item_id, claim_id = identity(claim)
    if move is not Move.COMPLETE:  # a run that was handed back before it began is left out
        ran = move is not Move.RELEASE or settlement.attempt or settlement.error is not None
        note_run(step, (row, user_id, item_id, claim_id), OUTCOME[move], settlement.error, ran=ran)
    expires = step.now + step.limits.retention_ms
    step.expect(expires)
    rows = step.rows(
        SQL["end_claim"],
        {
            "status": STORED_STATUS[move],
            "error": "cancelled" if move is Move.CANCEL else settlement.error,
            "kept": move in {Move.COMPLETE, Move.CANCEL},
            "expires": expires,
            "attempt": settlement.attempt and move is not Move.COMPLETE,  # `retry_count` counts failed runs
            "retried": move is Move.RETRY,
            "conflict": settlement.conflict,
            "now": step.now,
            "row": row,
            "user_id": user_id,
            "id": item_id,
            "claim_id": claim_id,
        },
    )
    if not rows:
        return None
    status = status_of(*rows[0])
    if settlement.conflict:
        step.rows(SQL["forget_memory"], {"user_id": user_id, "id": item_id, "of_memory": OF_MEMORY})
    if move is Move.COMPLETE:
        if step.apply_effects is not None and settlement.effects:
            effects = (claim.message, settlement.effects, settlement.prepared)
            step.apply_effects(step.connection, [effects], step.now)
    elif settlement.delay_ms and status is Status.WAITING:
        due = step.now + settlement.delay_ms
        if step.rows(SQL["postpone"], {"row": row, "due": due}):
            step.expect(due)
    if settlement.follow_ups and status in {Status.COMPLETED, Status.FAILED}:
        insert(step, settlement.follow_ups)
    return status


def _tell_trigger(step: Step, settlement: Settlement, status: Status) -> None:
    """Note the new status of a message for the trigger that it is a run of."""
    message = settlement.claim.message
    assert message.user_key is not None
    error = "cancelled" if status is Status.CANCELLED else settlement.error
    attempts = message.attempts + settlement.attempt
    step.runs.append(Run(message.label, message.user_key, message.item_id, status, attempts, error))
