"""The moves of the memory backend, written to be read: the other backends do the same."""

from __future__ import annotations

import secrets
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.control import CancelItems, ControlResult, DeleteItems, PauseLabel, RequeueItems
from reverie.backends.fair_share import serve
from reverie.backends.limits import check_depth, next_arrival, too_many_labels, unhandled, unknown_parent
from reverie.backends.memory.state import Item
from reverie.backends.moves import (
    OF_MEMORY,
    Advance,
    Claim,
    EndedMessage,
    Lost,
    Move,
    Pruned,
    Renewal,
    Settled,
    Status,
    Submitted,
)
from reverie.backends.wakeup import CANCELLED
from reverie.base.clock import from_epoch_ms, to_epoch_ms
from reverie.base.failpoints import failpoint
from reverie.errors import InvalidMessageError
from reverie.message import Key, level_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reverie.backends.control import Command, Selection
    from reverie.backends.memory.state import Outcome, State
    from reverie.backends.moves import ClaimRequest, Presence, Settlement, Want
    from reverie.message import Lane, Message

__all__ = ["MemoryQueue"]

OUTCOME: dict[Move, Outcome] = {
    Move.COMPLETE: "completed",
    Move.RETRY: "retry",
    Move.RELEASE: "handed_back",
    Move.CANCEL: "cancelled",
    Move.BURY: "failed",
}
END_OF = {Move.COMPLETE: Status.COMPLETED, Move.CANCEL: Status.CANCELLED, Move.BURY: Status.FAILED}


