"""The settler: reports to the queue how runs ended, in groups.

With queue and memory in one database, `queue.settle` applies everything in one transaction. With two
databases, the store first applies the effects and writes a row to its inbox, and then the queue settles. If
the message runs again, the store finds the row and does not apply the effects twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.interface import TakesIn
from reverie.backends.moves import Move, Settlement
from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import ReverieError
from reverie.memory.interface import Application

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.moves import Claim
    from reverie.memory.interface import Applied, EffectStore
    from reverie.message import Lane
    from reverie.webhooks.notices import Notices

__all__ = ["Settler"]

log = get_logger(__name__)

UNSETTLEABLE = "bug: the handler's answer could not be written"
ENDING = {Move.COMPLETE, Move.CANCEL, Move.BURY}
"""Moves that end a message: the store must know of them."""
REFUSED_BY_STORE = "bug: the effects could not be applied"
REFUSED_BY_QUEUE = "bug: the answer could not be kept"
GROUP_LIMIT = 500
"""The most settlements in one step."""
LEAST_GROUP = 16
"""How many settlements a step may have in any case: each step waits for the disk."""
STEP_S = 0.02
"""How long a step should take while messages are taken in: their senders wait until it is written."""
CALM_STEP_S = 0.2
"""How long a step should take while nobody waits for it. Large groups cost less for each settlement."""


class Settler(LoopService):
    """Collects settlements, and reports all that have come in together."""

    name = "settler"

    def __init__(
        self,
        backend: Backend,
        store: EffectStore,
        on_settled: Callable[[Sequence[Settlement], Sequence[Settlement]], None],
        on_conflict: Callable[[Claim, str | None], Settlement],
        lease_end: Callable[[Claim], int] = lambda claim: claim.lease_until,
        *,
        notices: Notices | None = None,
    ) -> None:
        """Settle on `backend`; `on_settled` is called with the applied settlements and the stale ones.

        `on_conflict` answers the settlement of a message whose effects met another version of an item.
        `lease_end` knows when the lease of a claim ends after its renewals. `notices` adds the messages that
        tell webhooks of what is settled.
        """
        super().__init__()
        self._queue = backend.queue
        self._intake = backend.queue if isinstance(backend.queue, TakesIn) else None
        self._store = None if backend.capabilities.applies_effects else store
        self._on_settled = on_settled
        self._on_conflict = on_conflict
        self._lease_end = lease_end
        self._notices = notices
        self._pending: deque[Settlement] = deque()
        self._cost_s = STEP_S / LEAST_GROUP
        """How many seconds a settlement takes, as the last step has shown."""
        self._singly = 0
        """How many of the first in `_pending` are settled one by one: they could not be sent together."""
        self._news = asyncio.Event()

    def put(self, settlements: Sequence[Settlement]) -> None:
        """Report these settlements with the next group."""
        self._pending.extend(settlements)
        self._news.set()

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`. Pending settlements are reported first."""
        await super().stop(grace_s)
        try:
            await self.flush()
        except Exception as error:  # noqa: BLE001  leases run out, messages run again
            log.warning("settler.left_unsettled", settlements=len(self._pending), error=str(error))

    async def flush(self) -> None:
        """Report all pending settlements."""
        while self._pending:
            size = 1 if self._singly else min(self._group_size(), len(self._pending))
            self._singly = max(0, self._singly - 1)
            group = [self._pending.popleft() for _ in range(size)]
            began = time.monotonic()
            try:
                await self._settle_or_split(group)
                if size >= LEAST_GROUP:  # fewer have mostly waited for the disk
                    self._cost_s = (time.monotonic() - began) / size
            except BaseException:
                self._pending.extendleft(reversed(group))  # if they were settled after all: stale next time
                raise

    def _group_size(self) -> int:
        """How many settlements the next step may have."""
        is_awaited = self._intake is not None and self._intake.takes_in
        step_s = STEP_S if is_awaited else CALM_STEP_S
        return max(LEAST_GROUP, min(GROUP_LIMIT, int(step_s / max(self._cost_s, 1e-9))))

    async def _settle_or_split(self, group: list[Settlement]) -> None:
        """Settle a group; if one settlement cannot even be sent, let the next turns settle them one by one.

        They wait with all the others, because a conflict of one settlement concerns those after it.
        """
        try:
            await self._settle(group)
        except (ReverieError, OSError):
            raise  # the backend is away: the whole group is tried again later
        except Exception as error:
            if len(group) > 1:
                self._pending.extendleft(reversed(group))
                self._singly = len(group)
            elif group[0].move is Move.BURY and group[0].error == UNSETTLEABLE:
                raise  # not even this can be written: the message is not the cause
            else:
                log.warning(
                    "settlement.impossible", item_id=group[0].claim.message.item_id, error=repr(error)
                )
                claim = group[0].claim
                await self._settle_or_split([Settlement(claim=claim, move=Move.BURY, error=UNSETTLEABLE)])

    async def _turn(self) -> None:
        if not self._pending:  # otherwise the last turn failed, and there may be no news
            await self._until_stopped(self._news.wait())
        self._news.clear()
        await self.flush()

    async def _settle(self, group: list[Settlement]) -> None:
        rejected: list[tuple[Settlement, str]] = []
        if self._notices is not None:  # before the store applies them: its inbox keeps the follow-ups
            group = await self._notices.with_notices(group, Move.COMPLETE)
        if self._store is not None:
            group = await self._apply(self._store, group, rejected)
            failpoint("between_effects_and_settle")
        if self._notices is not None:  # after it: the store may know that a message was closed
            group = await self._notices.with_notices(group, Move.BURY)
        answers = await self._queue.settle(group)
        failpoint("after_settle")
        applied, stale, conflicts = [], [], []
        for settlement, answer in zip(group, answers, strict=True):
            if answer.state == "applied":
                applied.append(settlement)
            elif answer.state == "conflict":
                conflicts.append((settlement, answer.error))
            elif answer.state == "rejected":
                rejected.append((settlement, f"{REFUSED_BY_QUEUE}: {answer.error}"))
            else:
                user_id, item_id = settlement.claim.key
                log.warning("settlement.stale", user_id=user_id, item_id=item_id)
                stale.append(settlement)
        self._on_settled(applied, stale)
        if conflicts:
            self._hand_back(conflicts)
        for settlement, reason in rejected:  # it would be rejected again: bury the message at once
            log.error("settlement.rejected", item_id=settlement.claim.message.item_id, error=reason)
            self.put([Settlement(claim=settlement.claim, move=Move.BURY, error=reason)])

    def _hand_back(self, conflicts: Sequence[tuple[Settlement, str | None]]) -> None:
        """Hand back the messages that met a conflict, and those that follow them in their lanes."""
        lanes: set[Lane] = set()
        back = [self._after_conflict(settlement, error, lanes) for settlement, error in conflicts]
        waiting = [
            _released(settlement) if settlement.claim.lane in lanes else settlement
            for settlement in self._pending
        ]
        self._pending = deque([*back, *waiting])
        self._news.set()

    def _after_conflict(self, settlement: Settlement, error: str | None, lanes: set[Lane]) -> Settlement:
        """The new settlement of a message with a conflict, or of one that follows it in its lane."""
        lane = settlement.claim.lane
        if lane in lanes:
            return _released(settlement)
        lanes.add(lane)
        return self._on_conflict(settlement.claim, error)

    async def _apply(
        self, store: EffectStore, group: list[Settlement], rejected: list[tuple[Settlement, str]]
    ) -> list[Settlement]:
        """Let the store apply the settlements that end messages; the answer is what the queue must settle.

        Settlements that the store rejects are added to `rejected`.
        """
        ending = [settlement for settlement in group if _concerns_store(settlement)]
        if not ending:
            return group
        applied = await store.apply(
            [
                Application(
                    message=settlement.claim.message,
                    effects=settlement.effects,
                    prepared=settlement.prepared,
                    follow_ups=settlement.follow_ups,
                    close=settlement.move is not Move.COMPLETE,
                    submitted_at=settlement.claim.submitted_at,
                    lease_until=self._lease_end(settlement.claim),
                )
                for settlement in ending
            ]
        )
        answers = {id(settlement): answer for settlement, answer in zip(ending, applied, strict=True)}
        lanes: set[Lane] = set()
        to_settle = []
        for settlement in group:
            answer = answers.get(id(settlement))
            if settlement.claim.lane in lanes or (answer is not None and answer.state == "conflict"):
                error = None if answer is None else answer.error
                to_settle.append(self._after_conflict(settlement, error, lanes))
            elif answer is None:
                to_settle.append(settlement)
            elif answer.state == "rejected":
                rejected.append((settlement, f"{REFUSED_BY_STORE}: {answer.error}"))
            elif answer.state == "stale":
                log.warning("effects.too_late", item_id=settlement.claim.message.item_id, error=answer.error)
                to_settle.append(Settlement(claim=settlement.claim, move=Move.LOSE))
            else:
                to_settle.append(_as_applied(settlement, answer))
        if lanes:
            self._pending = deque(
                _released(settlement) if settlement.claim.lane in lanes else settlement
                for settlement in self._pending
            )
        return to_settle


