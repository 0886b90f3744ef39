"""Claiming: ready lanes are served in turn, under a lease. Also renewing claims, and memos of runs."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.backends.fair_share import serve
from reverie.backends.moves import Claim, Lost, Renewal, Status
from reverie.backends.sqlite.advance import fail_overdue
from reverie.backends.sqlite.rows import decode_json, load_statements, message_from_row, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.backends.moves import ClaimRequest, EndedMessage, Presence, Want
    from reverie.backends.sqlite.step import LaneChange, Step
    from reverie.message import Key

__all__ = ["claim", "claimed_together", "identity", "load_memos", "renew", "save_memo"]

SQL = load_statements("claim.sql")
READ_TOGETHER = 128
"""How many claimed messages one statement reads; each may have up to `limits.max_content_bytes`."""
CLAIM_ID_BYTES = 16
OVERDUE_LIMIT = 1000
"""How many messages past their deadline one claim fails at most."""


class Claimed(NamedTuple):
    """The claimed messages as rows: the caller decodes them (`read`), off the thread that writes."""

    rows: list[list[Any]]
    claim_id: str
    """The prefix of these rows' claim ids; a claim id is the prefix and the number of its row."""
    lease_until: int
    overdue: list[EndedMessage]
    """Messages that failed because their deadline had passed."""
    rests: dict[str, int]
    """Label → `min_idle_ms`, for wanted labels that have one."""

    def read(self) -> list[Claim]:
        """The claims, by level and then by place: level 1 comes first."""
        rows = sorted(self.rows, key=itemgetter(2, 1))  # level, then place
        return [
            Claim(
                message := message_from_row(row[6:]),
                f"{self.claim_id}{row[0]}",
                self.lease_until,
                (row[0], row[3]),
                row[4],
                row[5],
                self.rests.get(message.label, 0),
            )
            for row in rows
        ]


class _Look(NamedTuple):
    """The state of the queue before a claim."""

    waited_ms: dict[str, int]
    """Label → how long its first ready lane has waited, for labels with a ready lane."""
    overdue: bool
    lost: bool
    """Whether a waiting message has lost a claim before."""


def claim(step: Step, request: ClaimRequest) -> Claimed:
    """Serve the ready lanes of the wanted labels."""
    look = _look(step, request)
    claim_id = secrets.token_hex(CLAIM_ID_BYTES) + "-"
    rests = {label: want.min_idle_ms for label, want in request.wants.items() if want.min_idle_ms}
    claimed = Claimed([], claim_id, step.now + request.lease_ms, [], rests)
    if look.overdue:
        claimed.overdue.extend(fail_overdue(step, OVERDUE_LIMIT))
        step.finish()
        step.expect(step.now)  # `advance` reports them
        look = _look(step, request)
    bindings = {
        "claim_id": claim_id,
        "worker": request.worker,
        "lease_until": claimed.lease_until,
        "now": step.now,
    }
    claim_label = partial(_claim_label, step, bindings, lost=look.lost)
    claimed.rows[:] = serve(request, look.waited_ms, step.limits.max_wait_ms, claim_label)
    if claimed.rows:
        step.expect(claimed.lease_until)
        if request.enough is None or len(claimed.rows) < request.enough:
            left = step.rows(SQL["still_ready"], {"labels": to_json(list(look.waited_ms))})
            step.woken.update(label for (label,) in left)  # the next wait for them returns at once
    return claimed


def _look(step: Step, request: ClaimRequest) -> _Look:
    bindings = {"labels": to_json(list(request.wants)), "now": step.now}
    ((ready, overdue, lost, *counters),) = step.rows(SQL["look"], bindings)
    step.know_counters(*counters)
    waited_ms = {label: step.now - since for label, since in decode_json(ready)}
    return _Look(waited_ms, bool(overdue), bool(lost))


def renew(step: Step, claims: Sequence[Claim], lease_ms: int, presence: Presence | None) -> Renewal:
    """Extend the leases that are still valid; with `presence`, note that the worker lives or leaves."""
    if presence is not None and presence.labels:
        alive_until = step.now + presence.lives_ms
        labels = to_json(presence.labels)
        step.rows(SQL["note_worker"], (presence.worker, labels, presence.lives_ms, alive_until))
    elif presence is not None:
        step.rows(SQL["forget_worker"], (presence.worker,))
    lease_until = step.now + lease_ms
    rows = step.many(SQL["renew"], [(lease_until, *identity(claim)) for claim in claims])
    renewed = {(row, claim_id): cancel for row, claim_id, cancel in rows}
    lost, cancelled = [], []
    for one in claims:
        cancel = renewed.get((one.handle[0], one.claim_id))
        if cancel is None:
            lost.append(Lost(one.key, one.claim_id))
        elif cancel:
            cancelled.append(one.key)
    return Renewal(lost=lost, cancelled=cancelled, lease_until=lease_until)


