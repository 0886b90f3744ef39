"""`/api/openmem/v1`: each route in the fields of MemOS's published client, in this process."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reverie import Done, Message, Remember
from support.documented import fits
from support.product import model_settings, serving
from support.scripted_model import Answer, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from support.product import Product

PREFIX = "/api/openmem/v1"


class OpenMem:
    """The routes of the published client; answers must be of the types that the document names."""

    def __init__(self, product: Product, **headers: str) -> None:
        self.product = product
        self.headers = headers
        self._document = product.client._transport.app.openapi()

    async def send(self, path: str, body: Any = None, **query: Any) -> httpx.Response:
        method = "GET" if body is None else "POST"
        url = f"{PREFIX}/{path}"
        return await self.product.client.request(
            method, url, json=body, params=query or None, headers=self.headers
        )

    async def ask(self, path: str, body: Any = None, **query: Any) -> Any:
        """The data of a success."""
        response = await self.send(path, body, **query)
        assert response.status_code == 200, response.text
        answer = response.json()
        name = path if not path.startswith("get/memory/") else "get/memory/{memory_id}"
        operation = self._document["paths"][f"{PREFIX}/{name}"]["get" if body is None else "post"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert fits(answer, schema, self._document)
        assert answer["code"] == 0
        return answer["data"]

    async def refused(self, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        response = await self.send(path, body, **query)
        answer = response.json()
        assert answer["code"] == response.status_code
        return answer["code"], answer["message"]

    async def add(self, *texts: str, user_id: Any = "ann", **fields: Any) -> dict[str, Any]:
        """Add texts, and wait until they can be found."""
        messages = [{"role": "user", "content": text} for text in texts]
        body = {"user_id": user_id, "conversation_id": "may", "messages": messages, "async_mode": False}
        added = await self.ask("add/message", body | fields)
        assert (added["success"], added["status"]) == (True, "completed")
        return added

    async def search(self, query: str, user_id: str | None = "ann", **fields: Any) -> dict[str, Any]:
        return await self.ask("search/memory", {"query": query, "user_id": user_id, "relativity": 0} | fields)

    async def texts(self, query: str, **fields: Any) -> list[str]:
        found = await self.search(query, **fields)
        return sorted(detail["memory_value"] for detail in found["memory_detail_list"])

    async def memory_id(self, query: str, **fields: Any) -> str:
        return (await self.search(query, **fields))["memory_detail_list"][0]["id"]


@asynccontextmanager
async def keyed(api: OpenMem, *users: str, role: str = "user", **rights: Any) -> AsyncIterator[OpenMem]:
    """The routes for the owner of a new key, sent as the client sends it."""
    made = await api.product.scheduler.keys.create("key", role, users=users or None, **rights)
    yield OpenMem(api.product, authorization=f"Token {made.token}")


@pytest.fixture
async def api() -> AsyncIterator[OpenMem]:
    async with serving() as product:
        yield OpenMem(product)


# -- add, status -------------------------------------------------------------------------------------------


async def test_what_is_added_is_a_task_until_it_can_be_found(api: OpenMem) -> None:
    body = {
        "user_id": "ann",
        "conversation_id": "may",
        "messages": [{"role": "user", "content": "I drink tea"}],
    }
    added = await api.ask("add/message", body)
    assert (added["success"], added["status"]) == (True, "running")
    await api.product.scheduler.observe.wait_idle("ann", timeout=30)
    for way in ({"body": {"task_id": added["task_id"]}}, {"task_id": added["task_id"]}):
        assert await api.ask("get/status", **way) == {"task_id": added["task_id"], "status": "completed"}
    assert await api.texts("tea") == ["I drink tea"]


async def test_a_task_of_several_users_has_one_status(api: OpenMem) -> None:
    added = await api.add("We drink tea", user_id=["ann", "b,o@b"])
    assert (await api.ask("get/status", {"task_id": added["task_id"]}))["status"] == "completed"
    for user in ("ann", "b,o@b"):
        assert await api.texts("tea", user_id=user) == ["We drink tea"]


async def test_a_failed_task_is_failed(api: OpenMem) -> None:
    @api.product.scheduler.handler("break", max_attempts=1)
    def break_it(message: Message) -> Done:
        raise ValueError("no")

    await api.product.scheduler.submit("break", user_id="ann", item_id="one")
    await api.product.scheduler.observe.wait_idle("ann", timeout=30)
    assert (await api.ask("get/status", {"task_id": "one@ann"}))["status"] == "failed"


async def test_fields_of_the_client_are_kept_with_a_memory(api: OpenMem) -> None:
    await api.add(
        "I drink tea",
        info={"mood": "good"},
        tags=["drinks"],
        app_id="kitchen",
        agent_id="butler",
        source="phone",
        allow_public=True,
        allow_knowledgebase_ids=["kb"],
    )
    (detail,) = (await api.search("tea", agent_id="butler"))["memory_detail_list"]
    assert detail["tags"] == ["drinks"]
    info = {name: detail["info"][name] for name in ("mood", "app_id", "agent_id", "source")}
    assert info == {"mood": "good", "app_id": "kitchen", "agent_id": "butler", "source": "phone"}
    assert await api.texts("tea", agent_id="cook") == []


async def test_an_agent_without_a_user_has_memories_of_its_own(api: OpenMem) -> None:
    await api.add("Guests drink tea", user_id=None, agent_id="butler")
    assert await api.texts("tea", user_id=None, agent_id="butler") == ["Guests drink tea"]
    assert await api.texts("tea", user_id="butler") == []


async def test_an_add_that_is_not_clear_is_refused(api: OpenMem) -> None:
    for body in (
        {"messages": [{"role": "user", "content": "tea"}]},
        {"user_id": "ann", "messages": []},
        {"user_id": "ann", "messages": ""},
        {"user_id": [], "messages": "tea"},
        {"user_id": "ann", "agent_id": ["one", "two"], "messages": "tea"},
    ):
        assert (await api.refused("add/message", body))[0] == 422


async def test_a_task_that_there_is_not(api: OpenMem) -> None:
    for task_id, code in {"nothing@ann": 404, "@ann": 404, "one@": 400, "one": 400, "": 400}.items():
        assert (await api.refused("get/status", {"task_id": task_id}))[0] == code


# -- search, get -------------------------------------------------------------------------------------------


async def test_a_search_shows_memories_and_preferences(api: OpenMem) -> None:
    @api.product.scheduler.handler("write")
    def write(message: Message) -> Done:
        preference = Remember(
            memory_id="p",
            text="Prefers tea",
            kind="preference",
            narrative="She asked for tea.",
            session_id="s",
        )
        titled = Remember(memory_id="t", text="Ann keeps tea in a tin", title="Tea tin", tags=("home",))
        return Done(effects=[preference, titled])

    await api.product.scheduler.submit("write", user_id="ann")
    await api.product.scheduler.observe.wait_idle("ann", timeout=30)
    found = await api.search("tea")
    (memory,) = found["memory_detail_list"]
    (preference,) = found["preference_detail_list"]
    assert 0 < memory.pop("relativity") <= 1
    assert memory["create_time"] == memory["update_time"] == preference["create_time"] > 1_700_000_000_000
    wanted = {"id": "t", "memory_key": "Tea tin", "memory_value": "Ann keeps tea in a tin", "tags": ["home"]}
    assert wanted.items() <= memory.items()
    assert (memory["memory_type"], memory["status"]) == ("LongTermMemory", "activated")
    assert (preference["id"], preference["preference"]) == ("p", "Prefers tea")
    assert (preference["reasoning"], preference["conversation_id"]) == ("She asked for tea.", "s")
    assert found["preference_note"]
    assert (await api.search("tea", include_preference=False))["preference_detail_list"] == []
    assert (await api.search("tea", preference_limit_number=0))["preference_note"] == ""
    moved = {"memory_type": "WorkingMemory", "update_time": 0}  # the searches may have moved it meanwhile
    assert await api.ask("get/memory/t") | moved == memory | moved
    page = await api.ask("get/memory", {"user_id": "ann"})
    assert [detail["id"] for detail in page["preference_detail_list"]] == ["p"]
    page = await api.ask("get/memory", {"user_id": "ann", "include_preference": False})
    assert page["preference_detail_list"] == []
    assert (await api.ask("get/memory/p"))["preference"] == "Prefers tea"


async def test_a_search_heeds_its_limits_and_its_filter(api: OpenMem) -> None:
    await api.add("I drink green tea", "I drink black tea", tags=["drinks"])
    await api.add("I sell tea", tags=["work"])
    assert len(await api.texts("tea", memory_limit_number=2)) == 2
    assert await api.texts("tea", filter={"and": [{"tags": {"contains": "work"}}]}) == ["I sell tea"]
    later = {"and": [{"create_time": {"gte": "2999-01-01"}}]}
    assert await api.texts("tea", filter=later) == []
    assert await api.texts("Mount Everest", relativity=1) == []
    code, message = await api.refused(
        "search/memory", {"user_id": "ann", "query": "tea", "filter": {"scene": "chat"}}
    )
    assert (code, "scene" in message) == (400, True)


async def test_memories_are_listed_page_by_page(api: OpenMem) -> None:
    await api.add("one", "two", "three", tags=["first"])
    await api.add("four")
    first = await api.ask("get/memory", {"user_id": "ann", "size": 3})
    assert [detail["memory_value"] for detail in first["memory_detail_list"]] == ["one", "two", "three"]
    assert (first["total"], first["pages"], first["current"], first["size"]) == (4, 2, 1, 3)
    second = await api.ask("get/memory", {"user_id": "ann", "size": 3, "page": 2})
    assert [detail["memory_value"] for detail in second["memory_detail_list"]] == ["four"]
    tagged = await api.ask("get/memory", {"user_id": "ann", "filter": {"tags": "first"}})
    assert (tagged["total"], tagged["pages"], tagged["preference_detail_list"]) == (3, 1, [])
    assert (await api.ask("get/memory", {"agent_id": "ann"}))["total"] == 0


async def test_a_memory_without_a_title_is_named_by_its_beginning(api: OpenMem) -> None:
    await api.add("茶" * 100, "short")
    keys = {detail["memory_key"] for detail in (await api.search("茶"))["memory_detail_list"]}
    assert f"{'茶' * 59}…" in keys
    assert keys <= {f"{'茶' * 59}…", "short"}


async def test_the_last_messages_of_a_conversation(api: OpenMem) -> None:
    turns = [
        {"role": "user", "content": "Tea?", "message_id": "m1", "chat_time": "2026-05-02"},
        {"role": "assistant", "content": "Yes"},
    ]
    await api.add(messages=turns)
    await api.add("Something else", conversation_id="june")
    asked = {"user_id": "ann", "conversation_id": "may"}
    messages = (await api.ask("get/message", asked))["message_detail_list"]
    shown = [(message["role"], message["content"]) for message in messages]
    assert shown == [("user", "Tea?"), ("assistant", "Yes")]
    assert (messages[0]["message_id"], messages[0]["chat_time"]) == ("m1", "2026-05-02")
    last = await api.ask("get/message", asked | {"message_limit_number": 1})
    assert [message["content"] for message in last["message_detail_list"]] == ["Yes"]
    everywhere = (await api.ask("get/message", {"user_id": "ann"}))["message_detail_list"]
    assert [message["conversation_id"] for message in everywhere] == ["may", "may", "june"]


# -- change, delete ----------------------------------------------------------------------------------------


async def test_a_memory_is_changed_archived_and_deleted(api: OpenMem) -> None:
    await api.add("I drink tea", "Mount Everest is high")
    memory_id = await api.memory_id("tea", memory_limit_number=1)
    changed = await api.ask(
        "update/memory", {"memory_id": memory_id, "content": "I drink milk", "title": "Drink"}
    )
    assert changed == {"success": True, "memory_id": memory_id}
    detail = await api.ask(f"get/memory/{memory_id}")
    assert (detail["memory_key"], detail["memory_value"]) == ("Drink", "I drink milk")
    for status in ("archived", "activated"):
        await api.ask("update/memory", {"memory_id": memory_id, "status": status})
        assert (await api.ask(f"get/memory/{memory_id}"))["status"] == status
    await api.ask("update/memory", {"memory_id": memory_id, "status": "deleted"})
    assert (await api.refused(f"get/memory/{memory_id}"))[0] == 410
    assert (await api.refused("update/memory", {"memory_id": memory_id, "title": "x"}))[0] == 410
    assert (await api.refused("update/memory", {"memory_id": memory_id}))[0] == 422
    assert (await api.refused("update/memory", {"memory_id": "no", "title": "x"}))[0] == 404


async def test_memories_are_deleted_by_their_ids_or_all_of_a_user(api: OpenMem) -> None:
    await api.add("I drink tea", "I drink milk", "I drink water")
    tea = await api.memory_id("tea", memory_limit_number=1)
    assert await api.ask("delete/memory", {"memory_ids": [tea]}) == {"success": True}
    assert await api.ask("delete/memory", {"memory_ids": [tea, "nothing"]}) == {"success": False}
    assert await api.texts("drink") == ["I drink milk", "I drink water"]
    await api.add("I drink tea", user_id="bob")
    assert await api.ask("delete/memory", {"user_id": "ann"}) == {"success": True}
    assert await api.texts("drink") == []
    assert await api.texts("drink", user_id="bob") == ["I drink tea"]
    for unclear in (
        {},
        {"memory_ids": []},
        {"user_id": "bob", "agent_id": "butler"},
        {"filter": {"tags": "x"}},
    ):
        assert (await api.refused("delete/memory", unclear))[0] in {400, 422}
    assert await api.texts("drink", user_id="bob") == ["I drink tea"]


async def test_memories_are_deleted_by_a_filter_or_a_type(api: OpenMem) -> None:
    await api.add("I drink tea", tags=["drinks"])
    await api.add("I sell tea")
    assert (await api.refused("delete/memory", {"user_id": "ann", "memory_type": "nothing"}))[0] == 400
    assert await api.ask("delete/memory", {"user_id": "ann", "memory_type": "PreferenceMemory"})
    assert len(await api.texts("tea")) == 2
    async with keyed(api, "ann") as ann:
        body = {"filter": {"and": [{"tags": "drinks"}]}, "memory_type": "LongTermMemory"}
        assert await ann.ask("delete/memory", body) == {"success": True}
        assert await ann.texts("tea") == ["I sell tea"]


async def test_an_id_that_two_users_have_needs_a_user(api: OpenMem) -> None:
    body = {"messages": "I drink tea", "item_id": "same", "async_mode": "sync"}
    for user in ("ann", "bob"):
        await api.product.done("add", body | {"user_id": user})
    assert (await api.refused("get/memory/same.0"))[0] == 409
    assert (await api.refused("delete/memory", {"memory_ids": ["same.0"]}))[0] == 409
    assert (await api.refused("update/memory", {"memory_id": "same.0", "title": "x"}))[0] == 409
    assert (await api.ask("get/memory/same.0", user_id="bob"))["memory_value"] == "I drink tea"
    await api.ask("update/memory", {"memory_id": "same.0", "user_id": "bob", "title": "Bob's"})
    await api.ask("delete/memory", {"memory_ids": ["same.0"], "user_id": "ann"})
    async with keyed(api, "bob") as bob:
        assert (await bob.ask("get/memory/same.0"))["memory_key"] == "Bob's"
        assert (await bob.ask("get/status", {"task_id": "same"}))["status"] == "completed"


async def test_feedback_corrects_a_memory(api: OpenMem) -> None:
    await api.add("I drink green tea")
    memory_id = await api.memory_id("tea")
    body = {"user_id": "ann", "conversation_id": "may", "feedback_content": "No, I drink black tea"}
    given = await api.ask("add/feedback", body)
    assert (given["success"], given["status"]) == (True, "running")
    await api.product.scheduler.observe.wait_idle("ann", timeout=30)
    assert (await api.ask("get/status", {"task_id": given["task_id"]}))["status"] == "completed"
    (text,) = await api.texts("tea")
    assert "black" in text
    assert (await api.ask(f"get/memory/{memory_id}"))["memory_value"] == text
    assert (await api.refused("add/feedback", body | {"feedback_content": " "}))[0] == 422


# -- chat ------------------------------------------------------------------------------------------------


async def test_a_chat_knows_the_memories_and_the_conversation() -> None:
    with scripted() as model:
        model.answers = lambda _: Answer(text="Green tea.")
        async with serving(**model_settings(model.url)) as product:
            api = OpenMem(product)
            await product.add("I drink green tea", session_id="may")
            await product.add("Something else", session_id="june")
            body = {"user_id": "ann", "conversation_id": "may", "query": "What do I drink?", "relativity": 0}
            body |= {"max_tokens": 100, "temperature": 0.7, "top_p": 0.95, "model_name": None}
            assert await api.ask("chat", body | {"add_message_on_answer": False}) == {
                "response": "Green tea."
            }
            system, said, question = model.requests[-1].body["messages"]
            assert "green tea" in system["content"]
            assert (said["content"], question["content"]) == ("I drink green tea", "What do I drink?")
            streamed = await api.send("chat", body | {"stream": True})
            assert streamed.headers["content-type"].startswith("text/event-stream")
            events = [json.loads(line[5:]) for line in streamed.text.splitlines() if line.startswith("data:")]
            assert "".join(event["data"] for event in events) == "Green tea."
            for row in await product.scheduler.status("ann"):
                if row.task_type == "add":
                    await product.scheduler.wait(row.item_id, user_id="ann")
            talk = await api.ask("get/message", {"user_id": "ann", "conversation_id": "may"})
            words = [message["content"] for message in talk["message_detail_list"]]
            assert words == ["I drink green tea", "What do I drink?", "Green tea."]


async def test_a_chat_without_a_model_says_what_to_set(api: OpenMem) -> None:
    for stream in (False, True):
        code, message = await api.refused("chat", {"user_id": "ann", "query": "tea?", "stream": stream})
        assert (code, "llm.preset" in message) == (503, True)


# -- keys --------------------------------------------------------------------------------------------------


async def test_a_key_for_one_user_finds_nothing_of_another(api: OpenMem) -> None:
    added = await api.add("Ann hides the tea")
    memory_id = await api.memory_id("tea")
    async with keyed(api, "bob") as bob:
        assert (await api.refused("search/memory", {"user_id": "ann", "query": "tea"}))[0] == 401
        foreign = {"user_id": "ann", "query": "tea", "messages": "hello", "conversation_id": "may"}
        for path in ("search/memory", "add/message", "get/message", "delete/memory"):
            told = await bob.refused(path, foreign)
            assert told[0] == 403
            assert told == await bob.refused(path, foreign | {"conversation_id": "nothing"})
        for path, body in (
            ("get/status", {"task_id": added["task_id"]}),
            ("update/memory", {"memory_id": memory_id, "title": "x"}),
        ):
            code, message = await bob.refused(path, body)
            assert code == 404
            missing = {name: value.replace(memory_id[:8], "nothing8") for name, value in body.items()}
            assert await bob.refused(path, missing) == (code, message.replace(memory_id[:8], "nothing8"))
        assert (await bob.refused(f"get/memory/{memory_id}"))[0] == 404
        assert await bob.ask("delete/memory", {"memory_ids": [memory_id]}) == {"success": False}
        await bob.add("Bob drinks coffee", user_id="bob")
        assert await bob.texts("coffee", user_id="bob") == ["Bob drinks coffee"]
    async with keyed(api, "ann", role="read-only") as reader:
        assert await reader.texts("tea") == ["Ann hides the tea"]
        assert (await reader.refused("delete/memory", {"user_id": "ann"}))[0] == 403


async def test_a_key_for_a_cube_reads_only_that_cube(api: OpenMem) -> None:
    for cube in ("ann", "work"):
        body = {
            "user_id": "ann",
            "messages": f"I drink tea in {cube}",
            "mem_cube_id": cube,
            "async_mode": "sync",
        }
        await api.product.done("add", body)
    assert len(await api.texts("tea")) == 2
    async with keyed(api, "ann", cubes=["ann"]) as own:
        assert await own.texts("tea") == ["I drink tea in ann"]
        messages = await own.ask("get/message", {"user_id": "ann"})
        assert [message["content"] for message in messages["message_detail_list"]] == ["I drink tea in ann"]
    async with keyed(api, "ann", cubes=["work"]) as other:
        assert await other.texts("tea") == ["I drink tea in work"]
        body = {"user_id": "ann", "messages": "I drink tea"}
        assert (await other.refused("add/message", body))[0] == 403
        assert await other.ask("delete/memory", {"user_id": "ann"}) == {"success": True}
        assert await other.texts("tea") == []
    async with keyed(api, "ann") as ann:
        assert await ann.texts("tea") == ["I drink tea in ann"]
