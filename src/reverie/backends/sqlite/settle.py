"""Settling: how runs ended, each whole or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import compress
from typing import TYPE_CHECKING, Any

from reverie.backends.moves import Move, Settled, Status
from reverie.backends.sqlite.advance import lose
from reverie.backends.sqlite.attempts import note_run
from reverie.backends.sqlite.claim import claimed_together, identity
from reverie.backends.sqlite.rows import load_statements, status_of, to_json
from reverie.backends.sqlite.step import UNWRITABLE
from reverie.backends.sqlite.submit import insert
from reverie.backends.trigger_state import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Settlement
    from reverie.backends.sqlite.step import Step

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
OUTCOME = {Move.RETRY: "retry", Move.RELEASE: "handed_back", Move.CANCEL: "cancelled", Move.BURY: "failed"}


def settle(step: Step, settlements: Sequence[Settlement]) -> list[Settled]:
    """End claims and give their lanes back."""
    plain = [_is_plain(settlement) for settlement in settlements]
    if not _end_together(step, list(compress(settlements, plain))):
        plain = [False] * len(settlements)
    answers = [
        Settled(state="applied") if ended else _settle_one(step, settlement)
        for settlement, ended in zip(settlements, plain, strict=True)
    ]
    step.finish()
    return answers


def _is_plain(settlement: Settlement) -> bool:
    """Whether it is a completion that nothing follows from."""
    return settlement.move is Move.COMPLETE and not (settlement.effects or settlement.follow_ups)


def _end_together(step: Step, settlements: Sequence[Settlement]) -> bool:
    """End plain completions, one statement for each claim; False, and nothing changed, if not all stand."""
    expires = step.now + step.limits.retention_ms
    rows: defaultdict[str, list[int]] = defaultdict(list)
    lanes: Counter[int] = Counter()
    labels: Counter[str] = Counter()
    for settlement in settlements:
        row, lane = settlement.claim.handle
        rows[claimed_together(settlement.claim)].append(row)
        lanes[lane] += 1
        labels[settlement.claim.message.label] += 1
    changed = 0
    step.connection.execute("SAVEPOINT together")
    for claimed, numbers in rows.items():
        bindings = {"now": step.now, "expires": expires, "claimed": claimed, "rows": to_json(numbers)}
        step.connection.execute(SQL["end_claims"], bindings)
        changed += step.connection.changes()
    whole = changed == len(settlements)
    if not whole:
        step.connection.execute("ROLLBACK TO together")
    step.connection.execute("RELEASE together")
    if whole:
        step.expect(expires)
        for lane, count in lanes.items():
            change = step.lane(lane)
            change.release(0, count)
            change.depth -= count
        for label, count in labels.items():
            step.counts.move(label, Status.IN_PROGRESS, Status.COMPLETED, count)
        for settlement in settlements:
            _tell_trigger(step, settlement, Status.COMPLETED)
        if step.is_waited_for:
            for settlement in settlements:
                step.ended(*settlement.claim.key, Status.COMPLETED)
    return whole


def _settle_one(step: Step, settlement: Settlement) -> Settled:
    if settlement.move is Move.LOSE:
        applied = lose(step, identity(settlement.claim), settlement.claim.handle[1])
        return Settled(state="applied" if applied else "stale")
    try:
        with step.savepoint():
            status = _end_claim(step, settlement)
    except UNWRITABLE as error:
        return Settled(state="rejected", error=repr(error))
    if status is None:
        return Settled(state="stale")
    _released(step, settlement, status)
    return Settled(state="applied")


def _end_claim(step: Step, settlement: Settlement) -> Status | None:
    """Write one settlement and what follows from it; None if the claim is no longer the worker's."""
    _note_run(step, settlement)
    rows = step.rows(SQL["end_claim"], _bindings(step, settlement))
    if not rows:
        return None
    status = status_of(*rows[0])
    if settlement.move is Move.COMPLETE:
        if step.apply_effects is not None and settlement.effects:
            step.apply_effects(step.connection, settlement.claim.message, settlement.effects, step.now)
        insert(step, settlement.follow_ups)
    elif settlement.delay_ms and status is Status.WAITING:
        due = step.now + settlement.delay_ms
        if step.rows(SQL["postpone"], {"row": settlement.claim.handle[0], "due": due}):
            step.expect(due)
    return status


def _note_run(step: Step, settlement: Settlement) -> None:
    """Remember a run that does not complete; not one that was only handed back before it began."""
    move = settlement.move
    if move is not Move.COMPLETE:
        ran = move is not Move.RELEASE or settlement.attempt or settlement.error is not None
        note_run(step, identity(settlement.claim), OUTCOME[move], settlement.error, ran=ran)


def _released(step: Step, settlement: Settlement, status: Status) -> None:
    """Note what the end of a claim means for its lane, and for those who wait for its message."""
    message = settlement.claim.message
    change = step.lane(settlement.claim.handle[1])
    change.release(settlement.delay_ms if settlement.move in {Move.RETRY, Move.RELEASE} else 0)
    step.counts.move(message.label, Status.IN_PROGRESS, status)
    if status.ended:
        change.depth -= 1
        step.ended(message.user_id, message.item_id, status)
    _tell_trigger(step, settlement, status)


def _tell_trigger(step: Step, settlement: Settlement, status: Status) -> None:
    """Note what has become of a message for the trigger that has made it; most are made by none."""
    message = settlement.claim.message
    if message.user_key is not None:
        error = "cancelled" if status is Status.CANCELLED else settlement.error
        attempts = message.attempts + settlement.attempt
        step.run_moved(Run(message.label, message.user_key, message.item_id, status, attempts, error))


def _bindings(step: Step, settlement: Settlement) -> dict[str, Any]:
    move = settlement.move
    row, user_id, item_id, claim_id = identity(settlement.claim)
    expires = step.now + step.limits.retention_ms
    step.expect(expires)
    return {
        "status": STORED_STATUS[move],
        "error": "cancelled" if move is Move.CANCEL else settlement.error,
        "kept": move in {Move.COMPLETE, Move.CANCEL},
        "expires": expires,
        "attempt": settlement.attempt,
        "now": step.now,
        "row": row,
        "user_id": user_id,
        "id": item_id,
        "claim_id": claim_id,
    }
