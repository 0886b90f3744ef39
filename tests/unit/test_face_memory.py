"""`scheduler.memory`: ids that resolve, changes that hold at once, deletions that leave nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import apsw
import pytest

from reverie import Delete, Done, Remember, Scheduler, Supersede, Turn
from reverie.backends.views import Page, StatusQuery
from reverie.errors import (
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    ReverieError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.settings import load_settings
from reverie.testing import drain


@pytest.fixture(params=["one database", "two databases"])
def scheduler(request: pytest.FixtureRequest, tmp_path, clock):
    file = f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": "memory://" if request.param == "two databases" else file},
        memory={"url": file, "embedding": "none"},
        data_dir=tmp_path / "data",
    )
    scheduler = Scheduler(settings=settings, clock=clock)
    yield scheduler
    scheduler.close()


def add(scheduler: Scheduler, text: str, item_id: str, **fields) -> str:
    scheduler.memory.add(text, user_id="ann", item_id=item_id, **fields)
    return f"{item_id}.0"


def texts(found) -> list[str]:
    return [hit.text for hit in found]


def test_an_id_can_be_read_while_its_message_waits(scheduler) -> None:
    memory_id = add(scheduler, "I like green tea", "tea", session_id="s")
    item = scheduler.memory.get(memory_id, user_id="ann")
    assert (item.text, item.status, item.session_id) == ("I like green tea", "resolving", "s")
    assert item.created_at == item.updated_at == scheduler.runtime.clock.now()
    assert scheduler.memory.get("tea.1", user_id="ann") is None
    assert scheduler.memory.get("tea.00", user_id="ann") is None
    assert scheduler.memory.get(memory_id, user_id="bob") is None
    drain(scheduler)
    item = scheduler.memory.get(memory_id, user_id="ann")
    assert (item.text, item.status, item.kind) == ("I like green tea", "activated", "turn")


def test_an_id_can_be_read_while_its_message_is_settled(scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_id = add(scheduler, "I like green tea", "tea")
    views = scheduler.runtime.backend.views
    read = views.read

    async def read_late(query: StatusQuery) -> Page:
        await scheduler.runtime.drain()  # the store was asked before this, and had no such memory
        return await read(query)

    monkeypatch.setattr(views, "read", read_late)
    item = scheduler.memory.get(memory_id, user_id="ann")
    assert (item.text, item.status) == ("I like green tea", "activated")


def test_turns_keep_their_speaker_time_and_id(scheduler) -> None:
    turns = [Turn(content="Hello", name="Bob", role="assistant", chat_time="7 May 2023", message_id="m-1")]
    scheduler.memory.add(
        turns, user_id="ann", item_id="x", info={"device_id": "phone", "custom_tags": ["hi"]}
    )
    drain(scheduler)
    item = scheduler.memory.get("x.0", user_id="ann")
    source = item.sources[0]
    assert (source.name, source.role, source.message_id) == ("Bob", "assistant", "m-1")
    assert (item.valid_from, item.device_id, item.tags) == (1683417600000, "phone", ("hi",))


def test_an_update_holds_when_it_returns_and_keeps_the_old_text(scheduler) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    drain(scheduler)
    changed = scheduler.memory.update(memory_id, user_id="ann", text="I live in Lisbon", importance=0.9)
    assert (changed.text, changed.version, changed.importance) == ("I live in Lisbon", 2, 0.9)
    assert texts(scheduler.memory.search("Lisbon", user_id="ann")) == ["I live in Lisbon"]
    assert texts(scheduler.memory.search("Porto", user_id="ann")) == []
    (was,) = scheduler.memory.history(memory_id, user_id="ann")
    assert (was.version, was.text, was.change) == (1, "I live in Porto", "revise")


def test_a_memory_moves_to_the_archive_and_back(scheduler) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    drain(scheduler)
    moved = scheduler.memory.move(memory_id, "archive", user_id="ann")
    assert (moved.tier, moved.status, moved.version) == ("archive", "archived", 2)
    assert not scheduler.memory.search("Porto", user_id="ann", tiers=["long_term"])
    assert scheduler.memory.move(memory_id, "long_term", user_id="ann").status == "activated"
    assert texts(scheduler.memory.search("Porto", user_id="ann", tiers=["long_term"])) == ["I live in Porto"]
    with pytest.raises(UnknownMemoryError, match="'nothing'"):
        scheduler.memory.move("nothing", "archive", user_id="ann")


def test_an_update_of_another_version_is_refused(scheduler) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    drain(scheduler)
    scheduler.memory.update(memory_id, user_id="ann", text="I live in Lisbon", version=1)
    with pytest.raises(VersionConflictError, match="has version 2, but the change is based on version 1"):
        scheduler.memory.update(memory_id, user_id="ann", text="I live in Faro", version=1)


def test_bad_changes_are_named(scheduler) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    with pytest.raises(InvalidSelectionError, match="not written yet"):
        scheduler.memory.update(memory_id, user_id="ann", text="I live in Faro")
    drain(scheduler)
    with pytest.raises(UnknownMemoryError, match="'nothing'"):
        scheduler.memory.update("nothing", user_id="ann", text="x")
    with pytest.raises(InvalidMessageError, match="nothing to remember"):
        scheduler.memory.update(memory_id, user_id="ann", text=" ")
    with pytest.raises(InvalidMessageError, match="from 0 to 1"):
        scheduler.memory.update(memory_id, user_id="ann", importance=2)
    with pytest.raises(InvalidSelectionError, match="limit=0"):
        scheduler.memory.search("x", user_id="ann", limit=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": "x" * (1024 * 1024 + 1)}, "has 1048577 bytes, at most 1048576"),
        ({"text": "\ud800"}, "is not valid Unicode"),
        ({"title": "\ud800"}, "is not valid Unicode"),
        ({"info": {"a": float("nan")}}, "nan, which JSON does not have"),
        ({"info": json.loads('{"a":' * 40 + "1" + "}" * 40)}, "nested too deeply"),
        ({"tags": "tea"}, "tags='tea': must be a list of texts"),
        ({"tags": ["\ud800"]}, "is not valid Unicode"),
        ({"valid_to": 2**70}, "valid_to=1180591620717411303424: must be a datetime, or milliseconds"),
    ],
)
def test_a_change_that_cannot_be_kept_changes_nothing(scheduler, change: dict, words: str) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    drain(scheduler)
    with pytest.raises(ReverieError, match=re.escape(words)):
        scheduler.memory.update(memory_id, user_id="ann", **change)
    assert scheduler.memory.get(memory_id, user_id="ann").version == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"kinds": "turn"}, "kinds='turn': must be a list of texts"),
        ({"tiers": [1]}, "tiers=[1]: must be a list of texts"),
        ({"tags": ["\ud800"]}, "is not valid Unicode"),
        ({"device_id": "\ud800"}, "is not valid Unicode"),
        ({"since": "2026-05-08"}, "since='2026-05-08': must be a datetime, or milliseconds since 1970"),
        ({"as_of": 2**70}, "as_of="),
        ({"threshold": float("nan")}, "threshold=nan: must be 0 to 1"),
        ({"max_tokens": 0}, "max_tokens=0: must be 1 or more"),
        ({"diversity": "none"}, "diversity='none': must be one of mmr, sim, no"),
    ],
)
def test_an_option_of_a_search_that_means_nothing_is_refused(scheduler, option: dict, words: str) -> None:
    with pytest.raises(InvalidSelectionError, match=re.escape(words)):
        scheduler.memory.search("tea", user_id="ann", **option)


def test_a_superseded_id_leads_to_its_successor_until_that_is_deleted(scheduler) -> None:
    memory_id = add(scheduler, "I live in Porto", "home")
    drain(scheduler)

    @scheduler.handler("correct")
    def correct(message):
        new = Remember(memory_id="new", text="I live in Lisbon")
        return Done(effects=[new, Supersede(memory_id=memory_id, version=1, successor="new")])

    scheduler.submit("correct", user_id="ann")
    drain(scheduler)
    assert scheduler.memory.get(memory_id, user_id="ann").text == "I live in Lisbon"
    assert scheduler.memory.get(memory_id, user_id="ann", follow=False).superseded_by == "new"
    (link,) = scheduler.memory.links("new", user_id="ann")
    assert (link.relation, link.outgoing, link.item.id) == ("supersedes", True, memory_id)
    scheduler.memory.delete("new", user_id="ann")
    with pytest.raises(MemoryDeletedError):
        scheduler.memory.get(memory_id, user_id="ann")


def test_a_deleted_memory_is_gone_and_stays_gone(scheduler) -> None:
    memory_id = add(scheduler, "my secret plan", "plan")
    drain(scheduler)
    scheduler.memory.delete(memory_id, user_id="ann")
    scheduler.memory.delete(memory_id, user_id="ann")
    with pytest.raises(MemoryDeletedError, match=r"plan\.0"):
        scheduler.memory.get(memory_id, user_id="ann")
    assert texts(scheduler.memory.search("secret plan", user_id="ann")) == []
    assert scheduler.memory.page(user_id="ann").items == []
    with pytest.raises(UnknownMemoryError):
        scheduler.memory.delete(memory_id, user_id="bob")


def test_a_memory_can_be_deleted_while_its_message_waits(scheduler) -> None:
    turns = [Turn(content="my secret plan"), Turn(content="my public plan")]
    scheduler.memory.add(turns, user_id="ann", item_id="plan")
    scheduler.memory.delete("plan.0", user_id="ann")
    drain(scheduler)
    with pytest.raises(MemoryDeletedError):
        scheduler.memory.get("plan.0", user_id="ann")
    assert texts(scheduler.memory.search("plan", user_id="ann")) == ["my public plan"]


def test_a_deleted_turn_leaves_the_queue_in_the_same_file(tmp_path) -> None:
    path = tmp_path / "q.db"
    settings = load_settings(
        queue={"url": f"sqlite:///{path}"}, data_dir=tmp_path, memory={"embedding": "none"}
    )
    with Scheduler(settings=settings).used() as scheduler:
        turns = [Turn(content="the password is xyzzyplugh"), Turn(content="good morning")]
        scheduler.memory.add(turns, user_id="ann", item_id="a")
        scheduler.memory.add("the word plover", user_id="ann", item_id="b")
        drain(scheduler)
        scheduler.memory.delete("a.0", user_id="ann")
        scheduler.memory.delete("b.0", user_id="ann")
        again = scheduler.memory.add(turns, user_id="ann", item_id="a")
        assert again.status == "duplicate"
    file = apsw.Connection(str(path))
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert file.execute("SELECT payload FROM pending_messages WHERE id = 'a'").get.count("good morning") == 1
    file.close()
    raw = Path(path).read_bytes()
    assert [word for word in (b"xyzzyplugh", b"plover") if word in raw] == []


def test_a_page_lists_memories_in_the_order_they_were_learned(scheduler, clock) -> None:
    for number in range(5):
        add(scheduler, f"number {number}", f"n{number}")
        drain(scheduler)
        clock.advance(1)
    first = scheduler.memory.page(user_id="ann", limit=2)
    second = scheduler.memory.page(user_id="ann", limit=2, after=first.next)
    third = scheduler.memory.page(user_id="ann", mem_cube_id="ann", limit=2, after=second.next)
    assert [item.text for page in (first, second, third) for item in page.items] == [
        f"number {number}" for number in range(5)
    ]
    assert third.next is None
    newest = scheduler.memory.page(user_id="ann", newest_first=True, limit=1)
    assert [item.text for item in newest.items] == ["number 4"]
    with pytest.raises(InvalidSelectionError, match="'soon'"):
        scheduler.memory.page(user_id="ann", after="soon")


def test_a_handler_may_delete_by_version(scheduler) -> None:
    memory_id = add(scheduler, "short lived", "x")
    drain(scheduler)
    scheduler.handler("drop")(lambda _: Done(effects=[Delete(memory_id=memory_id, version=1)]))
    scheduler.submit("drop", user_id="ann")
    drain(scheduler)
    with pytest.raises(MemoryDeletedError):
        scheduler.memory.get(memory_id, user_id="ann")