def _released(settlement: Settlement) -> Settlement:
    """Release a message as if it had not run."""
    return Settlement(claim=settlement.claim, move=Move.RELEASE, attempt=False)


def _concerns_store(settlement: Settlement) -> bool:
    """Whether the store must know of a settlement: it ends a message that another run may have begun to end.

    The store need not know if it has already applied what the queue then refused. It need not know of a
    message that completes without effects, losses and requeues either: another run would have cost the
    message a loss, or a person would have requeued it.
    """
    if settlement.move not in ENDING:
        return False
    if settlement.error is not None and settlement.error.startswith(REFUSED_BY_QUEUE):
        return False
    message = settlement.claim.message
    has_effects = settlement.effects or settlement.follow_ups
    return not (
        settlement.move is Move.COMPLETE and not has_effects and message.losses == message.requeues == 0
    )


def _as_applied(settlement: Settlement, answer: Applied) -> Settlement:
    """The settlement that the store's inbox records: an earlier run may have decided otherwise."""
    if answer.state == "closed":
        move = settlement.move if settlement.move is not Move.COMPLETE else Move.BURY
        error = settlement.error or answer.error or "closed by an earlier run"
        return msgspec.structs.replace(settlement, move=move, effects=(), follow_ups=(), error=error)
    follow_ups = answer.follow_ups
    return msgspec.structs.replace(
        settlement, move=Move.COMPLETE, effects=(), follow_ups=follow_ups, error=None
    )
