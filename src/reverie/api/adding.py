"""What `POST /product/add` does: hand turns over and, if asked, wait until they and their facts are found."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.api.memory_shape import type_of
from reverie.api.settling import Waiting, check_worker
from reverie.backends.moves import Status
from reverie.capture.documents import read_document
from reverie.capture.intake import add_message
from reverie.errors import InvalidMessageError, ItemTakenError
from reverie.memory.buffers import READING
from reverie.memory.interface import KeepsIndex
from reverie.message import Message, check_message, content_text, new_item_id
from reverie.turn import DEFAULT_SESSION, memory_id_of, read_turns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastapi import Request

    from reverie.api.answers import Added
    from reverie.api.models import AddRequest
    from reverie.backends.moves import Submitted
    from reverie.backends.views import ItemStatus
    from reverie.face.scheduler import AsyncScheduler
    from reverie.turn import Turn

__all__ = ["Additions", "add_now", "add_soon", "messages_of", "submit_new"]


class Additions(NamedTuple):
    """The entries of the answer, and a sentence about them."""

    entries: list[Added]
    message: str = "ok"


async def messages_of(scheduler: AsyncScheduler, request: AddRequest) -> list[Message]:
    """One message for each cube that the request writes into."""
    turns: list[Turn] = request.turns
    if request.doc_path:
        settings = scheduler.runtime.settings
        folder = settings.documents_folder
        turns += await asyncio.to_thread(
            read_document,
            None if folder is None else folder.expanduser(),
            request.doc_path,
            settings.limits.max_content_bytes,
        )
    message = add_message(
        turns,
        user_id=request.user_id,
        item_id=request.item_id or new_item_id(),
        session_id=request.session_id or DEFAULT_SESSION,
        task_id=request.task_id,
        info=request.full_info,
    )
    limits = scheduler.runtime.limits
    if len(message.content) > limits.max_content_bytes:
        check_message(message, limits)  # before it is copied, it is refused
    first, *others = request.cubes
    return [
        msgspec.structs.replace(message, mem_cube_id=first),
        *(msgspec.structs.replace(message, mem_cube_id=cube, item_id=new_item_id()) for cube in others),
    ]


async def add_soon(scheduler: AsyncScheduler, messages: Sequence[Message]) -> Additions:
    """Hand messages over; they are kept when this returns."""
    spools = scheduler.runtime.settings.spool.submits
    receipts = await submit_new(scheduler, messages, spools=spools)
    entries = [
        entry
        for message, receipt in zip(messages, receipts, strict=True)
        for entry in _entries(message, receipt.status)
    ]
    return Additions(entries)


async def add_now(
    scheduler: AsyncScheduler, client: Request, messages: Sequence[Message], *, with_facts: bool
) -> Additions:
    """Hand messages over, and wait until a search finds them, as long as the time allows.

    With `with_facts`, also wait until a language model, if there is one, has read them for facts.
    """
    await check_worker(scheduler, "add")
    waiting = Waiting(scheduler, client)
    await submit_new(scheduler, messages)
    ended = await waiting.settled(messages)
    written = [message for message in messages if _is_written(ended.get(message.key))]
    for message in written:
        await _index(scheduler, message)
    entries: list[Added] = []
    for message in messages:
        item = ended.get(message.key)
        gone = await _deleted(scheduler, message) if _is_written(item) else set()
        entries += _entries(message, _status(item), gone)
    if len(ended) < len(messages):
        allowed = scheduler.runtime.settings.server.sync_timeout_s
        return Additions(entries, f"kept, and not settled after {allowed:g} s (server.sync_timeout_s)")
    if not with_facts or not written:
        return Additions(entries)
    is_read = await _extract(scheduler, waiting, written)
    entries += [entry for message in written for entry in await _facts_of(scheduler, message)]
    return Additions(entries, "ok" if is_read else "added; its facts are extracted later")


async def submit_new(
    scheduler: AsyncScheduler, messages: Sequence[Message], *, spools: bool = False
) -> list[Submitted]:
    """Hand messages over that a route has made of a request, if there are any.

    `ItemTakenError` if one has the id of another message.
    """
    if not messages:
        return []
    most = scheduler.runtime.settings.server.max_body_bytes
    size = sum(len(message.content) for message in messages)
    if len(messages) > 1 and size > most:
        reason = f"these are {size} characters for all cubes or users together, at most {most} are allowed"
        raise InvalidMessageError("messages", messages[0].content, f"{reason} (server.max_body_bytes)")
    receipts = await scheduler.runtime.intake.submit(messages, spools=spools, vetted=True)
    if any(receipt.status == "conflict" for receipt in receipts):
        raise ItemTakenError(messages[0].item_id)
    return receipts


async def _deleted(scheduler: AsyncScheduler, message: Message) -> set[str]:
    """The memories of a message that were deleted since: the request, or its id, is an old one."""
    store, ids = scheduler.runtime.store, _ids_of(message)
    present = {item.id for item in await store.items(message.tenant, ids)}
    missing = [memory_id for memory_id in ids if memory_id not in present]
    return {memory_id for memory_id in missing if await store.is_deleted(message.user_id, memory_id)}


async def _index(scheduler: AsyncScheduler, message: Message) -> None:
    """Index the memories of a message whose words or vectors were late."""
    store = scheduler.runtime.store
    if isinstance(store, KeepsIndex):
        await store.index_items(message.tenant, _ids_of(message))


async def _extract(scheduler: AsyncScheduler, waiting: Waiting, written: Sequence[Message]) -> bool:
    """Let the turns of messages be read for facts now; False if they are read later."""
    runtime = scheduler.runtime
    if not runtime.reads_buffers:
        return True
    labels = {state.label: state for state in await runtime.backend.views.labels()}
    state = labels.get(READING)
    spent = {(budget.user_id, budget.mem_cube_id) for budget in runtime.gateway.budgets_spent()}
    if (state is not None and state.paused) or any(message.tenant in spent for message in written):
        return False
    readings = [
        Message(
            user_id=message.user_id,
            mem_cube_id=message.mem_cube_id,
            label=READING,
            session_id=message.session_id,
            content=content_text({"blob_type": "chat", "blob_ids": _ids_of(message)}, runtime.limits),
        )
        for message in written
    ]
    await runtime.intake.submit(readings, notes=False, vetted=True)
    ended = await waiting.settled(readings)
    return all(_is_written(ended.get(reading.key)) for reading in readings)


async def _facts_of(scheduler: AsyncScheduler, message: Message) -> list[Added]:
    """The facts that were extracted from the turns of a message."""
    found = {}
    for memory_id in _ids_of(message):
        for link in await scheduler.runtime.reads.links(message.user_id, memory_id):
            if link.relation == "derived_from" and not link.outgoing:
                found[link.item.id] = link.item
    return [
        {
            "memory": item.text,
            "memory_id": item.id,
            "memory_type": type_of(item),
            "cube_id": item.mem_cube_id,
            "item_id": message.item_id,
            "status": "activated",
        }
        for item in found.values()
    ]


def _ids_of(message: Message) -> list[str]:
    turns = read_turns(message.content)
    return [memory_id_of(message, index) for index, turn in enumerate(turns) if turn.content.strip()]


def _entries(message: Message, status: str, deleted: Collection[str] = ()) -> list[Added]:
    """One entry for each turn of a message that becomes a memory; `deleted` names those that are gone."""
    return [
        {
            "memory": turn.content,
            "memory_id": memory_id_of(message, index),
            "memory_type": "LongTermMemory",
            "cube_id": message.mem_cube_id,
            "item_id": message.item_id,
            "status": "deleted" if memory_id_of(message, index) in deleted else status,
        }
        for index, turn in enumerate(read_turns(message.content))
        if turn.content.strip()
    ]


def _is_written(item: ItemStatus | None) -> bool:
    return item is not None and item.status is Status.COMPLETED


def _status(item: ItemStatus | None) -> str:
    """The word for a message that was waited for: activated, resolving, failed or cancelled."""
    if item is None:
        return "resolving"
    return "activated" if _is_written(item) else str(item.status)
