"""Components of a program's own: as objects from Python, and by import path in the settings."""

from __future__ import annotations

import pytest

from reverie import Scheduler
from reverie.errors import ReverieError
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.settings import load_settings
from reverie.storage.sqlite import Database
from reverie.testing import drain


class Counted(SqliteMemoryStore):
    """A store that counts its searches."""

    searches = 0

    async def search(self, query):
        self.searches += 1
        return await super().search(query)


class Alphabet:
    """An embedder that counts letters."""

    name = "alphabet"

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed(self, texts):
        self.texts += texts
        return [[1.0 + text.count(chr(97 + letter)) for letter in range(26)] for text in texts]


class Backwards:
    """A reranker that prefers what comes last in the alphabet."""

    async def rerank(self, query, texts):
        return [ord(text[0]) for text in texts]


def settings(tmp_path, **memory):
    return load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'q.db'}"}, memory=memory, data_dir=tmp_path / "data"
    )


@pytest.fixture
def scheduler(tmp_path):
    scheduler = Scheduler(settings=settings(tmp_path))
    yield scheduler
    scheduler.close()


def add(scheduler, *texts: str, **fields) -> None:
    for text in texts:
        scheduler.memory.add(text, user_id="ann", **fields)
    drain(scheduler)


def test_a_program_brings_an_embedder_and_a_reranker(scheduler) -> None:
    embedder = Alphabet()
    scheduler.initialize_modules(embedder=embedder, reranker=Backwards())
    add(scheduler, "apples and tea", "zebras and tea")
    found = scheduler.memory.search("tea", user_id="ann", explain=True)
    assert [hit.text for hit in found] == ["zebras and tea", "apples and tea"]
    assert found.explanation["embedder"] == "alphabet"
    assert sorted(embedder.texts) == ["apples and tea", "tea", "zebras and tea"]
    unordered = scheduler.memory.search("apples", user_id="ann", rerank=False)
    assert unordered[0].text == "apples and tea"


def test_a_program_brings_a_store(scheduler, tmp_path) -> None:
    store = Counted(Database(str(tmp_path / "own.db")), scheduler.runtime.clock)
    scheduler.initialize_modules(store=store)
    add(scheduler, "green tea")
    assert [hit.text for hit in scheduler.memory.search("tea", user_id="ann")] == ["green tea"]
    assert store.searches == 1


def make_store(settings, clock):
    return Counted(Database(settings.memory_url.removeprefix("sqlite:///")), clock, settings.memory)


def make_embedder(_):
    return Alphabet()


def make_reranker(_):
    return Backwards()


def test_settings_name_components_by_import_path(tmp_path) -> None:
    named = settings(
        tmp_path,
        url=f"sqlite:///{tmp_path / 'own.db'}",
        store="unit.test_modules:make_store",
        embedding="unit.test_modules:make_embedder",
        reranker="unit.test_modules:make_reranker",
    )
    with Scheduler(settings=named).used() as scheduler:
        add(scheduler, "green tea", "white tea")
        assert type(scheduler.runtime.store).__name__ == "Counted"
        assert (scheduler.runtime.models.embedder_name, type(scheduler.runtime.models.reranker).__name__) == (
            "alphabet",
            "Backwards",
        )
        scheduler.memory.search("tea", user_id="ann")
        assert scheduler.runtime.store.searches == 1


def test_a_reranker_that_fails_does_not_cost_the_answer(scheduler) -> None:
    class Broken:
        async def rerank(self, query, texts):
            raise OSError("no such model")

    scheduler.initialize_modules(reranker=Broken())
    add(scheduler, "green tea")
    found = scheduler.memory.search("tea", user_id="ann")
    assert [hit.text for hit in found] == ["green tea"]
    assert found.degraded == ("the reranker has failed: no such model",)


def test_modules_come_before_the_first_use(scheduler) -> None:
    scheduler.handler("work")(lambda _: None)
    with pytest.raises(ReverieError, match="comes first"):
        scheduler.initialize_modules(embedder=Alphabet())
    with Scheduler("memory://").used() as other:
        other.open()
        with pytest.raises(ReverieError, match="comes first"):
            other.initialize_modules(embedder=Alphabet())


def test_a_default_cube_is_used_where_none_is_named(scheduler) -> None:
    scheduler.init_mem_cube("notes")
    add(scheduler, "green tea")
    add(scheduler, "black tea", mem_cube_id="shop")
    assert [hit.item.mem_cube_id for hit in scheduler.memory.search("tea", user_id="ann")] == ["notes"]
    found = scheduler.memory.search("tea", user_id="ann", mem_cube_ids=["shop"])
    assert [hit.text for hit in found] == ["black tea"]
