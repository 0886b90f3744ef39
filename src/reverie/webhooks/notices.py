"""Notices: the messages that deliver events to webhooks.

The notice of an event is a follow-up of the settlement that brings the event about, so that both take hold in
one step. Its id derives from the settled message and the webhook: a repeated run gives the same notice.

A person's change of a memory has no settlement. Its notice is submitted before the change, and delivered only
once the change can be seen; see `Notice.change`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from reverie.backends.control import CancelItems, Selection
from reverie.backends.moves import Move
from reverie.base.logs import get_logger
from reverie.effect import Delete, Remember, Revise, Supersede
from reverie.errors import ReverieError
from reverie.failures import FailureKind
from reverie.message import SYSTEM_USER, Message, derived_id, level_of, new_item_id
from reverie.webhooks.records import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim, EndedMessage, Settlement
    from reverie.base.clock import Clock
    from reverie.effect import Effect
    from reverie.models.budgets import SpentBudget
    from reverie.webhooks.records import Webhook, Webhooks

__all__ = ["Change", "Notice", "Notices"]

log = get_logger(__name__)

MOST_IDS = 100
"""The most memories that one delivery names; an event about more of them is several deliveries."""
MOST_REMEMBERED = 10_000
"""Spent budgets that a process remembers to have told of."""
KINDS = {
    Remember: "memory.added",
    Revise: "memory.updated",
    Supersede: "memory.superseded",
    Delete: "memory.deleted",
}
REASONS = frozenset(FailureKind)


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's change of a memory, which the delivery must see before it tells of it."""

    memory_id: str
    version: int
    """The version before the change."""
    until: int
    """When the change can no longer come, in epoch milliseconds."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a message that delivers an event."""

    type: str
    at: int
    """When the event was noted, in epoch milliseconds."""
    data: dict[str, Any]
    """Ids, and never content."""
    change: Change | None = None


