"""A change of the tokenizer or the embedder, an embedder that fails, and an index that is damaged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie import Message, Remember, Revise, Supersede
from reverie.memory.interface import Application
from reverie.models.wordllama import WordLlamaEmbedder
from support.agreement import assert_agreement
from support.hashing import HashEmbedder
from support.memory_bench import Bench, open_file

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock

COUNT = 400
SMALL = 20
BEING_DONE = "the index is being brought up to date"
DAMAGED = "the vectors are damaged"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


def texts(count: int = COUNT) -> dict[str, str]:
    return {f"m{n}": f"note number{n} about topic{n % 7}" for n in range(count)}


async def filled(path: Path, clock: ManualClock, count: int = COUNT) -> HashEmbedder:
    """Fill a file with notes whose vectors are there; the answer is their embedder."""
    embedder = HashEmbedder()
    async with open_file(path, embedder, clock) as bench:
        await bench.add(**texts(count))
    assert_agreement(path, indexed=True)
    return embedder


async def check_found(bench: Bench, *, by_vector: bool, count: int = COUNT) -> None:
    """Each note is found by its word, and by its vector if that is there."""
    for number in (1, count // 2, count - 1):
        found = await bench.search(f"number{number}", explain=True)
        assert found[0].item.id == f"m{number}"
        assert ("vector_rank" in found[0].signals) == by_vector


def run(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        for statement in statements:
            connection.execute(statement)


# -- other models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [64, 128, 24])
async def test_vectors_of_two_embedders_are_never_mixed(
    path: Path, clock: ManualClock, dimensions: int
) -> None:
    await filled(path, clock)
    async with open_file(path, HashEmbedder("other", dimensions), clock, index_batch=50) as bench:
        found = await bench.search("number7", explain=True)
        assert any(BEING_DONE in reason for reason in found.degraded)
        await check_found(bench, by_vector=False)
        for done in range(50, COUNT, 50):
            await bench.store.index_next(50)
            found = await bench.search("note", explain=True, limit=1000, diversity="no")
            with_vector = {hit.item.id for hit in found if "vector" in hit.signals}
            assert with_vector <= {f"m{n}" for n in range(done)}
        await bench.index()
        assert (await bench.search("number7")).degraded == ()
        await check_found(bench, by_vector=True)
    assert_agreement(path, indexed=True)


async def test_a_pass_that_was_broken_off_for_a_third_embedder_is_begun_anew(
    path: Path, clock: ManualClock
) -> None:
    first = await filled(path, clock)
    async with open_file(path, HashEmbedder("second"), clock) as bench:
        await bench.store.index_next(COUNT // 2)
    for embedder in (HashEmbedder("third"), first):
        async with open_file(path, embedder, clock) as bench:
            assert any(BEING_DONE in reason for reason in (await bench.search("number7")).degraded)
            await bench.index()
            await check_found(bench, by_vector=True)
        assert_agreement(path, indexed=True)


async def test_a_pass_goes_on_where_it_ended(path: Path, clock: ManualClock) -> None:
    await filled(path, clock)
    embedder = HashEmbedder("second")
    async with open_file(path, embedder, clock) as bench:
        await bench.store.index_next(COUNT // 2)
    embedder.calls.clear()
    async with open_file(path, embedder, clock) as bench:
        await bench.index()
    assert sum(map(len, embedder.calls)) == COUNT // 2
    assert_agreement(path, indexed=True)


async def test_a_change_of_the_tokenizer(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = await filled(path, clock)
    monkeypatch.setattr("reverie.memory.sqlite.index.TOKENIZER", "words-next")
    async with open_file(path, embedder, clock, index_batch=100) as bench:
        assert any(BEING_DONE in reason for reason in (await bench.search("number7")).degraded)
        await check_found(bench, by_vector=True)
        await bench.store.index_next(100)
        await check_found(bench, by_vector=True)
        await bench.index()
        assert (await bench.search("number7")).degraded == ()
    assert_agreement(path, indexed=True)


async def test_a_store_without_an_embedder_leaves_vectors_to_one_that_has_it(
    path: Path, clock: ManualClock
) -> None:
    embedder = await filled(path, clock)
    async with open_file(path, embedder, clock) as other:
        async with open_file(path, None, clock) as bench:
            assert (await bench.search("number7")).degraded == ()
            await bench.add(new="number7000")
            await bench.apply(Revise(memory_id="m3", version=1, text="number3000"))
            await bench.index()
        assert "no vector yet" in (await other.search("number7")).degraded[0]
        embedder.calls.clear()
        await other.index()
        assert sorted(text for call in embedder.calls for text in call) == ["number3000", "number7000"]
        found = await other.search("number7000", explain=True)
        assert (found[0].signals["vector_rank"], found.degraded) == (1, ())
    assert_agreement(path, indexed=True)


async def test_two_processes_with_two_embedders_do_not_undo_each_others_work(
    path: Path, clock: ManualClock
) -> None:
    old = await filled(path, clock, SMALL)
    async with open_file(path, old, clock) as before, open_file(path, HashEmbedder("new"), clock) as after:
        assert await before.store.index_next(10) == 0
        assert any(BEING_DONE in reason for reason in (await before.search("number7")).degraded)
        await before.add(during="number500 written by the old one")
        await after.index()
        await before.add(later="number501 written by the old one")
        assert await before.store.index_next(10) == 0
        await after.index()
        assert (await after.search("number7")).degraded == ()
        for number in (500, 501):
            found = await after.search(f"number{number}", explain=True)
            assert found[0].signals["vector_rank"] == 1
    assert_agreement(path, indexed=True)


# -- an embedder that fails ---------------------------------------------------------------------------------


async def test_items_whose_vectors_were_late_get_them_when_the_embedder_is_back(
    path: Path, clock: ManualClock
) -> None:
    embedder = HashEmbedder()
    embedder.fails = True
    async with open_file(path, embedder, clock, index_batch=7) as bench:
        await bench.add(**texts(SMALL))
        for _ in range(3):
            progress = await bench.index()
            assert (progress.left, progress.total) == (SMALL, SMALL)
        embedder.fails = False
        assert (await bench.index()).left == 0
        await check_found(bench, by_vector=True, count=SMALL)
    assert_agreement(path, indexed=True)


async def test_a_text_whose_vector_was_late_is_embedded_once(path: Path, clock: ManualClock) -> None:
    embedder = HashEmbedder()
    async with open_file(path, embedder, clock) as bench:
        embedder.gate = asyncio.Event()
        new = [Remember(memory_id=name, text=f"tea {name}") for name in ("one", "two")]
        preparing = [asyncio.create_task(bench.store.prepare([effect])) for effect in new]
        await embedder.waiting.wait()
        for task in preparing:
            task.cancel()
        await asyncio.wait(preparing)
        message = Message(user_id="ann", label="work")
        await bench.store.apply([Application(message=message, effects=tuple(new))])
        embedder.gate.set()
        await bench.store.prepare([Remember(memory_id="three", text="tea three")])  # asked after the others
        assert (await bench.index()).left == 0
        assert embedder.calls == [["tea one", "tea two"], ["tea three"]]
    assert_agreement(path, indexed=True)


async def test_nobody_asks_for_a_vector_that_nobody_waits_for(path: Path, clock: ManualClock) -> None:
    embedder = HashEmbedder()
    async with open_file(path, embedder, clock) as bench:
        embedder.gate = asyncio.Event()
        first = asyncio.create_task(bench.store.prepare([Remember(memory_id="one", text="tea one")]))
        await embedder.waiting.wait()
        second = asyncio.create_task(bench.store.prepare([Remember(memory_id="two", text="tea two")]))
        await asyncio.sleep(0)  # it waits for the embedder, too
        second.cancel()
        embedder.gate.set()
        await first
        await bench.store.prepare([Remember(memory_id="three", text="tea three")])
        assert embedder.calls == [["tea one"], ["tea three"]]


async def test_a_rebuild_outlasts_an_embedder_that_fails(path: Path, clock: ManualClock) -> None:
    embedder = await filled(path, clock, SMALL)
    async with open_file(path, embedder, clock, index_batch=7) as bench:
        embedder.fails = True
        await bench.store.rebuild()
        for _ in range(2):
            assert (await bench.index()).left == SMALL
        embedder.fails = False
        assert (await bench.index()).left == 0
        await check_found(bench, by_vector=True, count=SMALL)
    assert_agreement(path, indexed=True)


async def test_a_rebuild_that_another_embedder_has_ended_without_vectors(
    path: Path, clock: ManualClock
) -> None:
    first = await filled(path, clock, SMALL)
    second = HashEmbedder("second")
    second.fails = True
    async with open_file(path, first, clock) as bench:
        await bench.store.rebuild()
    for embedder in (second, first):
        async with open_file(path, embedder, clock) as bench:
            await bench.index()
    assert_agreement(path, indexed=True)


async def test_a_rebuild_that_is_asked_for_during_a_step_of_the_indexer_is_whole(
    path: Path, clock: ManualClock
) -> None:
    await filled(path, clock, SMALL)
    embedder = HashEmbedder("second")
    async with open_file(path, embedder, clock, index_batch=7) as bench:
        await bench.store.index_next(10)
        embedder.gate = asyncio.Event()
        step = asyncio.create_task(bench.store.index_next(100))
        await embedder.waiting.wait()
        await bench.store.rebuild()
        embedder.gate.set()
        await step
        await bench.index()
        assert (await bench.search("number7")).degraded == ()
    assert_agreement(path, indexed=True)


async def test_items_that_change_during_a_step_of_the_indexer_keep_their_new_text(
    path: Path, clock: ManualClock
) -> None:
    await filled(path, clock, SMALL)
    embedder = HashEmbedder("second")
    async with open_file(path, embedder, clock) as bench:
        embedder.gate = asyncio.Event()
        step = asyncio.create_task(bench.store.index_next(100))
        await embedder.waiting.wait()
        changes = [
            Revise(memory_id="m1", version=1, text="a zebra"),
            Supersede(memory_id="m2", version=1, successor="m3"),
        ]
        changing = asyncio.create_task(bench.apply(*changes))
        assert await changing == "applied"
        embedder.gate.set()
        await step
        await bench.index()
        found = await bench.search("zebra", explain=True)
        assert (found[0].item.id, found[0].signals["vector_rank"]) == ("m1", 1)
    assert_agreement(path, indexed=True)


# -- damage -------------------------------------------------------------------------------------------------

DAMAGES = {
    "short bits": "UPDATE memory_bits SET bits = x'00' WHERE block = 0",
    "empty bits": "UPDATE memory_bits SET bits = x'' WHERE block = 0",
    "long bits": "UPDATE memory_bits SET bits = zeroblob(8000) WHERE block = 0",
    "text for bits": "UPDATE memory_bits SET bits = 'garbage' WHERE block = 0",
    "short numbers": "UPDATE memory_bits SET seqs = substr(seqs, 9) WHERE block = 0",
    "rows are gone": "DELETE FROM memory_bits WHERE block % 2 = 0",
    "all rows are gone": "DELETE FROM memory_bits",
    "the table is gone": "DROP TABLE memory_bits",
    "short vectors": "UPDATE memory_cards SET vector = x'0102'",
    "one short vector": "UPDATE memory_cards SET vector = x'0102' WHERE seq = 2",
    "empty vectors": "UPDATE memory_cards SET vector = x''",
}


@pytest.mark.parametrize("count", [SMALL, COUNT])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_vector_index_answers_by_text_and_is_rebuilt(
    path: Path, clock: ManualClock, damage: str, count: int
) -> None:
    embedder = await filled(path, clock, count)
    run(path, DAMAGES[damage])
    async with open_file(path, embedder, clock) as bench:
        news: list[None] = []
        bench.store.on_unindexed = lambda: news.append(None)
        found = await bench.search("number1", explain=True)
        assert found[0].item.id == "m1"
        assert any(DAMAGED in reason for reason in found.degraded)
        assert news
        assert (await bench.store.index_progress()).left == count
        found = await bench.search("number2")
        assert found[0].item.id == "m2"
        assert found.degraded
        await bench.add(new="number7000")
        assert (await bench.index()).left == 0
        assert (await bench.search("number1")).degraded == ()
        await check_found(bench, by_vector=True, count=count)
    assert_agreement(path, indexed=True)


# -- without numpy or wordllama -----------------------------------------------------------------

WITHOUT = """
import asyncio, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from reverie.assembly import new_models
from reverie.base.clock import SystemClock
from reverie.effect import Remember
from reverie.memory.query import SearchQuery
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.settings import load_settings
from reverie.storage.sqlite import Database

