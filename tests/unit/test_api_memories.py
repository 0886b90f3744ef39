"""Memories over HTTP: added, found, read and deleted, in the shapes that clients of MemOS know."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler, Done, Link, Message, Remember, Supersede
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client, fits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from reverie.testing import ManualClock

JSON = {"content-type": "application/json"}
EMPTY = ("act_mem", "para_mem", "tool_mem", "skill_mem")
JANUARY = 1_767_225_600_000
"""The beginning of 2026."""


class Api:
    """The HTTP face of a scheduler whose handler `write` remembers what its message says."""

    def __init__(self, scheduler: AsyncScheduler, client: httpx.AsyncClient) -> None:
        self.scheduler = scheduler
        self._client = client
        self._effects: list[Any] = []
        scheduler.handler("write")(self._write)

    async def _write(self, message: Message) -> Done:
        effects, self._effects = self._effects, []
        return Done(effects=effects)

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str, Any]:
        content = None if body is None else json.dumps(body)
        response = await self._client.request(
            method, f"/product/{path}", content=content, params=query, headers=JSON
        )
        answer = response.json()
        assert answer["code"] == response.status_code
        return answer["code"], answer["message"], answer["data"]

    async def add(self, *texts: str, settle: bool = True, **fields: Any) -> list[dict[str, Any]]:
        messages = fields.pop("messages", None) or [{"role": "user", "content": text} for text in texts]
        code, message, data = await self.ask(
            "POST", "add", {"user_id": "ann", "messages": messages, **fields}
        )
        assert code == 200, message
        if settle:
            await self.settle()
        return data

    async def write(self, *effects: Any, user_id: str = "ann", cube: str = "") -> None:
        """Let a handler return these effects."""
        self._effects = list(effects)
        await self.scheduler.submit("write", user_id=user_id, mem_cube_id=cube)
        await self.settle()

    async def settle(self) -> None:
        await self.scheduler.runtime.drain()

    async def search(self, query: str, **fields: Any) -> dict[str, Any]:
        body = {"user_id": "ann", "query": query, "relativity": 0, **fields}
        code, message, data = await self.ask("POST", "search", body)
        assert code == 200, message
        assert [data[name] for name in EMPTY] == [[]] * 4
        return data

    async def texts(self, query: str, **fields: Any) -> list[str]:
        return sorted(texts(await self.search(query, **fields)))

    async def refused(self, **fields: Any) -> tuple[int, str]:
        body = {"user_id": "ann", "query": "tea", **fields}
        code, message, _ = await self.ask("POST", "search", body)
        return code, message


def texts(found: dict[str, Any], part: str = "text_mem") -> list[str]:
    return [memory["memory"] for cube in found[part] for memory in cube["memories"]]


@pytest.fixture
async def api(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Api]:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"}, memory={"embedding": "none"}
    )
    async with opened(AsyncScheduler(settings=settings, clock=clock)) as api:
        yield api


@asynccontextmanager
async def opened(scheduler: AsyncScheduler) -> AsyncIterator[Api]:
    await scheduler.open()
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        yield Api(scheduler, client)
    await scheduler.stop()


# -- add -------------------------------------------------------------------------------------------------


async def test_what_is_added_keeps_its_speaker_time_id_and_tags(api: Api) -> None:
    turn = {"role": "assistant", "content": "Tea is ready", "name": "Eve", "message_id": "m7"}
    added = await api.add(
        messages=[{"role": "user", "content": " "}, turn | {"chat_time": "2026-01-02T03:04:05Z"}],
        item_id="one",
        session_id="s1",
        info={"device_id": "phone", "agent_id": "butler", "custom_tags": ["home"], "n": 1},
        custom_tags=["drinks", "home"],
        mode="fine",
    )
    assert added == [
        {
            "memory": "Tea is ready",
            "memory_id": "one.1",
            "memory_type": "LongTermMemory",
            "cube_id": "ann",
            "item_id": "one",
            "status": "accepted",
        }
    ]
    code, message, memory = await api.ask("GET", "get_memory/one.1", user_id="ann")
    assert (code, message) == (200, "ok")
    created = memory["metadata"].pop("created_at")
    assert memory["metadata"].pop("updated_at") == created == "2027-01-15T08:00:00+00:00"
    assert memory == {
        "id": "one.1",
        "memory": "Tea is ready",
        "ref_id": "[one.1]",
        "metadata": {
            "memory_type": "LongTermMemory",
            "kind": "turn",
            "tier": "long_term",
            "status": "activated",
            "superseded_by": None,
            "user_id": "ann",
            "session_id": "s1",
            "device_id": "phone",
            "agent_id": "butler",
            "tags": ["home", "drinks"],
            "info": {"device_id": "phone", "agent_id": "butler", "custom_tags": ["home", "drinks"], "n": 1},
            "sources": [
                {
                    "item_id": "one",
                    "index": 1,
                    "role": "assistant",
                    "name": "Eve",
                    "chat_time": "2026-01-02T03:04:05Z",
                    "message_id": "m7",
                    "type": "chat",
                    "info": None,
                }
            ],
            "importance": 0.5,
            "version": 1,
            "valid_from": "2026-01-02T03:04:05+00:00",
            "valid_to": None,
            "usage": [],
            "embedding": [],
            "background": "",
        },
    }


async def test_a_raw_item_and_a_call_without_content(api: Api) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    added = await api.add(messages=[{"type": "text", "text": "I drink tea"}, call])
    assert [entry["memory"] for entry in added] == ["I drink tea"]


async def test_an_add_to_several_cubes_is_found_in_each(api: Api) -> None:
    added = await api.add("I drink tea", writable_cube_ids=["home", "work"])
    found = await api.search("tea", dedup="no")
    assert {cube["cube_id"] for cube in found["text_mem"]} == {"home", "work"}
    assert {m["id"] for cube in found["text_mem"] for m in cube["memories"]} == {
        entry["memory_id"] for entry in added
    }
    for cube in ({"mem_cube_id": "home"}, {"readable_cube_ids": ["home"]}):
        found = await api.search("tea", **cube)
        assert [(c["cube_id"], c["total_nodes"]) for c in found["text_mem"]] == [("home", 1)]


# -- search ----------------------------------------------------------------------------------------------


async def test_the_shape_of_a_search(api: Api) -> None:
    await api.add("I drink green tea", "Mount Everest is high", item_id="0ff1ce-tea")
    found = await api.search("tea")
    assert set(found) == {
        "text_mem",
        "pref_mem",
        *EMPTY,
        "pref_string",
        "pref_note",
        "dropped",
        "cut",
        "words_left_out",
        "degraded",
    }
    ((cube,), (memory,)) = found["text_mem"], found["text_mem"][0]["memories"]
    assert (cube["cube_id"], cube["total_nodes"]) == ("ann", 1)
    assert (memory["id"], memory["ref_id"]) == ("0ff1ce-tea.0", "[0ff1ce]")
    assert 0 < memory["metadata"]["relativity"] <= 1
    assert "signals" not in memory["metadata"]
    assert "neighbours" not in memory["metadata"]
    assert (found["pref_string"], found["pref_note"], found["dropped"]) == ("", "", 0)


async def test_explain_says_why(api: Api) -> None:
    await api.add("I drink green tea")
    found = await api.search("tea", explain=True)
    assert found["timings_ms"]["words"] >= 0
    assert found["explanation"]["words"] == ["tea"]
    assert texts(found) == ["I drink green tea"]
    assert found["text_mem"][0]["memories"][0]["metadata"]["signals"]["text_rank"] == 1


async def test_hits_below_the_threshold_are_dropped_and_counted(api: Api) -> None:
    await api.add("I drink green tea", "The tea house on the hill of the old town was closed when we came")
    scores = [
        memory["metadata"]["relativity"]
        for memory in (await api.search("green tea"))["text_mem"][0]["memories"]
    ]
    assert len(scores) == 2
    assert scores[0] > scores[1]
    between = sum(scores) / 2
    for fields in ({"relativity": between}, {"threshold": between}, {"relativity": 1, "threshold": between}):
        found = await api.search("green tea", **fields)
        assert (texts(found), found["dropped"]) == (["I drink green tea"], 1)
    found = await api.search("green tea", relativity=1, threshold=0)
    assert (len(texts(found)), found["dropped"]) == (2, 0)
    _, _, found = await api.ask("POST", "search", {"user_id": "ann", "query": "green tea"})
    assert texts(found)[:1] == ["I drink green tea"] * (scores[0] >= 0.45)


async def test_preferences_are_beside_the_other_memories(api: Api) -> None:
    await api.add("I drank tea in Lisbon")
    await api.write(
        Remember(memory_id="p", text="prefers tea to coffee", kind="preference"),
        Remember(memory_id="u", text="is a tea merchant", kind="profile"),
    )
    found = await api.search("tea")
    assert sorted(texts(found)) == ["I drank tea in Lisbon", "is a tea merchant"]
    assert texts(found, "pref_mem") == ["prefers tea to coffee"]
    types = {m["memory"]: m["metadata"]["memory_type"] for m in found["text_mem"][0]["memories"]}
    assert types == {"I drank tea in Lisbon": "LongTermMemory", "is a tea merchant": "UserMemory"}
    (preference,) = found["pref_mem"][0]["memories"]
    assert preference["metadata"]["memory_type"] == "PreferenceMemory"
    assert found["pref_mem"][0]["total_nodes"] == 1
    assert found["pref_string"] == "- prefers tea to coffee"
    assert found["pref_note"].startswith("These are preferences of the user")
    for fields in ({"include_preference": False}, {"pref_top_k": 0}):
        found = await api.search("tea", **fields)
        assert sorted(texts(found)) == ["I drank tea in Lisbon", "is a tea merchant"]
        assert (found["pref_mem"], found["pref_string"], found["pref_note"]) == ([], "", "")


@pytest.mark.parametrize(
    ("memory_type", "text_mem", "pref_mem"),
    [
        ("All", ["b archive", "b long", "b user", "b working"], ["b preference"]),
        ("LongTermMemory", ["b long"], ["b preference"]),
        ("WorkingMemory", ["b working"], []),
        ("UserMemory", ["b user"], ["b preference"]),
        ("PreferenceMemory", [], ["b preference"]),
        ("ArchivedMemory", ["b archive"], []),
        ("SkillMemory", [], ["b preference"]),
    ],
)
async def test_memories_of_a_type(api: Api, memory_type: str, text_mem: list, pref_mem: list) -> None:
    await api.write(
        Remember(memory_id="1", text="b long"),
        Remember(memory_id="2", text="b working", tier="working"),
        Remember(memory_id="3", text="b archive", tier="archive"),
        Remember(memory_id="4", text="b user", kind="profile"),
        Remember(memory_id="5", text="b preference", kind="preference"),
    )
    found = await api.search("b", search_memory_type=memory_type)
    assert (sorted(texts(found)), texts(found, "pref_mem")) == (text_mem, pref_mem)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"tags": ["red"]}, "ac"),
        ({"tags": ["red", "blue"]}, "abc"),
        ({"kinds": ["event"]}, "b"),
        ({"kinds": ["event", "fact"]}, "abc"),
        ({"device_id": "phone"}, "a"),
        ({"agent_id": "butler"}, "b"),
        ({"since": "2026-01-02T00:00:00Z"}, "bc"),
        ({"since": "2026-01-02"}, "bc"),
        ({"since": JANUARY + 86_400_000}, "bc"),
        ({"since": JANUARY // 1000 + 86_400}, "bc"),
        ({"since": str(JANUARY // 1000 + 86_400)}, "bc"),
        ({"until": "2026-01-02T01:00:00+01:00"}, "a"),
        ({"since": None, "until": None}, "abc"),
        ({"as_of": "2026-01-01T12:00:00"}, "a"),
        ({"filter": {"and": [{"tags": {"contains": "red"}}]}}, "ac"),
        ({"filter": {"tags": "red"}}, "ac"),
        ({"filter": {"tags": {"in": ["red", "blue"]}}}, "abc"),
        ({"filter": {"or": [{"tags": {"contains": "red"}}, {"tags": {"contains": "blue"}}]}}, "abc"),
        ({"filter": {"or": [{"tags": "blue"}, {"tags": "none"}]}}, "b"),
        ({"filter": {"and": [{"kind": "fact"}, {"tags": "red"}]}}, "ac"),
        ({"filter": {"and": [{"kind": "fact", "device_id": "phone"}]}}, "a"),
        ({"filter": {"and": [{"or": [{"kind": "fact"}, {"kind": "event"}]}, {"tags": "blue"}]}}, "b"),
        ({"filter": {"and": [{"agent_id": {"=": "butler"}}]}}, "b"),
        ({"filter": {"and": [{"created_at": {"gt": "2026-01-02T00:00:00Z"}}]}}, "c"),
        ({"filter": {"and": [{"created_at": {"gte": "2026-01-02T00:00:00Z"}}]}}, "bc"),
        ({"filter": {"and": [{"time": {"lt": "2026-01-02T00:00:00Z"}}]}}, "a"),
        ({"filter": {"and": [{"time": {"gte": JANUARY, "lte": "2026-01-02"}}]}}, "ab"),
        ({"filter": {"and": [{"created_at": {"gte": 0}}]}}, "abc"),
        ({"filter": {"and": [{"created_at": {"lt": 0}}]}}, ""),
        ({"filter": {"memory_type": "LongTermMemory"}}, "abc"),
        ({"filter": {"memory_type": {"in": ["WorkingMemory", "UserMemory"]}}}, ""),
        ({"filter": {"tier": ["long_term"]}}, "abc"),
        ({"filter": {"status": "activated"}}, "abc"),
        ({"filter": {"status": "archived"}}, "d"),
        ({"filter": {"and": []}}, "abc"),
        ({"filter": {}}, "abc"),
        ({"filter": None, "dedup": None, "threshold": None, "session_id": ""}, "abc"),
        ({"filter": {"tags": "red"}, "device_id": "phone"}, "a"),
        ({"mode": "mixture", "internet_search": False, "chat_history": [], "whatever": 1}, "abc"),
        ({"top_k": 3, "dedup": "sim", "rerank": False}, "abc"),
    ],
)
async def test_filters_are_strict(api: Api, fields: dict, found: str) -> None:
    day = 86_400_000
    await api.write(
        Remember(memory_id="a", text="x a", tags=("red",), device_id="phone", valid_from=JANUARY,
                 valid_to=JANUARY + day),
        Remember(memory_id="b", text="x b", tags=("blue",), agent_id="butler", kind="event",
                 valid_from=JANUARY + day),
        Remember(memory_id="c", text="x c", tags=("red", "green"), valid_from=JANUARY + 2 * day),
        Remember(memory_id="d", text="x d", tier="archive", valid_from=JANUARY + 2 * day),
    )  # fmt: skip
    most = {} if fields.get("filter") == {"status": "archived"} else {"top_k": max(1, len(found))}
    assert await api.texts("x", **{"dedup": "no", **most, **fields}) == [f"x {letter}" for letter in found]


async def test_a_kind_that_is_asked_for_leaves_preferences_out(api: Api) -> None:
    await api.write(
        Remember(memory_id="p", text="prefers tea", kind="preference"),
        Remember(memory_id="f", text="has tea"),
    )
    for fields in ({"kinds": ["fact"]}, {"filter": {"kind": "fact"}}):
        found = await api.search("tea", **fields)
        assert (texts(found), found["pref_mem"]) == (["has tea"], [])
    found = await api.search("tea", kinds=["preference"])
    assert (texts(found), texts(found, "pref_mem")) == ([], ["prefers tea"])


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"top_k": 0}, 422, "body.top_k: "),
        ({"relativity": 2}, 422, "body.relativity: "),
        ({"threshold": -1}, 422, "body.threshold: "),
        ({"dedup": "all"}, 422, "body.dedup: Input should be 'no', 'sim' or 'mmr'"),
        ({"pref_top_k": -1}, 422, "body.pref_top_k: "),
        ({"max_tokens": 0}, 422, "body.max_tokens: "),
        ({"since": "soon"}, 422, "body.since: Value error, must be a time: ISO 8601 text"),
        ({"until": True}, 422, "body.until: Value error, must be a time"),
        ({"as_of": 10**30}, 422, "body.as_of: Value error, must be a time before the year 10000"),
        ({"reference_time": "99999-01-01"}, 422, "body.reference_time: "),
        ({"filter": []}, 422, "body.filter: "),
        ({"tags": "red"}, 422, "body.tags: "),
        ({"search_memory_type": "Old"}, 400, "search_memory_type='Old': must be All, or one of Working"),
        ({"filter": {"and": [{"info.x": 1}]}}, 400, "filter='info.x': memories cannot be filtered by it"),
        ({"filter": {"and": [{"session_id": "s"}]}}, 400, "filter='session_id': "),
        ({"filter": {"\ud800": 1}}, 400, "filter='\\ud800': "),
        ({"filter": {"tags": "\ud800"}}, 400, "filter.tags='\\ud800': "),
        ({"filter": {"and": {"tags": "x"}}}, 400, 'filter.and={"tags": "x"}: must be a list of conditions'),
        ({"filter": {"and": [1]}}, 400, "filter.and=[1]: must be a list"),
        ({"filter": {"and": [{"and": []}]}}, 400, "filter='and': "),
        ({"filter": {"or": []}}, 400, "filter.or=[]: must list values of one field"),
        ({"filter": {"or": [{"kind": "a"}, {"tags": "b"}]}}, 400, 'filter.or=["kind", "tags"]: '),
        ({"filter": {"or": [{"time": {"gt": 1}}]}}, 400, 'filter.or=["time"]: '),
        ({"filter": {"kind": 7}}, 400, "filter.kind=7: must be a text or a list of texts"),
        ({"filter": {"kind": []}}, 400, "filter.kind=[]: "),
        ({"filter": {"kind": {"like": "a"}}}, 400, 'filter.kind={"like": "a"}: must be a text, or = or in'),
        ({"filter": {"tier": "cellar"}}, 400, "filter.tier='cellar': must be one of working, long_term"),
        (
            {"filter": {"status": "deleted"}},
            400,
            "filter.status='deleted': must be one of activated, archived",
        ),
        ({"filter": {"memory_type": "Old"}}, 400, "memory_type='Old': must be one of WorkingMemory"),
        ({"filter": {"device_id": ["a", "b"]}}, 400, 'filter.device_id=["a", "b"]: must be one text'),
        ({"filter": {"created_at": "2026-01-01"}}, 400, "filter.created_at='2026-01-01': must be gt, gte"),
        ({"filter": {"created_at": {"gt": "soon"}}}, 400, "filter.created_at.gt='soon': must be a time"),
        ({"filter": {"tags": "a"}, "tags": ["b"]}, 400, 'tags=[["a"], ["b"]]: give one list of tags'),
        ({"filter": {"kind": "a"}, "kinds": ["b"]}, 400, 'kinds=[["a"], ["b"]]: no memory can be both'),
        ({"filter": {"device_id": "a"}, "device_id": "b"}, 400, 'device_id=["a", "b"]: no memory'),
    ],
)
async def test_a_search_that_is_refused(api: Api, fields: dict, code: int, words: str) -> None:
    got, message = await api.refused(**fields)
    assert (got, message[: len(words)]) == (code, words)


async def test_what_is_around_a_hit_and_linked_to_it(api: Api) -> None:
    await api.add("Good morning", "I drink tea", "So do I", session_id="s", item_id="chat")
    await api.write(
        Remember(memory_id="f", text="morning habits"),
        Link(source_id="f", relation="about", target_id="chat.1"),
    )
    found = await api.search("tea", neighbor_discovery=True)
    memory = found["text_mem"][0]["memories"][0]
    assert memory["metadata"]["neighbours"] == [
        {"id": "chat.0", "memory": "Good morning"},
        {"id": "chat.2", "memory": "So do I"},
    ]
    assert memory["metadata"]["linked"] == [{"id": "f", "memory": "morning habits"}]


async def test_a_search_bounded_by_tokens(api: Api) -> None:
    await api.add("I drink tea", "Tea it is", "She has tea")
    found = await api.search("tea", max_tokens=7, dedup="no")
    assert (len(texts(found)), found["cut"]) == (2, 1)


async def test_cubes_come_in_the_order_of_their_best_hit(api: Api) -> None:
    await api.add("the tea house on the hill of the old town", mem_cube_id="a")
    await api.add("green tea", mem_cube_id="b")
    found = await api.search("green tea")
    assert [cube["cube_id"] for cube in found["text_mem"]] == ["b", "a"]


# -- get -------------------------------------------------------------------------------------------------


async def test_a_memory_that_is_not_settled_yet(api: Api) -> None:
    await api.add("I drink tea", item_id="one", session_id="s", settle=False)
    _, _, memory = await api.ask("GET", "get_memory/one.0", user_id="ann")
    assert (memory["memory"], memory["metadata"]["status"]) == ("I drink tea", "resolving")
    await api.settle()
    _, _, memory = await api.ask("GET", "get_memory/one.0", user_id="ann")
    assert memory["metadata"]["status"] == "activated"


async def test_missing_and_foreign_memories_look_the_same(api: Api) -> None:
    await api.add("I drink tea", item_id="one")
    missing = await api.ask("GET", "get_memory/two.0", user_id="bob")
    foreign = await api.ask("GET", "get_memory/one.0", user_id="bob")
    assert missing == (200, "there is no memory 'two.0' of this user", None)
    assert foreign == (200, "there is no memory 'one.0' of this user", None)


async def test_a_memory_of_a_user_without_a_name(api: Api) -> None:
    code, message, _ = await api.ask("GET", "get_memory/one.0", user_id="")
    assert (code, message) == (400, "user_id='': must not be empty")


async def test_a_superseded_id_leads_to_its_successor(api: Api) -> None:
    await api.write(Remember(memory_id="old", text="lives in Rome"))
    await api.write(
        Remember(memory_id="new", text="lives in Oslo"),
        Supersede(memory_id="old", version=1, successor="new"),
    )
    _, _, memory = await api.ask("GET", "get_memory/old", user_id="ann")
    assert (memory["id"], memory["memory"]) == ("new", "lives in Oslo")
    _, _, listed = await api.ask("GET", "memories", user_id="ann", with_superseded=True)
    statuses = {one["id"]: one["metadata"] for one in listed["memories"]}
    assert {i: (one["status"], one["superseded_by"]) for i, one in statuses.items()} == {
        "old": ("archived", "new"),
        "new": ("activated", None),
    }


async def test_a_change_that_is_sent_again_is_made_once(api: Api) -> None:
    await api.add("I drink tea", item_id="one")
    for body in ({"text": "I drink milk", "tags": ["drinks"]},) * 2 + ({},):
        _, _, memory = await api.ask("PATCH", "memories/one.0", {"user_id": "ann", **body})
        assert (memory["memory"], memory["metadata"]["version"]) == ("I drink milk", 2)
    _, _, past = await api.ask("GET", "memories/one.0/history")
    assert [one["text"] for one in past["revisions"]] == ["I drink tea"]


async def test_a_deleted_memory_is_gone(api: Api) -> None:
    await api.add("I drink tea", item_id="one")
    body = {"memory_ids": ["one.0"], "user_id": "ann"}
    assert await api.ask("POST", "delete_memory", body) == (200, "ok", {"status": "success"})
    gone = await api.ask("GET", "get_memory/one.0", user_id="ann")
    assert gone == (410, "the memory 'one.0' was deleted", None)
    assert await api.texts("tea") == []
    foreign = await api.ask("GET", "get_memory/one.0", user_id="bob")
    assert foreign == (200, "there is no memory 'one.0' of this user", None)
    assert await api.ask("POST", "delete_memory", body) == (200, "ok", {"status": "success"})


async def test_memories_by_their_ids(api: Api) -> None:
    await api.add("I drink tea", "You drink milk", "They drink", item_id="one")
    await api.ask("POST", "delete_memory", {"memory_ids": ["one.1"], "user_id": "ann"})
    ids = ["one.2", "one.1", "none", "one.0", "one.2"]
    code, _, data = await api.ask("POST", "get_memory_by_ids", ids, user_id="ann")
    assert (code, [memory["id"] for memory in data["memories"]]) == (200, ["one.2", "one.0"])
    assert (await api.ask("POST", "get_memory_by_ids", [], user_id="ann"))[2] == {"memories": []}
    for body, words in (({"ids": []}, "body"), ([1], "body.0: "), (["x"] * 1001, "body: ")):
        code, message, _ = await api.ask("POST", "get_memory_by_ids", body, user_id="ann")
        assert (code, message.startswith(words)) == (422, True)


async def test_times_that_no_calendar_has(api: Api) -> None:
    await api.write(Remember(memory_id="1", text="tea for ever", valid_from=-(10**17), valid_to=10**17))
    _, _, memory = await api.ask("GET", "get_memory/1", user_id="ann")
    assert (memory["metadata"]["valid_from"], memory["metadata"]["valid_to"]) == (None, None)


# -- delete ----------------------------------------------------------------------------------------------


async def test_an_unknown_id_fails_and_the_others_are_deleted(api: Api) -> None:
    await api.add("I drink tea", item_id="one")
    await api.add("I drink tea", item_id="two", user_id="bob")
    body = {"memory_ids": ["two.0", "none", "one.0"], "user_id": "ann"}
    code, message, data = await api.ask("POST", "delete_memory", body)
    assert (code, message, data) == (200, "there is no memory 'two.0' of this user", {"status": "failure"})
    assert await api.texts("tea") == []
    assert await api.texts("tea", user_id="bob") == ["I drink tea"]


async def test_a_memory_of_another_cube_is_not_deleted(api: Api) -> None:
    await api.add("I drink tea", item_id="one", mem_cube_id="home")
    body = {"memory_ids": ["one.0"], "user_id": "ann"}
    _, _, data = await api.ask("POST", "delete_memory", body | {"writable_cube_ids": ["work"]})
    assert data == {"status": "failure"}
    assert await api.texts("tea") == ["I drink tea"]
    _, _, data = await api.ask("POST", "delete_memory", body | {"writable_cube_ids": ["work", "home"]})
    assert data == {"status": "success"}
    assert await api.texts("tea") == []


async def test_a_memory_that_is_deleted_before_it_is_settled_never_comes(api: Api) -> None:
    await api.add("I drink tea", "You drink tea", item_id="one", settle=False)
    body = {"memory_ids": ["one.0"], "user_id": "ann"}
    assert (await api.ask("POST", "delete_memory", body))[2] == {"status": "success"}
    assert (await api.ask("GET", "get_memory/one.0", user_id="ann"))[0] == 410
    await api.settle()
    assert (await api.ask("GET", "get_memory/one.0", user_id="ann"))[0] == 410
    assert await api.texts("tea") == ["You drink tea"]


@pytest.mark.parametrize("name", ["session_id", "conversation_id"])
async def test_a_whole_conversation_is_deleted(api: Api, name: str, monkeypatch) -> None:
    monkeypatch.setattr("reverie.api.memories.PAGE", 2)
    await api.add(*(f"tea {number}" for number in range(5)), session_id="s", mem_cube_id="home")
    await api.add("tea at work", session_id="s", mem_cube_id="work")
    await api.add("other tea", session_id="t")
    await api.add("tea of bob", session_id="s", user_id="bob")
    body = {"user_id": "ann", name: "s"}
    answer = await api.ask("POST", "delete_memory", body | {"writable_cube_ids": ["home"]})
    assert answer == (200, "deleted memories: 5", {"status": "success"})
    assert await api.texts("tea", dedup="no") == ["other tea", "tea at work"]
    assert (await api.ask("POST", "delete_memory", body))[1] == "deleted memories: 1"
    assert await api.texts("tea") == ["other tea"]
    assert await api.texts("tea", user_id="bob") == ["tea of bob"]


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({}, 400, "give memory_ids, user_id, session_id or filter"),
        ({"user_id": "ann", "memory_ids": []}, 400, "give either memory_ids (at least one), or a session_id"),
        ({"user_id": "ann", "memory_ids": ["a"], "session_id": "s"}, 400, "give either memory_ids"),
        ({"user_id": "ann", "memory_ids": ["a"], "filter": {"tags": "x"}}, 400, "give either memory_ids"),
        ({"session_id": "s"}, 400, "this key may touch several users: say whose memories, with user_id"),
        ({"memory_ids": ["a"] * 101}, 400, "101 ids without a user: give user_id, or at most 100 ids"),
        ({"user_id": "ann", "file_ids": ["f"]}, 501, "file_ids: memories have no files: give memory_ids"),
        ({"user_id": "ann", "filter": {"and": [{"mood": "x"}]}}, 400, "filter='mood': memories cannot be"),
        ({"user_id": "ann", "memory_ids": [""]}, 400, "memory_id='': must not be empty"),
        ({"user_id": "", "memory_ids": ["a"]}, 400, "user_id='': must not be empty"),
        ({"user_id": "ann", "memory_ids": "a"}, 422, "body.memory_ids: "),
    ],
)
async def test_a_delete_that_is_refused(api: Api, body: dict, code: int, words: str) -> None:
    got, message, data = await api.ask("POST", "delete_memory", body)
    assert (got, message[: len(words)]) == (code, words)
    assert data is None


# -- the document ----------------------------------------------------------------------------------------


async def test_the_document_describes_these_answers(api: Api) -> None:
    await api.add("I drink tea", "So do I", item_id="one", session_id="s")
    await api.write(Remember(memory_id="p", text="prefers tea", kind="preference"))
    document = create_app(api.scheduler, run_worker=False).openapi()
    schemas = document["components"]["schemas"]
    found = await api.search("tea", explain=True, neighbor_discovery=True)
    assert fits(found, schemas["Found"], document)
    assert set(found) == set(schemas["Found"]["properties"])
    (memory,) = found["pref_mem"][0]["memories"]
    assert set(memory["metadata"]) == set(schemas["Metadata"]["properties"])
    assert set(memory) == set(schemas["FoundMemory"]["properties"])