def save_memo(step: Step, claim: Claim, name: str, value: str) -> bool:
    """Keep the result of a finished step of a run; False if the claim is no longer valid."""
    return bool(step.rows(SQL["save_memo"], (*identity(claim), name, value)))


def load_memos(connection: apsw.Connection, key: Key) -> dict[str, str]:
    """The results that earlier runs of a message have kept, by step."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["load_memos"], key).fetchall()
    return dict(rows)


def identity(claim: Claim) -> tuple[int, str, str, str]:
    """The values that identify a claim in the file: row, user_id, item_id, claim id."""
    message = claim.message
    return claim.handle[0], message.user_id, message.item_id, claim.claim_id


def claimed_together(claim: Claim) -> str:
    """The common prefix of the claim ids of all messages claimed in one step."""
    return claim.claim_id[: 2 * CLAIM_ID_BYTES + 1]


def _claim_label(
    step: Step, bindings: dict[str, Any], label: str, want: Want, messages: int, *, lost: bool
) -> list[list[Any]]:
    most = step.limits.total.concurrency
    if most is not None:
        messages = min(messages, most - step.rows(SQL["running"])[0][0])
    portions = _portions(step, label, messages, want)
    if lost and portions:
        portions = _leave_lost_alone(step, portions)
    rows: list[list[Any]] = []
    if step.limits.tenant.concurrency is None:
        rows = _claim_lanes(step, portions, want, bindings)
    else:
        for lane, take in portions:  # one lane may use up the room of its tenant
            rows += _claim_lanes(step, [(lane, min(take, _room(step, lane)))], want, bindings)
    step.counts.move(label, Status.WAITING, Status.IN_PROGRESS, len(rows))
    return rows


def _portions(step: Step, label: str, messages: int, want: Want) -> list[tuple[int, int]]:
    """The lanes to serve, in turn, with the most messages that each gives: a quantum or what is left.

    A lane gives none if its label was unordered when it was last served, is ordered now, and messages of
    that time still run.
    """
    portions: list[tuple[int, int]] = []
    left = messages
    ((lanes,),) = step.rows(SQL["ready_lanes"], {"label": label, "lanes": max(0, messages)})
    for lane, depth, running in decode_json(lanes):
        if running and want.ordered:
            _follow(step, lane, want)  # it leaves the ring
            take = 0
        else:
            take = min(want.quantum, left)
        portions.append((lane, take))
        left -= min(take, max(1, depth))
        if left <= 0:
            break
    return portions


def _leave_lost_alone(step: Step, portions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cut portions, so that a message whose claim was lost is claimed alone.

    A portion ends before its first lost message; if a lane begins with one, its portion is that message.
    """
    lost = dict(step.rows(SQL["lost_messages"], {"lanes": to_json(portions)}))
    return [(lane, min(take, max(1, lost.get(lane, take)))) for lane, take in portions]


def _read(step: Step, numbers: list[int]) -> list[list[Any]]:
    """Read messages in chunks, because all at once might be too large."""
    rows: list[list[Any]] = []
    for start in range(0, len(numbers), READ_TOGETHER):
        chunk = to_json(numbers[start : start + READ_TOGETHER])
        ((answer,),) = step.rows(SQL["read_messages"], {"rows": chunk})
        rows += decode_json(answer)
    return rows


def _room(step: Step, lane: int) -> int:
    """How many more messages of the lane's tenant may be in progress."""
    running: int = step.rows(SQL["tenant_running"], (lane,))[0][0]
    return max(0, (step.limits.tenant.concurrency or 0) - running)


def _claim_lanes(
    step: Step, portions: Sequence[tuple[int, int]], want: Want, bindings: dict[str, Any]
) -> list[list[Any]]:
    lanes_by_take: defaultdict[int, list[int]] = defaultdict(list)  # most lanes give equally many
    for lane, take in portions:
        if take > 0:
            lanes_by_take[take].append(lane)
    numbers: list[int] = []
    for take, lanes in lanes_by_take.items():
        ((first,),) = step.rows(SQL["first_messages"], {"lanes": to_json(lanes), "take": take})
        numbers += decode_json(first)
    rows = _read(step, numbers)  # before they are marked as claimed
    claimed = {"rows": to_json(numbers), "max_attempts": want.max_attempts}
    step.rows(SQL["claim_messages"], claimed | bindings)
    served = Counter(row[3] for row in rows)
    for lane in chain.from_iterable(lanes_by_take.values()):
        _follow(step, lane, want).running = served[lane]
    step.write_lanes()
    return rows


def _follow(step: Step, lane: int, want: Want) -> LaneChange:
    """Note in a lane how lanes of its label are to be served."""
    change = step.lane(lane)
    change.ordered, change.min_idle_ms = want.ordered, want.min_idle_ms
    return change