class Notices:
    """Makes the notices of one process."""

    def __init__(
        self, webhooks: Webhooks, queue: Queue, clock: Clock, level_of: Callable[[str], int] = level_of
    ) -> None:
        self._webhooks = webhooks
        self._queue = queue
        self._clock = clock
        self._level_of = level_of
        self._budgets_told: set[tuple[str, str, str, str]] = set()

    async def with_notices(
        self, settlements: list[Settlement], move: Literal[Move.COMPLETE, Move.BURY]
    ) -> list[Settlement]:
        """Add the notices of settlements with this move to their follow-ups."""
        webhooks = await self._webhooks.current()
        if not webhooks:
            return settlements
        return [self._told(one, webhooks) if one.move is move else one for one in settlements]

    async def tell_ended(self, ended: Sequence[EndedMessage]) -> None:
        """Submit the notices of messages that have failed without a settlement."""
        webhooks = await self._known("task.failed")
        notices = [
            notice
            for one in ended
            if one.message.label != LABEL
            for notice in self._of_task(
                one.message,
                one.submitted_at,
                "task.failed",
                webhooks,
                reason="killed_worker" if one.message.losses else "deadline",
            )
        ]
        await self._submit(notices)

    async def tell_budget(self, spent: SpentBudget) -> None:
        """Submit the notice that a tenant's budget is spent, once a day. Never fails."""
        told = (spent.user_id, spent.mem_cube_id, spent.day, spent.what)
        if told in self._budgets_told:
            return
        webhooks = await self._known("budget.reached")
        if not webhooks:
            return
        data = {
            "user_id": spent.user_id,
            "mem_cube_id": spent.mem_cube_id,
            "day": spent.day,
            "what": spent.what,
        }
        notice = Notice(type="budget.reached", at=self._clock.now(), data=data)
        if await self._submit(self._notices(notice, (*told, notice.type), webhooks)):
            if len(self._budgets_told) >= MOST_REMEMBERED:
                self._budgets_told.clear()
            self._budgets_told.add(told)

    async def intend(
        self, tenant: tuple[str, str], effect: Effect, within_s: float = 30.0
    ) -> tuple[Message, ...]:
        """Submit the notices of a change that a person is about to make, within the next seconds.

        A change is never refused because its notices cannot be kept.
        """
        if not isinstance(effect, Revise | Delete):
            return ()
        webhooks = await self._known(KINDS[type(effect)])
        if not webhooks:
            return ()
        data = {"user_id": tenant[0], "mem_cube_id": tenant[1], "memory_ids": [effect.memory_id]}
        now = self._clock.now()
        change = Change(
            memory_id=effect.memory_id, version=effect.version, until=now + round(within_s * 1000)
        )
        notice = Notice(type=KINDS[type(effect)], at=now, data=data, change=change)
        notices = tuple(self._notices(notice, (*tenant, effect.memory_id, new_item_id()), webhooks))
        return notices if await self._submit(notices) else ()

    async def withdraw(self, notices: Sequence[Message]) -> None:
        """Cancel the notices of a change that was not made. If that fails, they are dropped in time."""
        if notices:
            which = Selection(user_id=SYSTEM_USER, item_ids=tuple(notice.item_id for notice in notices))
            try:
                await self._queue.control(CancelItems(which))
            except ReverieError as error:
                log.info("webhook.not_withdrawn", error=str(error))

    # -- what is told -----------------------------------------------------------------------------------

    def _told(self, settlement: Settlement, webhooks: Sequence[Webhook]) -> Settlement:
        """A settlement with the notices of what it brings about."""
        claim = settlement.claim
        if claim.message.label == LABEL:  # a delivery that fails must not make further ones
            return settlement
        if settlement.move is Move.COMPLETE:
            notices = [
                *self._of_effects(claim, settlement.effects, webhooks),
                *self._of_task(claim.message, claim.submitted_at, "task.completed", webhooks),
            ]
        else:
            reason = _reason(settlement.error)
            notices = [
                *self._of_task(claim.message, claim.submitted_at, "task.failed", webhooks, reason=reason)
            ]
        if not notices:
            return settlement
        return msgspec.structs.replace(settlement, follow_ups=(*settlement.follow_ups, *notices))

    def _of_effects(
        self, claim: Claim, effects: Sequence[Effect], webhooks: Sequence[Webhook]
    ) -> Iterator[Message]:
        by_event: dict[str, list[Remember | Revise | Supersede | Delete]] = {}
        for effect in effects:
            if isinstance(effect, Remember | Revise | Supersede | Delete):
                by_event.setdefault(KINDS[type(effect)], []).append(effect)
        for event, found in by_event.items():
            for first in range(0, len(found), MOST_IDS):
                some = found[first : first + MOST_IDS]
                data = _of_message(claim.message) | {"memory_ids": [one.memory_id for one in some]}
                if event == "memory.superseded":
                    data["successors"] = [one.successor for one in some if isinstance(one, Supersede)]
                notice = Notice(type=event, at=self._clock.now(), data=data)
                parts = (*_run(claim.message, claim.submitted_at), first, event)
                yield from self._notices(notice, parts, webhooks, claim.message.trace_id)

    def _of_task(
        self,
        message: Message,
        submitted_at: int | None,
        event: str,
        webhooks: Sequence[Webhook],
        **more: str,
    ) -> Iterator[Message]:
        data = _of_message(message) | {"task_id": message.task_id} | more
        notice = Notice(type=event, at=self._clock.now(), data=data)
        parts = (*_run(message, submitted_at), event)
        yield from self._notices(notice, parts, webhooks, message.trace_id)

    def _notices(
        self,
        notice: Notice,
        parts: Sequence[object],
        webhooks: Sequence[Webhook],
        trace_id: str | None = None,
    ) -> Iterator[Message]:
        """The messages that tell webhooks of an event; `parts` tell the event from all others."""
        content = msgspec.json.encode(notice).decode()
        for webhook in webhooks:
            wanted = webhook.wants(notice.type, notice.data["user_id"], notice.data.get("label"))
            if not wanted or webhook.id in self._webhooks.full:
                continue
            yield Message(
                user_id=SYSTEM_USER,
                mem_cube_id=webhook.id,
                label=LABEL,
                content=content,
                item_id=derived_id(*parts, webhook.id),
                trace_id=trace_id,
                level=self._level_of(LABEL),
            )

    async def _known(self, event: str) -> tuple[Webhook, ...]:
        """The webhooks; none if they cannot be read, because the caller must not fail."""
        try:
            return await self._webhooks.current()
        except ReverieError as error:
            log.warning("webhook.dropped", webhook_event=event, error=str(error))
            return ()

    async def _submit(self, notices: Iterator[Message] | Sequence[Message]) -> bool:
        """Submit notices that follow from no settlement; False if they could not be kept."""
        messages = list(notices)
        if messages:
            try:
                await self._queue.submit(messages)
            except ReverieError as error:
                log.warning("webhook.dropped", deliveries=len(messages), error=str(error))
                return False
        return True


def _of_message(message: Message) -> dict[str, Any]:
    return {
        "user_id": message.user_id,
        "mem_cube_id": message.mem_cube_id,
        "label": message.label,
        "item_id": message.item_id,
    }


def _run(message: Message, submitted_at: int | None) -> tuple[object, ...]:
    """What tells one life of a message from the next: it may be requeued, or its id accepted anew."""
    return (*message.key, submitted_at, message.requeues)


def _reason(error: str | None) -> str:
    """The class of a failure, which is all that is told of an error without its text."""
    word = (error or "").partition(":")[0]
    return word if word in REASONS else "failed"
