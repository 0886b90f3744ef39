"""The settler: reports how runs ended, in groups.

Queue and memory in one database: `queue.settle` applies everything in one transaction. In two: the store
applies the effects with a row in its inbox, then the queue settles; whoever comes again finds the row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.moves import Move, Settlement
from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.service import LoopService
from reverie.errors import ReverieError
from reverie.memory.interface import Application

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Backend
    from reverie.memory.interface import Applied, EffectStore

    Rejected = tuple[Settlement, str | None]

__all__ = ["Settler"]

log = get_logger(__name__)

UNSETTLEABLE = "bug: the handler's answer could not be written"
ENDING = {Move.COMPLETE, Move.CANCEL, Move.BURY}
"""Moves after which the store must know that a message has ended."""
REFUSED_BY_STORE = "bug: the effects could not be applied"
REFUSED_BY_QUEUE = "bug: the answer could not be kept"
GROUP_LIMIT = 500
"""How many settlements share one step."""


class Settler(LoopService):
    """Takes settlements as they come and reports them together."""

    name = "settler"

    def __init__(
        self,
        backend: Backend,
        store: EffectStore,
        on_settled: Callable[[Sequence[Settlement], Sequence[Settlement]], None],
    ) -> None:
        """Settle on `backend`; `on_settled` hears of settlements that took hold, and of those too late to."""
        super().__init__()
        self._queue = backend.queue
        self._store = None if backend.capabilities.applies_effects else store
        self._on_settled = on_settled
        self._pending: deque[Settlement] = deque()
        self._news = asyncio.Event()

    def put(self, settlements: Sequence[Settlement]) -> None:
        """Report these with the next group."""
        self._pending.extend(settlements)
        self._news.set()

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`. What is still pending is settled first."""
        await super().stop(grace_s)
        try:
            await self.flush()
        except Exception as error:  # noqa: BLE001  their leases run out, and others run them again
            log.warning("settler.left_unsettled", settlements=len(self._pending), error=str(error))

    async def flush(self) -> None:
        """Settle everything that was given so far."""
        while self._pending:
            group = [self._pending.popleft() for _ in range(min(GROUP_LIMIT, len(self._pending)))]
            try:
                await self._settle_or_split(group)
            except BaseException:
                self._pending.extendleft(reversed(group))  # the next try may find them settled: then stale
                raise

    async def _settle_or_split(self, group: list[Settlement]) -> None:
        """Settle a group; if something in it cannot even be sent, settle its neighbours without it."""
        try:
            await self._settle(group)
        except (ReverieError, OSError):
            raise  # the backend is away: all of it again, later
        except Exception as error:
            if len(group) > 1:
                for settlement in group:
                    await self._settle_or_split([settlement])
            elif group[0].move is Move.BURY and group[0].error == UNSETTLEABLE:
                raise  # not even this can be written: it is not the message's fault
            else:
                log.warning(
                    "settlement.impossible", item_id=group[0].claim.message.item_id, error=repr(error)
                )
                claim = group[0].claim
                await self._settle_or_split([Settlement(claim=claim, move=Move.BURY, error=UNSETTLEABLE)])

    async def _turn(self) -> None:
        if not self._pending:  # else the last turn failed, and nobody may bring news of it
            await self._until_stopped(self._news.wait())
        self._news.clear()
        await self.flush()

    async def _settle(self, group: list[Settlement]) -> None:
        rejected: list[Rejected] = []
        if self._store is not None:
            group, rejected = await self._apply(self._store, group)
            failpoint("between_effects_and_settle")
        answers = await self._queue.settle(group)
        failpoint("after_settle")
        applied, stale = [], []
        for settlement, answer in zip(group, answers, strict=True):
            if answer.state == "rejected":
                self._bury(settlement, f"{REFUSED_BY_QUEUE}: {answer.error}")
                continue
            if answer.state == "stale":
                user_id, item_id = settlement.claim.key
                log.warning("settlement.stale", user_id=user_id, item_id=item_id)
                stale.append(settlement)
            else:
                applied.append(settlement)
        self._on_settled(applied, stale)
        for settlement, error in rejected:
            self._bury(settlement, f"{REFUSED_BY_STORE}: {error}")

    async def _apply(
        self, store: EffectStore, group: list[Settlement]
    ) -> tuple[list[Settlement], list[Rejected]]:
        """Let the store apply what ends; answer the settlements as they now stand, and the rejected ones."""
        standing: list[Settlement] = []
        ending: list[Settlement] = []
        for settlement in group:
            (ending if _concerns_store(settlement) else standing).append(settlement)
        if not ending:
            return standing, []
        applied = await store.apply(
            [
                Application(
                    message=settlement.claim.message,
                    effects=settlement.effects,
                    follow_ups=settlement.follow_ups,
                    close=settlement.move is not Move.COMPLETE,
                )
                for settlement in ending
            ]
        )
        rejected = []
        for settlement, answer in zip(ending, applied, strict=True):
            if answer.state == "rejected":
                rejected.append((settlement, answer.error))
            else:
                standing.append(_as_applied(settlement, answer))
        return standing, rejected

    def _bury(self, settlement: Settlement, reason: str) -> None:
        """What cannot be written would be rejected again: its message is buried at once."""
        log.error("settlement.rejected", item_id=settlement.claim.message.item_id, error=reason)
        self.put([Settlement(claim=settlement.claim, move=Move.BURY, error=reason)])


def _concerns_store(settlement: Settlement) -> bool:
    """Whether the store must know of it; not if the queue has refused what the store has applied already."""
    refused = settlement.error is not None and settlement.error.startswith(REFUSED_BY_QUEUE)
    return settlement.move in ENDING and not (refused or _is_alone(settlement))


def _is_alone(settlement: Settlement) -> bool:
    """Whether it completes a message with nothing to apply that no other run can have begun to complete.

    Another run, before it or beside it, would have cost the message a loss or come from a person's hand.
    """
    message = settlement.claim.message
    return (
        settlement.move is Move.COMPLETE
        and not (settlement.effects or settlement.follow_ups)
        and message.losses == message.requeues == 0
    )


def _as_applied(settlement: Settlement, answer: Applied) -> Settlement:
    """The settlement as the store's inbox has it: an earlier run may have decided otherwise."""
    if answer.state == "closed":
        move = settlement.move if settlement.move is not Move.COMPLETE else Move.BURY
        error = settlement.error or "closed by an earlier run"
        return msgspec.structs.replace(settlement, move=move, effects=(), follow_ups=(), error=error)
    follow_ups = answer.follow_ups
    return msgspec.structs.replace(
        settlement, move=Move.COMPLETE, effects=(), follow_ups=follow_ups, error=None
    )