class MemoryQueue:
    """See `reverie.backends.interface.Queue`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._clock = state.clock
        self._overdue: list[Item] = []
        """Messages that a claim has failed because of their deadline; `advance` reports them."""

    async def submit(self, messages: Sequence[Message]) -> list[Submitted]:
        """See `Queue.submit`."""
        with self._state.lock:
            self._check_handled(messages)
            self._check_known(messages)
            new = [message for message in messages if message.key not in self._state.items]
            self._check_labels(new)
            self._check_limits(new)
            answers = self._insert(messages)
            self._state.finish()
            return answers

    def submit_anyway(self, messages: Sequence[Message]) -> None:
        """Keep messages whatever the limits say. The caller holds the lock."""
        self._insert(messages)
        self._state.finish()

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """See `Queue.claim`."""
        state = self._state
        with state.lock:
            self._overdue += self._fail_overdue(OVERDUE_LIMIT)
            state.finish()
            if self._overdue:
                state.wakeup.expect(self._clock.now())  # `advance` reports them
            claim_id = secrets.token_hex(16)
            now = self._clock.now()
            waited = {
                label: now - next(iter(ring.values()))
                for label, ring in state.rings.items()
                if ring and label not in state.paused
            }
            claims = serve(
                request,
                waited,
                state.limits.max_wait_ms,
                partial(self._claim_label, request, claim_id),
            )
            if claims:
                state.wakeup.notify([label for label in request.wants if state.rings.get(label)])
            return sorted(claims, key=lambda claim: claim.message.level or 0)

    async def renew(
        self, claims: Sequence[Claim], lease_ms: int, presence: Presence | None = None
    ) -> Renewal:
        """See `Queue.renew`."""
        with self._state.lock:
            now = self._clock.now()
            lost, cancelled = [], []
            for claim in claims:
                item = self._held(claim)
                if item is None:
                    lost.append(Lost(claim.key, claim.claim_id))
                    continue
                item.lease_until = now + lease_ms
                if item.cancel_requested:
                    cancelled.append(claim.key)
            if presence is not None:
                self._state.workers.pop(presence.worker, None)
                if presence.labels:
                    self._state.workers[presence.worker] = (presence, now + presence.lives_ms)
            return Renewal(lost=lost, cancelled=cancelled, lease_until=now + lease_ms)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See `Queue.settle`."""
        with self._state.lock:
            failpoint("inside_settle")
            back: list[Item] = []
            answers = [self._settle_one(settlement, back) for settlement in settlements]
            for lane in dict.fromkeys(item.message.lane for item in back):
                self._state.rejoin(lane, [item for item in back if item.message.lane == lane])
            self._state.finish()
            return answers

    async def save_memo(self, claim: Claim, step: str, value: str) -> bool:
        """See `Queue.save_memo`."""
        with self._state.lock:
            item = self._held(claim)
            if item is not None:
                item.memos[step] = value
            return item is not None

    async def load_memos(self, claim: Claim) -> dict[str, str]:
        """See `Queue.load_memos`."""
        with self._state.lock:
            item = self._state.items.get(claim.key)
            return dict(item.memos) if item is not None else {}

    async def control(self, command: Command) -> ControlResult:
        """See `Queue.control`."""
        with self._state.lock:
            result = self._control(command)
            self._state.finish()
            return result

    async def advance(self, limit: int) -> Advance:
        """See `Queue.advance`."""
        state, now = self._state, self._clock.now()
        with state.lock:
            overdue, self._overdue = self._overdue + self._fail_overdue(limit), []
            waiting = (i for i in state.items.values() if i.status is Status.WAITING and not i.waits_for)
            due = list(islice((i for i in waiting if i.due is not None and i.due <= now), limit))
            for item in sorted(due, key=lambda item: (item.due or 0, item.seq)):
                state.settle_in(item)
            rested = [n for n, s in state.lanes.items() if s.rest_until and s.rest_until <= now][:limit]
            for name in rested:
                state.lanes[name].rest_until = None
                state.wake(name)
            running = (i for i in state.items.values() if i.status is Status.IN_PROGRESS)
            lost = list(islice((i for i in running if i.lease_until <= now), limit))
            for item in lost:
                if state.lose(item):
                    state.rejoin(item.message.lane, [item])
            state.finish()
            expired = list(
                islice((i for i in state.items.values() if (state.expiry(i) or now + 1) <= now), limit)
            )
            for item in expired:
                state.forget(item)
            next_due = state.next_due()
        return Advance(
            staged=len(due) + len(rested),
            reaped=len(lost),
            expired=len(expired),
            ended=[EndedMessage(i.message, i.submitted_at) for i in (*overdue, *lost) if i.status.ended],
            next_due=next_due,
            more=limit in (len(overdue), len(due), len(rested), len(lost), len(expired)),
        )

    async def prune(self, limit: int, after: str | None = None) -> Pruned:  # noqa: ARG002  all in one step
        """See `Queue.prune`."""
        with self._state.lock:
            return Pruned(changed=self._state.drop_lanes())

    async def wait(self, labels: Sequence[str], until: int | None) -> list[Claim]:
        """See `Queue.wait`."""
        await self._state.wakeup.wait(labels, until)
        return []

    def _control(self, command: Command) -> ControlResult:
        if isinstance(command, CancelItems):
            return self._cancel(command.which)
        if isinstance(command, RequeueItems):
            return self._requeue(command.which)
        if isinstance(command, DeleteItems):
            chosen, more = self._choose(command.which, Status.FAILED)
            for item in chosen:
                self._state.forget(item)
            return ControlResult(changed=[item.message.key for item in chosen], more=more)
        if isinstance(command, PauseLabel):
            self._state.paused[command.label] = command.reason
        else:
            self._state.paused.pop(command.label, None)
            self._state.wakeup.notify((command.label,))
        return ControlResult()

    def _check_handled(self, messages: Sequence[Message]) -> None:
        if self._state.limits.refuse_unhandled:
            now = self._clock.now()
            handled = {x for p, until in self._state.workers.values() if until > now for x in p.labels}
            for message in messages:
                if message.label not in handled:
                    raise unhandled(message.label)

    def _check_known(self, messages: Sequence[Message]) -> None:
        known = {message.key for message in messages}
        for message in messages:
            for parent in message.depends_on:
                key = Key(message.user_id, parent)
                if key not in known and key not in self._state.items:
                    raise unknown_parent(parent)

    def _check_labels(self, messages: Sequence[Message]) -> None:
        state = self._state
        new = {message.label for message in messages} - state.labels.keys()
        if new and len(state.labels) + len(new) > state.limits.max_labels:
            state.forget_labels()
            if len(state.labels) + len(new) > state.limits.max_labels:
                raise too_many_labels(min(new), state.limits)

    def _check_limits(self, messages: Sequence[Message]) -> None:
        limits, total, now = self._state.limits, self._state.total, self._clock.now()
        count = len({message.key for message in messages})
        if not count:
            return
        check_depth(limits.total, total.depth + count)
        arrivals = []
        if limits.total.rate is not None:
            arrivals.append((total, next_arrival(limits.total, total.arrival, now, count)))
        for name in dict.fromkeys((m.user_id, m.mem_cube_id) for m in messages):
            tenant = self._state.tenants[name]
            mine = len({m.key for m in messages if (m.user_id, m.mem_cube_id) == name})
            check_depth(limits.tenant, tenant.depth + mine, "/".join(name))
            if limits.tenant.rate is not None:
                arrival = next_arrival(limits.tenant, tenant.arrival, now, mine, "/".join(name))
                arrivals.append((tenant, arrival))
        for scope, arrival in arrivals:
            scope.arrival = arrival

    def _insert(self, messages: Sequence[Message]) -> list[Submitted]:
        """Keep messages, then give them their places, because one may depend on another that comes later."""
        answers, new = [], []
        for message in messages:
            answer, item = self._insert_one(message)
            answers.append(answer)
            new += [] if item is None else [item]
        for item in new:
            self._link(item)
        for item in new:
            self._state.settle_in(item)
        return answers

    def _insert_one(self, message: Message) -> tuple[Submitted, Item | None]:
        state, now = self._state, self._clock.now()
        fingerprint = message.fingerprint()
        known = state.items.get(message.key)
        if known is not None:
            same = known.fingerprint == fingerprint
            return Submitted(message.item_id, "duplicate" if same else "conflict"), None
        if message.unique_key is not None:
            holder = self._make_way(message)
            if holder is not None:
                return Submitted(holder.message.item_id, "duplicate"), None
        item = Item(
            msgspec.structs.replace(
                message,
                level=message.level or level_of(message.label),
                timestamp=message.timestamp or from_epoch_ms(now),
                due=None,
                attempts=0,
                losses=0,
                conflicts=0,
                requeues=0,
            ),
            fingerprint,
            seq=next(state.seqs),
            submitted_at=now,
            due=to_epoch_ms(message.due) if message.due else None,
            deadline=to_epoch_ms(message.deadline) if message.deadline else None,
            waits_for=set(message.depends_on),
            unique_until=now + round(message.unique_window_s * 1000),
        )
        state.add(item)
        state.wakeup.expect(item.deadline)
        if message.unique_key is not None:
            state.uniques[message.lane, message.unique_key].append(item)
        return Submitted(message.item_id, "accepted"), item

    def _make_way(self, message: Message) -> Item | None:
        """Apply a new message's unique policy; answers the holder of its key that replaces it, if any."""
        assert message.unique_key is not None
        now = self._clock.now()
        holders = self._state.uniques[message.lane, message.unique_key]
        waiting = [item for item in holders if item.status is Status.WAITING]
        running = [item for item in holders if item.status is Status.IN_PROGRESS]
        ended = [item for item in holders if item.status.ended and item.unique_until > now]
        if message.unique_policy == "replace":
            for item in waiting:
                self._state.end(item, Status.CANCELLED)
            return None
        moves = message.unique_policy in {"extend", "sooner"}
        if moves and waiting:
            self._reschedule(waiting[-1], message)
            return waiting[-1]
        if moves and running:
            return None
        return next(reversed(ended + running + waiting), None)

    def _reschedule(self, item: Item, message: Message) -> None:
        """Move the due time of a waiting message to that of a new one, by the new one's unique policy."""
        now = self._clock.now()
        due = max(now, to_epoch_ms(message.due) if message.due else now)
        if message.unique_policy == "sooner":
            was_claimed = item.started_at is not None  # what puts it off now is a retry or a snooze
            if was_claimed or item.due is None or item.due <= due:
                return
        elif due > now:
            self._state.leave_place(item)
        if item.place is None:
            item.due = due
            self._state.wakeup.expect(item.due)

    def _link(self, item: Item) -> None:
        """Let a message wait for those it depends on; `finish` sees to those that have ended already."""
        for parent_id in item.message.depends_on:
            parent = self._state.items.get(Key(item.message.user_id, parent_id))
            if parent is None or item.status.ended:  # a parent may have been skipped for its unique key
                item.waits_for.discard(parent_id)
                continue
            self._state.dependants[parent.message.key].append(item.message.key)
            if parent.status.ended:
                self._state.just_ended.append(parent)

    def _claim_label(
        self, request: ClaimRequest, claim_id: str, label: str, want: Want, messages: int
    ) -> list[Claim]:
        state, now = self._state, self._clock.now()
        most = state.limits.total.concurrency
        if most is not None:
            messages = min(messages, most - state.total.running)
        claims: list[Claim] = []
        names = []
        for name in list(state.rings[label]):
            if name not in state.rings[label]:
                continue  # its tenant has become full meanwhile
            if len(claims) >= messages:
                break
            names.append(name)
            del state.rings[label][name]
            lane = state.lanes[name]
            lane.ordered, lane.min_idle_ms = want.ordered, want.min_idle_ms
            if lane.running and lane.ordered:
                continue  # its label was unordered when these messages were claimed
            for item in self._prefix(name, min(want.quantum, messages - len(claims))):
                lane.waiting.popleft()
                state.start(item)
                item.status, item.claim_id = Status.IN_PROGRESS, claim_id
                item.lease_until = now + request.lease_ms
                item.started_at = item.started_at or now
                item.claimed_at, item.worker = now, request.worker
                times = (item.submitted_at, item.waiting_since)
                claims.append(Claim(item.message, claim_id, item.lease_until, (), *times, want.min_idle_ms))
                state.wakeup.expect(item.lease_until)
        for name in names:
            state.wake(name)
        return claims

    def _prefix(self, name: Lane, take: int) -> list[Item]:
        """The messages that a lane gives: its first ones. A message that was lost comes alone."""
        room = self._state.room(name)
        first = list(islice(self._state.lanes[name].waiting, take if room is None else min(take, room)))
        lost = next((index for index, item in enumerate(first) if item.message.losses), len(first))
        return first[: max(1, lost)]

    def _held(self, claim: Claim) -> Item | None:
        """Find the item of a claim; None if the claim is lost."""
        item = self._state.items.get(claim.key)
        return item if item is not None and item.claim_id == claim.claim_id else None

    def _settle_one(self, settlement: Settlement, back: list[Item]) -> Settled:
        item = self._held(settlement.claim)
        if item is None:
            return Settled(state="stale")
        try:
            self._check_known(settlement.follow_ups)
        except InvalidMessageError as error:
            return Settled(state="rejected", error=repr(error))
        self._end_claim(item, settlement, back)
        return Settled(state="applied")

    def _end_claim(self, item: Item, settlement: Settlement, back: list[Item]) -> None:
        """Apply one settlement; a message that goes back to its place in its lane is added to `back`."""
        state, move = self._state, settlement.move
        if move is Move.LOSE:
            back += [lost] if (lost := state.lose(item)) else []
            return
        lane = state.lanes[item.message.lane]
        delay = settlement.delay_ms if move in {Move.RETRY, Move.RELEASE} else 0
        state.release(item, max(lane.min_idle_ms, delay if lane.ordered else 0))
        item.update(
            attempts=item.message.attempts + settlement.attempt,
            conflicts=0 if move is Move.RETRY else item.message.conflicts + settlement.conflict,
        )
        if settlement.conflict:
            item.memos = {step: v for step, v in item.memos.items() if not step.startswith(OF_MEMORY)}
        outcome: Outcome = (
            "cancelled" if item.cancel_requested and move is not Move.COMPLETE else OUTCOME[move]
        )
        if outcome != "handed_back" or settlement.attempt or settlement.error is not None:
            item.note(outcome, self._clock.now(), settlement.error)
        if item.cancel_requested and move is not Move.COMPLETE:
            state.end(item, Status.CANCELLED)
        elif move in END_OF:
            item.place = None
            state.end(item, END_OF[move], settlement.error)
        else:
            item.status, item.error = Status.WAITING, settlement.error
            state.on_moved(item)
            if delay and not lane.ordered:
                item.place, item.due = None, self._clock.now() + delay
                state.wakeup.expect(item.due)
            else:
                back.append(item)
        if item.status in {Status.COMPLETED, Status.FAILED}:
            self._insert(settlement.follow_ups)

    def _fail_overdue(self, limit: int) -> list[Item]:
        now = self._clock.now()
        waiting = (i for i in self._state.items.values() if i.status is Status.WAITING)
        overdue = list(islice((i for i in waiting if i.deadline is not None and i.deadline <= now), limit))
        for item in overdue:
            self._state.end(item, Status.FAILED, "deadline")
        return overdue

    def _choose(self, which: Selection, *statuses: Status) -> tuple[list[Item], bool]:
        found = [
            item
            for item in self._matching(which)
            if item.status in statuses and (which.item_ids is not None or not item.cancel_requested)
        ]
        return found[: which.limit], len(found) > which.limit

    def _matching(self, which: Selection) -> Iterator[Item]:
        for key, item in self._state.items.items():
            if (
                which.user_id in {None, key.user_id}
                and (which.item_ids is None or key.item_id in which.item_ids)
                and which.task_id in {None, item.message.task_id}
                and which.mem_cube_id in {None, item.message.mem_cube_id}
                and which.label in {None, item.message.label}
            ):
                yield item

    def _cancel(self, which: Selection) -> ControlResult:
        chosen, more = self._choose(which, Status.WAITING, Status.IN_PROGRESS)
        changed, requested = [], []
        for item in chosen:
            if item.status is Status.IN_PROGRESS:
                item.cancel_requested = True
                requested.append(item.message.key)
            elif item.status is Status.WAITING:
                self._state.end(item, Status.CANCELLED)
                changed.append(item.message.key)
        if requested:
            self._state.wakeup.notify((CANCELLED,))
        return ControlResult(changed=changed, requested=requested, more=more)

    def _requeue(self, which: Selection) -> ControlResult:
        chosen, more = self._choose(which, Status.FAILED, Status.CANCELLED)
        for item in chosen:
            item.update(attempts=0, losses=0, conflicts=0, requeues=item.message.requeues + 1, deadline=None)
            item.status, item.error, item.deadline = Status.WAITING, None, None
            item.started_at = item.ended_at = item.place = None
            for scope in self._state.scopes(item.message.lane):
                scope.depth += 1
            self._state.settle_in(item)
        return ControlResult(changed=[item.message.key for item in chosen], more=more)


OVERDUE_LIMIT = 1000
"""How many messages past their deadline one claim fails at most."""
