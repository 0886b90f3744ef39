"""Submitting: new messages go to the end of their lane, or wait for their due time or their parents."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from reverie.backends.limits import (
    check_depth,
    next_arrival,
    too_many_labels,
    unhandled,
    unknown_parent,
)
from reverie.backends.moves import Status, Submitted
from reverie.backends.sqlite.rows import decode_json, extra_of, status_of, to_json
from reverie.base.clock import to_epoch_ms
from reverie.message import Key, Lane, level_of
from reverie.storage.many_rows import write_rows
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reverie.backends.sqlite.step import Step
    from reverie.message import Message

__all__ = ["insert", "submit"]

SQL = load_queries(__package__ or "", "submit.sql")


def submit(step: Step, messages: Sequence[Message]) -> list[Submitted]:
    """Accept all messages, or raise an error and accept none."""
    if step.limits.refuse_unhandled:
        labels = to_json(sorted({message.label for message in messages}))
        for (label,) in step.rows(SQL["unhandled"], {"labels": labels, "now": step.now}):
            raise unhandled(label)
    answers = insert(step, messages)
    if not step.counts.keys() <= step.known_labels:
        _check_labels(step)
    step.finish()
    limits = step.limits
    most = limits.total.depth
    if most is not None and step.counters.depth > most and any(a.status == "accepted" for a in answers):
        check_depth(limits.total, step.counters.depth)
    if not (limits.total.rate is limits.tenant.rate is limits.tenant.depth is None):
        _check_limits(step, _accepted(messages, answers))
    return answers


def _check_labels(step: Step) -> None:
    """Refuse new labels beyond the limit; first forget the labels of which no message is kept."""
    bindings = {"labels": to_json(list(step.counts))}
    known = {label for (label,) in step.rows(SQL["known_labels"], bindings)}
    new = sorted(step.counts.keys() - known)
    most = step.limits.max_labels - len(new)
    if new and step.rows(SQL["count_labels"])[0][0] > most:
        step.rows(SQL["forget_labels"], bindings)
        step.known_labels.clear()
        if step.rows(SQL["count_labels"])[0][0] > most:
            raise too_many_labels(new[0], step.limits)
    step.known_labels |= known  # not the new ones: the transaction may yet be rolled back


def _accepted(messages: Sequence[Message], answers: Sequence[Submitted]) -> list[Message]:
    return [m for m, answer in zip(messages, answers, strict=True) if answer.status == "accepted"]


def insert(step: Step, messages: Sequence[Message]) -> list[Submitted]:
    """Write new messages. The caller finishes the step."""
    if any(message.depends_on for message in messages):
        _check_known(step, messages)
    answers: list[Submitted] = []
    plain: list[Message] = []
    for message in messages:
        if message.unique_key is None:
            plain.append(message)
            continue
        answers += _insert_all(step, plain)
        plain = []
        answers.append(_insert_unique(step, message))
    answers += _insert_all(step, plain)
    accepted = _accepted(messages, answers)
    for label, count in Counter(message.label for message in accepted).items():
        step.counts.move(label, None, Status.WAITING, count)
    if children := [message for message in accepted if message.depends_on]:
        _link(step, children)
    return answers


def _check_known(step: Step, messages: Sequence[Message]) -> None:
    """Refuse a message that depends on a message which is neither known nor submitted with it."""
    given = {message.key for message in messages}
    named = (Key(message.user_id, parent) for message in messages for parent in message.depends_on)
    parents = [key for key in dict.fromkeys(named) if key not in given]
    if parents:
        known = {(row[0], row[1]) for row in step.rows(SQL["statuses"], {"keys": to_json(parents)})}
        for key in parents:
            if key not in known:
                raise unknown_parent(key.item_id)


def _insert_all(step: Step, messages: Sequence[Message]) -> list[Submitted]:
    """Write messages with few statements, however many messages there are."""
    if not messages:
        return []
    if step.limits.tenant.concurrency is None and all(
        not message.depends_on and (message.due is None or to_epoch_ms(message.due) <= step.now)
        for message in messages
    ):
        return _insert_ready(step, messages)
    return _insert_carefully(step, messages)


def _insert_ready(step: Step, messages: Sequence[Message]) -> list[Submitted]:
    """Write messages that take their place at once, as if all were new.

    Only if fewer rows were written than given, look up which messages were known, and correct the lanes.
    """
    places = step.take_places(len(messages))
    _fill_lanes(step, messages)
    values = [_values(step, message, place) for message, place in zip(messages, places, strict=True)]
    if write_rows(step.connection, SQL, "insert_messages", values) == len(messages):
        return [Submitted(message.item_id, "accepted") for message in messages]
    stored = _stored(step, messages)
    answers = []
    for message, place in zip(messages, places, strict=True):
        fingerprint, its_place = stored[message.key]
        if its_place == place:
            answers.append(Submitted(message.item_id, "accepted"))
        else:
            answers.append(_known(message, fingerprint))
    known = [m for m, answer in zip(messages, answers, strict=True) if answer.status != "accepted"]
    for lane, count in _count_lanes(step, known):
        step.lane(lane).depth -= count
    return answers


def _insert_carefully(step: Step, messages: Sequence[Message]) -> list[Submitted]:
    """Write messages that may have to wait. Known ones are left out; `finish` gives the lanes their turns."""
    fingerprints = {key: fingerprint for key, (fingerprint, _) in _stored(step, messages).items()}
    new: list[Message] = []
    answers = []
    for message in messages:
        if message.key in fingerprints:
            answers.append(_known(message, fingerprints[message.key]))
            continue
        fingerprints[message.key] = message.fingerprint()
        new.append(message)
        answers.append(Submitted(message.item_id, "accepted"))
    levels = {message.lane: message.level or level_of(message.label) for message in new}
    write_rows(step.connection, SQL, "add_lanes", [(*lane, level) for lane, level in levels.items()])
    places = step.take_places(len(new))
    values = [_values(step, message, place) for message, place in zip(new, places, strict=True)]
    write_rows(step.connection, SQL, "insert_messages", values)
    for lane, count in _count_lanes(step, new):
        step.lane(lane).depth += count
    return answers


def _known(message: Message, fingerprint: str) -> Submitted:
    """The answer to a message whose id is taken."""
    same = fingerprint == message.fingerprint()
    return Submitted(message.item_id, "duplicate" if same else "conflict")


def _stored(step: Step, messages: Sequence[Message]) -> dict[Key, tuple[str, int | None]]:
    """The fingerprint and place of each of these messages that is already stored."""
    rows = step.rows(SQL["fingerprints"], {"keys": to_json([message.key for message in messages])})
    return {Key(user_id, item_id): (fingerprint, place) for user_id, item_id, fingerprint, place in rows}


def _fill_lanes(step: Step, messages: Sequence[Message]) -> None:
    """Count ready messages into their lanes; a lane that may be served gets a turn."""
    counts = Counter(message.lane for message in messages)
    levels = {message.lane: message.level or level_of(message.label) for message in messages}
    counters = step.counters
    counters.depth += len(messages)
    counters.turn += 1
    turn = counters.turn
    filled = [(*lane, levels[lane], count, turn, step.now) for lane, count in counts.items()]
    write_rows(step.connection, SQL, "fill_lanes", filled)
    for label in {lane.label for lane in counts}:
        if step.rows(SQL["is_turn_given"], (label, turn)):
            step.woken.add(label)


def _count_lanes(step: Step, messages: Sequence[Message]) -> list[tuple[int, int]]:
    """(Lane number, how many of these messages are in the lane), for each lane."""
    counts = Counter(message.lane for message in messages)
    ((rows,),) = step.rows(SQL["lane_numbers"], {"lanes": to_json(list(counts))})
    return [(lane, counts[Lane(*name)]) for lane, *name in decode_json(rows)]


def _values(step: Step, message: Message, place: int) -> tuple[Any, ...]:
    due = to_epoch_ms(message.due) if message.due else None
    later = due is not None and due > step.now
    deadline = to_epoch_ms(message.deadline) if message.deadline else None
    step.expect(due if later else None)
    step.expect(deadline)
    return (
        message.user_id,
        message.item_id,
        message.label,
        message.session_id,
        message.mem_cube_id,
        message.content,
        step.now,
        message.level or level_of(message.label),
        None if later or message.depends_on else place,
        due if later else None,
        message.fingerprint(),
        message.task_id,
        message.trace_id,
        message.user_name,
        None if message.info is None else to_json(message.info),
        _made_at(message.timestamp) if message.timestamp else step.now,
        deadline,
        len(set(message.depends_on)),
        message.unique_key,
        step.now + round(message.unique_window_s * 1000) if message.unique_key is not None else None,
        extra_of(message),
        step.limits.label_attempts.get(message.label, step.limits.max_attempts),
    )


def _made_at(moment: datetime) -> int:
    """The epoch milliseconds of a timestamp; quicker than `to_epoch_ms`, because every message has one."""
    return round(moment.timestamp() * 1000) if moment.tzinfo else to_epoch_ms(moment)


def _insert_unique(step: Step, message: Message) -> Submitted:
    """Write a message with a unique key, unless a message with this key makes it a duplicate."""
    for fingerprint, _ in _stored(step, [message]).values():
        return _known(message, fingerprint)
    holders = step.rows(
        SQL["holders"],
        {
            "user_id": message.user_id,
            "project_id": message.mem_cube_id,
            "message_type": message.label,
            "unique_key": message.unique_key,
            "now": step.now,
        },
    )
    waiting = [holder for holder in holders if holder[3] == "pending"]
    running = [holder for holder in holders if holder[3] == "processing"]
    moves = message.unique_policy in {"extend", "sooner"}
    if message.unique_policy == "replace":
        for row, item_id, lane, *_ in waiting:
            step.end_waiting(row, message.user_id, item_id, lane, "cancelled")
    elif moves and waiting:
        _reschedule(step, waiting[0], message)
        return Submitted(waiting[0][1], "duplicate")
    elif holders and not (moves and running):
        return Submitted(holders[0][1], "duplicate")
    return _insert_all(step, [message])[0]


def _reschedule(step: Step, holder: tuple[Any, ...], message: Message) -> None:
    """Move the due time of a waiting message as the policy of a new message with its key says."""
    row, _, lane, *_ = holder
    due = max(step.now, to_epoch_ms(message.due) if message.due else step.now)
    bindings = {"row": row, "due": due, "now": step.now}
    if message.unique_policy == "extend":
        step.rows(SQL["reschedule"], bindings)
        step.lane(lane)
    elif not step.rows(SQL["bring_forward"], bindings):
        return
    step.expect(due)


def _link(step: Step, children: Sequence[Message]) -> None:
    """Let messages wait for their parents. Parents that have already ended are handled by `finish`."""
    parents = {Key(child.user_id, parent) for child in children for parent in child.depends_on}
    rows = step.rows(SQL["statuses"], {"keys": to_json(list(parents))})
    for user_id, item_id, status, error in rows:
        if (ended := status_of(status, error)).ended:
            step.ended.append((user_id, item_id, ended))
    known = {(row[0], row[1]) for row in rows}
    for parent in parents - known:  # a duplicate by unique key was not written; it counts as done
        step.ended.append((*parent, Status.COMPLETED))
    step.many(SQL["forget_dependencies"], [child.key for child in children])
    edges = [(c.user_id, parent, c.item_id) for c in children for parent in c.depends_on]
    step.many(SQL["add_dependency"], edges)


def _check_limits(step: Step, accepted: Sequence[Message]) -> None:
    """Refuse the messages just written if they exceed a limit; the transaction then rolls back."""
    if not accepted:
        return
    limits = step.limits
    tenants = Counter((message.user_id, message.mem_cube_id) for message in accepted)
    if limits.tenant.depth is not None:
        bindings = {"tenants": to_json(list(tenants))}
        for user_id, cube, depth in step.rows(SQL["tenant_depths"], bindings):
            check_depth(limits.tenant, depth, f"{user_id}/{cube}")
    if limits.total.rate is not None:
        arrival = next_arrival(limits.total, _arrival(step, ""), step.now, len(accepted))
        step.rows(SQL["set_arrival"], ("", arrival))
    if limits.tenant.rate is not None:
        for name, count in tenants.items():
            scope = to_json(name)
            arrival = next_arrival(limits.tenant, _arrival(step, scope), step.now, count, "/".join(name))
            step.rows(SQL["set_arrival"], (scope, arrival))


def _arrival(step: Step, scope: str) -> float:
    rows = step.rows(SQL["arrival"], (scope,))
    return float(rows[0][0]) if rows else 0.0