async def main():
    models = new_models(load_settings())
    store = SqliteMemoryStore(Database(sys.argv[1]), SystemClock(), models=models)
    rebuilds = []
    rebuild = store.rebuild
    async def counted():
        rebuilds.append(1)
        await rebuild()
    store.rebuild = counted
    await store.open()
    await store.change(("ann", "ann"), [Remember(memory_id="b", text="black tea")])
    for _ in range(2):
        found = await store.search(SearchQuery(text="tea", user_id="ann"))
    print(sorted(hit.item.id for hit in found))
    print(len(rebuilds))
    print(" | ".join(found.degraded))
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(("missing", "reason"), [("numpy", "numpy"), ("wordllama", "wordllama")])
async def test_what_is_not_installed_is_named_and_words_still_count(
    path: Path, clock: ManualClock, missing: str, reason: str
) -> None:
    async with open_file(path, WordLlamaEmbedder(), clock) as bench:
        await bench.add(a="green tea")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WITHOUT, str(path), missing],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found, rebuilds, degraded = done.stdout.splitlines()
    assert found == "['a', 'b']"
    assert rebuilds == "0"
    assert reason in degraded
    async with open_file(path, WordLlamaEmbedder(), clock) as bench:
        assert "no vector yet" in (await bench.search("tea")).degraded[0]
        await bench.index()
        assert (await bench.search("tea")).degraded == ()
    assert_agreement(path, indexed=True)
