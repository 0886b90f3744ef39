"""`scheduler.buffers`: what is put there is kept, is read when it is full or old, and can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reverie import Done, Link, Message, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.effect import BufferDone
from reverie.errors import InvalidMessageError, InvalidSelectionError, MemoryDeletedError, WaitTimeoutError
from reverie.memory.buffers import BufferKey, NoBuffersError
from reverie.models.interface import Completion, ModelMissingError, Models
from reverie.settings import load_settings
from reverie.testing import ManualClock, assert_enqueued, drain, enqueued

MAX_TOKENS = 20


class Parrot:
    """A language model that is never asked."""

    async def complete(self, prompt, *, schema=None, idempotency_key=None) -> Completion:
        return Completion(text="hello")


def new_scheduler(tmp_path: Path, clock: ManualClock, **buffer) -> Scheduler:
    file = f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": file, "durability": "normal"},
        memory={"url": file, "embedding": "none"},
        buffer={"max_tokens": MAX_TOKENS, "max_age_s": 100, **buffer},
        data_dir=tmp_path / "data",
    )
    return Scheduler(settings=settings, clock=clock)


@pytest.fixture
def without_model(tmp_path: Path, clock: ManualClock):
    scheduler = new_scheduler(tmp_path, clock)
    yield scheduler
    scheduler.close()


@pytest.fixture
def scheduler(without_model: Scheduler) -> Scheduler:
    """A scheduler with a language model, and a simple handler of `mem_read`."""
    without_model.initialize_modules(language_model=Parrot())

    @without_model.handler("mem_read")
    async def read(message: Message, ctx) -> Done:
        asked = json.loads(message.content)
        blobs = asked.get("blob_ids", ())
        claim = await ctx.buffers.claim(asked["blob_type"], max_tokens=MAX_TOKENS, blob_ids=blobs)
        if not claim.rows:
            return Done()
        name = f"fact-{claim.rows[0].blob_id}"
        return Done(
            effects=[
                Remember(memory_id=name, text=" ".join(row.content for row in claim.rows)),
                *(Link(source_id=name, relation="derived_from", target_id=row.blob_id) for row in claim.rows),
                BufferDone(token=claim.token, buffer_ids=tuple(row.buffer_id for row in claim.rows)),
            ]
        )

    return without_model


def statuses(scheduler: Scheduler, **which) -> list[str]:
    return [row.status for row in scheduler.buffers.rows("ann", **which)]


def test_what_is_inserted_is_a_memory_and_a_row(scheduler: Scheduler, clock: ManualClock) -> None:
    blob_id = scheduler.buffers.insert("ann", "I like tea")
    item = scheduler.memory.get(blob_id, user_id="ann")
    assert (item.text, item.kind, item.mem_cube_id) == ("I like tea", "turn", "ann")
    (row,) = scheduler.buffers.rows("ann")
    assert (row.blob_id, row.content, row.status, row.buffer_size) == (blob_id, "I like tea", "idle", 3)
    (waiting,) = enqueued(scheduler, "mem_read", user_id="ann")
    assert json.loads(waiting.content) == {"blob_type": "chat"}
    clock.advance(99)
    drain(scheduler)
    assert statuses(scheduler) == ["idle"]
    clock.advance(1)
    drain(scheduler)
    assert statuses(scheduler) == ["done"]


def test_repeating_an_insert_changes_nothing(scheduler: Scheduler) -> None:
    for _ in range(2):
        assert scheduler.buffers.insert("ann", "I like tea", "office", blob_id="a") == "a"
    assert len(scheduler.buffers.rows("ann", "office")) == 1
    assert scheduler.buffers.rows("ann") == []
    with pytest.raises(InvalidMessageError, match="taken by another text or cube"):
        scheduler.buffers.insert("ann", "I like coffee", "office", blob_id="a")
    assert_enqueued(scheduler, "mem_read", user_id="ann", mem_cube_id="office", count=1)


def test_a_full_buffer_is_read_at_once(scheduler: Scheduler) -> None:
    ids = [scheduler.buffers.insert("ann", "ten tokens, that is forty characters or so")]
    assert scheduler.buffers.detect_buffer_full_or_not("ann") == {"is_full": False, "buffer_full_ids": []}
    ids.append(scheduler.buffers.insert("ann", "ten tokens, that is forty characters again"))
    full = {"is_full": True, "buffer_full_ids": ids}
    assert scheduler.buffers.detect_buffer_full_or_not("ann") == full
    assert scheduler.buffers.detect_buffer_full_or_not("ann", blob_type="chat") == full
    assert not scheduler.buffers.detect_buffer_full_or_not("bob")["is_full"]
    drain(scheduler)
    assert "done" in statuses(scheduler)


def test_a_flush_reads_a_buffer_now(scheduler: Scheduler) -> None:
    scheduler.buffers.insert("ann", "I like tea")
    receipt = scheduler.buffers.flush("ann")
    assert_enqueued(scheduler, "mem_read", user_id="ann", count=1)  # the one that was due later
    drain(scheduler)
    assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED
    assert statuses(scheduler) == ["done"]


def test_chosen_blobs_are_processed(scheduler: Scheduler) -> None:
    for name in "abc":
        scheduler.buffers.insert("ann", f"text of {name}", blob_id=name)
    with scheduler:
        answer = scheduler.buffers.process_buffer("ann", "chat", ["b", "c"])
    assert (answer.status, answer.memory_ids, answer.error) == (Status.COMPLETED, ("fact-b",), None)
    assert [row.blob_id for row in scheduler.buffers.rows("ann", status="done")] == ["b", "c"]
    assert [row.blob_id for row in scheduler.buffers.rows("ann", status="idle")] == ["a"]


def test_waiting_for_a_worker_has_an_end(scheduler: Scheduler) -> None:
    scheduler.buffers.insert("ann", "text", blob_id="a")
    with pytest.raises(WaitTimeoutError):
        scheduler.buffers.process_buffer("ann", "chat", ["a"], timeout=0)


def test_rows_that_were_given_up_are_tried_again(scheduler: Scheduler, clock: ManualClock) -> None:
    scheduler.buffers.insert("ann", "text")
    scheduler.handler("spoil")(spoil)
    for _ in range(3):
        scheduler.submit("spoil", user_id="ann")
    drain(scheduler)
    assert statuses(scheduler, status="failed") == ["failed"]
    clock.advance(200)
    drain(scheduler)  # finds nothing to read
    assert scheduler.buffers.retry_failed("ann") == 1
    assert scheduler.buffers.retry_failed("ann") == 0
    drain(scheduler)
    assert statuses(scheduler) == ["done"]


async def spoil(_: Message, ctx) -> None:
    await ctx.buffers.release(await ctx.buffers.claim(max_tokens=100), "no sense in it")


def test_the_default_cube_is_used(scheduler: Scheduler) -> None:
    scheduler.init_mem_cube("office")
    scheduler.buffers.insert("ann", "text")
    assert len(scheduler.buffers.rows("ann", "office")) == 1


def test_without_a_language_model_rows_wait(without_model: Scheduler) -> None:
    without_model.buffers.insert("ann", "a text that is long enough to make the buffer full" * 5)
    assert without_model.buffers.detect_buffer_full_or_not("ann")["is_full"]
    assert_enqueued(without_model, "mem_read", user_id="ann", count=0)
    for call in (
        lambda: without_model.buffers.flush("ann"),
        lambda: without_model.buffers.process_buffer("ann", "chat", ["a"]),
    ):
        with pytest.raises(ModelMissingError, match=r"no language model is set up: set llm\.preset"):
            call()


def test_a_buffer_is_full_by_age_too_and_rows_whose_run_was_lost_wait_in_it(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    buffers = scheduler.buffers
    buffers.insert("ann", "text", blob_id="a")
    clock.advance(99)
    assert buffers.detect_buffer_full_or_not("ann") == {"is_full": False, "buffer_full_ids": []}
    clock.advance(1)
    buffers.insert("ann", "more", blob_id="b")
    assert buffers.detect_buffer_full_or_not("ann") == {"is_full": True, "buffer_full_ids": ["a", "b"]}
    store, key = scheduler.runtime.store, BufferKey("ann", "ann")
    scheduler.run(store.claim_buffer(key, "lost", lease_ms=1000, max_tokens=1))
    assert buffers.detect_buffer_full_or_not("ann") == {"is_full": False, "buffer_full_ids": []}
    clock.advance(1)
    assert buffers.detect_buffer_full_or_not("ann") == {"is_full": True, "buffer_full_ids": ["a", "b"]}


def test_a_cluster_reads_for_itself(tmp_path: Path, clock: ManualClock) -> None:
    with new_scheduler(tmp_path, clock, processor="cluster").used() as scheduler:
        scheduler.initialize_modules(language_model=Parrot())
        scheduler.buffers.insert("ann", "text")
        assert_enqueued(scheduler, "mem_read", user_id="ann", count=0)


def test_what_cannot_be_is_refused(scheduler: Scheduler) -> None:
    buffers = scheduler.buffers
    for call, field in (
        (lambda: buffers.insert("ann", " "), "content"),
        (lambda: buffers.insert("_system", "text"), "user_id"),
        (lambda: buffers.insert("ann", "text", blob_type="film"), "blob_type"),
        (lambda: buffers.insert("ann", "text", blob_id="a" * 10_000), "memory_id"),
        (lambda: buffers.flush("ann", blob_type="film"), "blob_type"),
    ):
        with pytest.raises(InvalidMessageError, match=field):
            call()
    for call in (
        lambda: buffers.process_buffer("ann", "chat", []),
        lambda: buffers.rows("ann", limit=0),
        lambda: buffers.rows("ann", status="lost"),
    ):
        with pytest.raises(InvalidSelectionError):
            call()
    buffers.insert("ann", "text", blob_id="a")
    scheduler.memory.delete("a", user_id="ann")
    with pytest.raises(MemoryDeletedError):
        buffers.insert("ann", "text", blob_id="a")
    assert buffers.rows("ann") == []


class Forgetful:
    """A store that keeps no buffers."""

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return


def test_a_store_without_buffers_is_named(scheduler: Scheduler) -> None:
    scheduler.runtime.store = Forgetful()
    with pytest.raises(NoBuffersError, match="Forgetful keeps no buffers"):
        scheduler.buffers.rows("ann")


async def test_tokens_are_counted_by_the_embedder_if_it_can(clock: ManualClock) -> None:
    class Counting:
        name = "counting"

        async def embed(self, texts):
            return [[1.0] for _ in texts]

        def count_tokens(self, text: str) -> int:
            return 42

    assert await Models(Counting()).count_tokens(["four letters"]) == [42]
    assert await Models().count_tokens(["four letters", "我住在里斯本"]) == [3, 6]
