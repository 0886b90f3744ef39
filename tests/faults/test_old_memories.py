"""A file of the last release: its memories are found before the indexer has run, while it runs, and after."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from reverie import Delete, Link, Remember, Revise, Supersede, Touch
from reverie.effect import Move
from reverie.memory.interface import PageQuery
from support.agreement import assert_agreement
from support.hashing import HashEmbedder
from support.memory_bench import Bench, open_file
from support.old_file import build_old_file

if TYPE_CHECKING:
    from reverie.testing import ManualClock

TEXTS: dict[str, Any] = {
    **{f"m{n}": f"note number{n} about topic{n % 7}" for n in range(300)},
    "house": "We bought a house with horses, pleased the nurse",
    "chinese": "我住在里斯本的海边",
    "japanese": "昨日は東京に行きました",
    "korean": "나는 서울에 산다",
    "russian": "это яд",
    "accents": "Caffè in Zürich",
    "said": {"text": "my kangaroo is ill", "session_id": "s", "sources": [{"item_id": "i", "name": "Bob"}]},
    "old": {"text": "lives in Porto", "superseded_by": "new", "version": 2},
    "new": "lives in Lisbon",
    "archived": {"text": "a giraffe in the attic", "tier": "archive"},
    "liked": {"text": "prefers giraffe tea", "kind": "preference", "tags": ["x"]},
    "used": {"text": "a giraffe cup", "access_count": 7, "accessed_at": 1_750_000_000_000},
    "office": {"text": "a giraffe desk", "project_id": "office"},
    "bob": {"text": "the giraffe of bob", "user_id": "bob"},
}
QUERIES = {
    "number123": "m123",
    "house": "house",
    "horse": "house",
    "nurses": "house",
    "pleasing": "house",
    "里斯本在哪里": "chinese",
    "海": "chinese",
    "東京": "japanese",
    "서울": "korean",
    "яд": "russian",
    "cafe zurich": "accents",
    "kangaroos": "said",
    "lives": "new",
}
OLD_TABLES = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'memory!_words%' ESCAPE '!'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    build_old_file(path, TEXTS)
    return path


def old_tables(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(OLD_TABLES).get


async def check_found(bench: Bench) -> None:
    for query, name in QUERIES.items():
        assert (await bench.find(query))[:1] == [name], query
    assert set((await bench.find("giraffe", diversity="no"))[:3]) == {"liked", "used", "office"}
    assert await bench.find("giraffe", "bob") == ["bob"]


@pytest.mark.parametrize("embedder", [None, HashEmbedder()], ids=["no embedder", "embedder"])
async def test_memories_are_found_before_and_after_the_indexer_has_run(
    path: Path, embedder, clock: ManualClock
) -> None:
    async with open_file(path, embedder, clock) as bench:
        assert (await bench.store.index_progress()).left == len(TEXTS)
        await check_found(bench)
        assert any("not indexed yet" in reason for reason in (await bench.search("number7")).degraded)
        progress = await bench.index()
        assert (progress.left, progress.total) == (0, len(TEXTS))
        await check_found(bench)
        found = await bench.search("number123", explain=True)
        assert found.degraded == ()
        assert "text_rank" in found[0].signals
        assert ("vector_rank" in found[0].signals) == (embedder is not None)
        assert await bench.store.index_next(10) == 0
    assert_agreement(path, indexed=True)
    assert old_tables(path) == 0


async def test_filters_hold_before_the_indexer_has_run(path: Path, clock: ManualClock) -> None:
    async with open_file(path, None, clock) as bench:
        for _ in range(2):  # before and after

            async def find(**query) -> set[str]:
                return set(await bench.find("giraffe", diversity="no", **query))

            assert await find(kinds=("preference",)) == {"liked"}
            assert await find(without_kinds=("preference",), limit=2) == {"used", "office"}
            assert await find(tags=("x",)) == {"liked"}
            assert await find(tiers=("archive",)) == {"archived"}
            assert await find(device_id="phone") == set()
            assert await find(agent_id="bot") == set()
            assert await find(since=1_800_000_000_001) == set()
            assert await find(until=1_600_000_000_000) == set()
            assert await find(mem_cube_ids=("office",)) == {"office"}
            assert await find(as_of=1_600_000_000_000) == set()
            found = await bench.search("giraffe", preferences=3, limit=2, diversity="no")
            assert {hit.item.id for hit in found} == {"used", "office"}
            assert [hit.item.id for hit in found.preferences] == ["liked"]
            await bench.index()


async def test_memories_can_be_changed_before_the_indexer_has_run(path: Path, clock: ManualClock) -> None:
    async with open_file(path, HashEmbedder(), clock) as bench:
        effects = (
            Revise(memory_id="m1", version=1, text="a text about zebras"),
            Delete(memory_id="m2", version=1),
            Supersede(memory_id="m3", version=1, successor="m4"),
            Move(memory_id="m5", version=1, tier="archive"),
            Touch(memory_id="m6"),
            Touch(memory_id="used"),
            Revise(memory_id="used", version=1, text="a giraffe mug"),
            Link(source_id="m7", relation="about", target_id="m8"),
            Remember(memory_id="fresh", text="number1 and number2"),
        )
        assert await bench.apply(*effects) == "applied"
        for _ in range(2):
            assert (await bench.find("zebra"))[0] == "m1"
            assert (await bench.find("number1"))[0] == "fresh"
            assert (await bench.find("number2"))[0] == "fresh"
            assert "m2" not in await bench.find("number2", limit=100)
            assert "m3" not in await bench.find("number3")
            assert "m5" not in await bench.find("number5", tiers=("working", "long_term"))
            assert (await bench.find("number5", tiers=("archive",)))[0] == "m5"
            assert (await bench.store.get("ann", "used")).access_count == 8
            assert len(await bench.store.links("ann", "m7")) == 1
            assert [each.text for each in await bench.store.history("ann", "m1")] == [TEXTS["m1"]]
            assert (await bench.store.page(PageQuery(user_id="ann", limit=1000))).next is None
            await bench.index()
    assert_agreement(path, indexed=True)
    assert old_tables(path) == 0


async def test_searches_go_on_while_the_indexer_works_in_small_steps(path: Path, clock: ManualClock) -> None:
    async with open_file(path, HashEmbedder(), clock, index_batch=7) as bench:
        steps = 0
        while await bench.store.index_next(7):
            steps += 1
            name, query = f"m{steps % 300}", f"number{steps % 300}"
            found = await bench.search(query)
            assert found[0].item.id == name
            if steps < 50:
                revise = Revise(memory_id=f"m{steps}", version=1, text=f"number{steps} anew")
                delete = Delete(memory_id=f"m{200 + steps}", version=1)
                remember = Remember(memory_id=f"fresh{steps}", text="something fresh")
                assert await bench.apply(revise, delete, remember) == "applied"
        assert steps > len(TEXTS) // 7
    assert_agreement(path, indexed=True)


async def test_an_indexer_goes_on_where_another_has_ended(path: Path, clock: ManualClock) -> None:
    for _ in range(3):
        async with open_file(path, HashEmbedder(), clock) as bench:
            for _ in range(5):
                assert await bench.store.index_next(10)
            await check_found(bench)
            left = (await bench.store.index_progress()).left
        assert_agreement(path)
    assert left == len(TEXTS) - 150
    async with open_file(path, HashEmbedder(), clock) as bench:
        await bench.index()
        await check_found(bench)
    assert_agreement(path, indexed=True)
    assert old_tables(path) == 0


async def test_the_old_index_is_no_longer_used_while_it_is_removed(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of an FTS5 index looks like a damaged file to whoever reads it or deletes from it."""
    monkeypatch.setattr("reverie.memory.sqlite.indexing.DROPPED_AT_ONCE", 1)
    async with open_file(path, None, clock) as bench, open_file(path, None, clock) as other:
        while (await bench.store.index_progress()).left:
            await bench.store.index_next(1000)
        removals = 0
        while await bench.store.index_next(1000):
            for number, store in enumerate((bench, other)):
                assert await store.find("number9") == ["m9"]
                delete = Delete(memory_id=f"m{100 + 2 * removals + number}", version=1)
                assert await store.apply(delete) == "applied"
            removals += 1
        assert removals > 2
        assert await other.apply(Delete(memory_id="m99", version=1)) == "applied"
        assert await other.find("number9") == ["m9"]
        assert await other.store.index_next(10) == 0
    assert_agreement(path, indexed=True)


async def test_two_stores_open_an_old_file_at_the_same_time(path: Path, clock: ManualClock) -> None:
    embedder = HashEmbedder()
    async with open_file(path, embedder, clock) as one, open_file(path, embedder, clock) as other:
        await asyncio.gather(check_found(one), check_found(other), one.index())
        await other.index()
        await check_found(other)
    assert_agreement(path, indexed=True)


async def test_an_old_file_that_is_not_indexed_at_all_loses_nothing_by_a_restart(
    path: Path, clock: ManualClock
) -> None:
    for embedder in (None, HashEmbedder(), None, HashEmbedder("other", 128)):
        async with open_file(path, embedder, clock) as bench:
            await check_found(bench)
            await bench.store.index_next(20)
    async with open_file(path, embedder, clock) as bench:
        await bench.index()
        await check_found(bench)
    assert_agreement(path, indexed=True)
