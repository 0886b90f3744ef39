"""Searches are handed over as `query` messages, best effort: no search waits for that or fails by it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from reverie import AsyncScheduler
from reverie.capture import query_notes
from reverie.capture.query_notes import QueryNotes
from reverie.errors import BackendUnavailableError
from reverie.message import Message
from reverie.settings import load_settings
from reverie.turn import Turn
from support.hashing import HashEmbedder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Queue:
    """Takes messages, and is full or away if told so."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.is_half_full = self.is_away = False
        self.notes = QueryNotes(self.submit, self.half_full)

    async def submit(self, messages: Sequence[Message]) -> None:
        if self.is_away:
            raise BackendUnavailableError("away")
        self.taken += [message.content for message in messages]

    async def half_full(self) -> bool:
        return self.is_half_full

    async def note(self, *texts: str) -> list[str]:
        """Note queries one by one; the answer is what the queue has got."""
        for text in texts:
            self.notes.note([Message(user_id="ann", label="query", content=text)])
        await self.notes.close()
        taken, self.taken = self.taken, []
        return taken


async def test_notes_are_handed_over_in_their_order() -> None:
    assert await Queue().note("a", "b", "c") == ["a", "b", "c"]


async def test_notes_of_a_burst_are_handed_over_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_notes, "REST_S", 60.0)
    queue, times = Queue(), []
    submit = queue.submit

    async def count(messages: Sequence[Message]) -> None:
        times.append(len(messages))
        first.set()
        await submit(messages)

    first = asyncio.Event()
    queue.notes = QueryNotes(count, queue.half_full)
    queue.notes.note([Message(user_id="ann", label="query", content="a")])
    await first.wait()
    assert await queue.note("b", "c", "d") == ["a", "b", "c", "d"]
    assert times == [1, 3]


async def test_notes_are_dropped_while_the_queue_is_half_full_or_away() -> None:
    queue = Queue()
    queue.is_half_full = True
    assert await queue.note("a") == []
    queue.is_half_full, queue.is_away = False, True
    assert await queue.note("b") == []
    queue.is_away = False
    assert await queue.note("c") == ["c"]


async def test_only_so_many_notes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_notes, "MOST_WAITING", 2)
    assert await Queue().note("a", "b", "c") == ["a", "b"]


async def test_a_search_of_a_running_scheduler_is_noted_unless_told_not_to(tmp_path: Path) -> None:
    settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, memory={"embedding": "none"})
    async with AsyncScheduler(settings=settings) as scheduler:
        added = await scheduler.memory.add("I like green tea", user_id="ann")
        await scheduler.wait(added.item_id, user_id="ann", timeout=30)
        await scheduler.memory.search("green", user_id="ann", note=False)
        (hit,) = await scheduler.memory.search("tea", user_id="ann", session_id="s")
        await scheduler.runtime.query_notes.close()
        for item in await scheduler.status("ann"):
            await scheduler.wait(item.item_id, user_id="ann", timeout=30)
        (noted,) = await scheduler.runtime.store.queries(("ann", "ann"))
        assert (noted.query, noted.session_id, noted.found) == ("tea", "s", (hit.item.id,))


async def test_mem_update_indexes_what_the_indexer_has_not_come_to(tmp_path: Path) -> None:
    file = {"url": f"sqlite:///{tmp_path / 'r.db'}"}
    before = AsyncScheduler(settings=load_settings(queue=file, memory={"embedding": "none"}))
    added = await before.memory.add([Turn(content="I like tea"), Turn(content="I like milk")], user_id="ann")
    await before.runtime.drain()
    await before.stop()
    scheduler = AsyncScheduler(settings=load_settings(queue=file))
    scheduler.initialize_modules(embedder=HashEmbedder())
    await scheduler.open()
    content = json.dumps({"memory_ids": [f"{added.item_id}.0"]})
    await scheduler.submit("mem_update", user_id="ann", content=content)
    await scheduler.runtime.drain()
    store = scheduler.runtime.store
    assert await store.index_items(("ann", "ann"), [f"{added.item_id}.0"]) == 0
    assert await store.index_items(("ann", "ann"), [f"{added.item_id}.1"]) == 1
    await scheduler.stop()
