"""What users bring by import path: a store, a place, a service, an embedder; and wrong paths."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from reverie import Done, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.errors import InvalidSettingError, UnknownSchemeError
from reverie.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

BROUGHT = '''
from reverie.dispatch.local_executor import Call
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.storage.sqlite import Database

EVENTS = []

class Store(SqliteMemoryStore):
    """A store that notes what it is asked."""

    async def apply(self, batch):
        EVENTS.append(("apply", len(batch)))
        return await super().apply(batch)

    def effects_within(self, database):
        return None

def new_store(settings, clock):
    return Store(Database(":memory:"), clock)

class Place:
    """Runs handlers at once, and notes it."""

    async def run(self, batch, context, timeout_s):
        EVENTS.append(("run", batch.label))
        call = Call(batch, context, timeout_s, None)
        call.run_sync()
        return [call.outcomes.get(index) for index in range(len(batch.claims))]

    async def abandon(self, batch_id): ...

    def cancel(self, keys): ...

    async def close(self):
        EVENTS.append(("closed", "place"))

class Service:
    async def start(self):
        EVENTS.append(("started", "service"))

    async def stop(self, grace_s):
        EVENTS.append(("stopped", grace_s))

class Unwilling(Service):
    """Neither starts nor stops."""

    async def start(self):
        raise RuntimeError("not today")

    async def stop(self, grace_s):
        raise RuntimeError("nor now")

class Clinging(Service):
    async def stop(self, grace_s):
        raise RuntimeError("not yet")

def work(message):
    return None

NOTHING = 7
'''


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of a user."""
    (tmp_path / "brought_by_a_user.py").write_text(textwrap.dedent(BROUGHT))
    monkeypatch.syspath_prepend(tmp_path)
    import brought_by_a_user  # noqa: PLC0415

    yield brought_by_a_user
    del sys.modules["brought_by_a_user"]


def test_a_store_a_place_and_a_service_by_import_path(brought, tmp_path: Path) -> None:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'q.db'}", "durability": "normal"},
        memory={"store": "brought_by_a_user:new_store"},
        worker={"grace_s": 7},
        labels={"work": {"place": "brought_by_a_user:Place"}},
        services=["brought_by_a_user:Service"],
    )
    scheduler = Scheduler(settings=settings)
    scheduler.handler("work")("brought_by_a_user:work")
    scheduler.handler("keep")(lambda _: Done(effects=[Remember(memory_id="a", text="green tea")]))
    assert isinstance(scheduler.runtime.store, brought.Store)
    assert not scheduler.runtime.backend.capabilities.applies_effects
    with scheduler:
        for label in ("work", "keep"):
            receipt = scheduler.submit(label, user_id="ann")
            assert scheduler.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED
        found = scheduler.memory.search("tea", user_id="ann", note=False)
        assert [hit.item.id for hit in found] == ["a"]
    assert brought.EVENTS == [
        ("started", "service"),
        ("run", "work"),
        ("apply", 1),
        ("stopped", 7),
        ("closed", "place"),
    ]


def with_services(tmp_path: Path, *names: str) -> Scheduler:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'q.db'}", "durability": "normal"},
        worker={"grace_s": 7},
        services=[f"brought_by_a_user:{name}" for name in names],
    )
    return Scheduler(settings=settings)


def test_a_service_that_cannot_start_leaves_nothing_running(brought, tmp_path: Path, caplog) -> None:
    scheduler = with_services(tmp_path, "Service", "Unwilling")
    with pytest.raises(RuntimeError, match="not today"):
        scheduler.start()
    assert brought.EVENTS == [("started", "service"), ("stopped", 7)]
    assert scheduler.runtime.loops() == []
    assert "nor now" in caplog.text
    assert scheduler.run(scheduler.runtime.backend.views.workers()) == []
    scheduler.close()


def test_a_service_that_cannot_stop_keeps_no_other_from_it(brought, tmp_path: Path, caplog) -> None:
    scheduler = with_services(tmp_path, "Service", "Clinging")
    with scheduler:
        pass
    assert brought.EVENTS == [("started", "service"), ("started", "service"), ("stopped", 7)]
    assert "not yet" in caplog.text
    with scheduler.used():
        assert scheduler.run(workers(scheduler)) == []


async def workers(scheduler: Scheduler) -> list[object]:
    await scheduler.runtime.open()
    return list(await scheduler.runtime.backend.views.workers())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory": {"store": "nothing"}}, "must be an import path such as module:attribute"),
        ({"memory": {"store": "brought_by_a_user:missing"}}, "cannot be imported"),
        ({"memory": {"embedding": "wordlama"}}, "must be wordllama, onnx, openai, none, or an import path"),
        ({"services": ["brought_by_a_user:NOTHING"]}, "must be something that can be called"),
    ],
)
def test_a_wrong_path_is_refused_with_its_setting(brought, settings, words: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        Scheduler(settings=load_settings(queue={"url": "memory://"}, **settings))
    assert words in str(refused.value)
    assert next(iter(settings)) in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"place": "moon"}, "labels.work.place = 'moon': must be loop, thread, process, or an import path"),
        ({"place": "loop"}, "a plain function has the place thread: leave the place out"),
    ],
)
def test_a_place_that_there_is_not_is_refused_when_a_handler_is_registered(
    brought, options, words: str
) -> None:
    settings = load_settings(queue={"url": "memory://"}, labels={"work": options})
    scheduler = Scheduler(settings=settings)
    with pytest.raises(InvalidSettingError, match=words):
        scheduler.handler("work")(brought.work)


def test_cpu_and_place_are_two_words_for_one_thing() -> None:
    with pytest.raises(InvalidSettingError, match="cpu and place both say where it runs"):
        load_settings(labels={"work": {"cpu": True, "place": "process"}})


@pytest.mark.parametrize("section", ["queue", "memory"])
def test_an_unknown_scheme_is_refused(section: str) -> None:
    with pytest.raises(UnknownSchemeError, match="ftp://x"):
        Scheduler(settings=load_settings(**{"queue": {"url": "memory://"}, section: {"url": "ftp://x"}}))
