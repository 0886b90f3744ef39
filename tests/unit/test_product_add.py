"""`POST /product/add`: all its fields, what it waits for, which files it reads, and its parsers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reverie import Done, InvalidWorkError, Message
from reverie.api.models import AddRequest
from reverie.capture.documents import LONGEST_PASSAGE, passages_of, read_document
from reverie.capture.intake import add_message
from reverie.errors import InvalidMessageError, NotSupportedError
from reverie.message import MessageLimits, check_message
from support.extractor import extract
from support.product import model_settings, serving
from support.scripted_model import Answer, scripted

if TYPE_CHECKING:
    from pathlib import Path

TEA = {"user_id": "ann", "messages": "I drink tea"}
SYNC = {"async_mode": "sync"}


# -- waiting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "fast", "fine"])
async def test_what_a_sync_add_has_answered_is_found(mode: str | None) -> None:
    async with serving() as product:
        added = await product.done("add", TEA | SYNC | {"writable_cube_ids": ["a", "b"], "mode": mode})
        assert await product.texts("tea") == ["I drink tea"] * 2
    assert [(entry["cube_id"], entry["status"]) for entry in added] == [
        ("a", "activated"),
        ("b", "activated"),
    ]
    assert len({entry["item_id"] for entry in added}) == 2


async def test_one_request_names_at_most_a_hundred_cubes() -> None:
    cubes = [f"c{number}" for number in range(101)]
    asks: dict[str, dict[str, Any]] = {
        "add": TEA | {"writable_cube_ids": cubes},
        "search": {"user_id": "ann", "query": "tea", "readable_cube_ids": cubes},
        "feedback": {
            "user_id": "ann", "history": None, "feedback_content": "No", "writable_cube_ids": cubes,
        },
        "chat/complete": {"user_id": "ann", "query": "tea", "readable_cube_ids": cubes},
        "get_all": {"user_id": "ann", "memory_type": "text_mem", "mem_cube_ids": cubes},
        "delete_memory": {"user_id": "ann", "writable_cube_ids": cubes},
    }  # fmt: skip
    async with serving(works=False) as product:
        for path, body in asks.items():
            code, message, _ = await product.ask(path, body)
            assert (code, "at most 100 items" in message) == (422, True), path
        assert await product.scheduler.status("ann") == []
        await product.done("add", TEA | {"writable_cube_ids": cubes[:100]})


async def test_a_request_does_not_become_more_than_a_body_may_be() -> None:
    async with serving(works=False, server={"max_body_bytes": 3000}) as product:
        long = {"user_id": "ann", "messages": "tea " * 300}
        code, message, _ = await product.ask("add", long | {"writable_cube_ids": ["a", "b", "c"]})
        assert (code, "server.max_body_bytes" in message) == (400, True)
        assert await product.scheduler.status("ann") == []
        assert len(await product.done("add", long | {"writable_cube_ids": ["a", "b"]})) == 2


async def test_a_sync_add_without_a_worker_keeps_nothing() -> None:
    async with serving(works=False) as product:
        response = await product.send("add", TEA | SYNC)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert "no live worker handles the label 'add', and nothing was kept" in response.json()["message"]
        assert await product.scheduler.status("ann") == []
        assert (await product.done("add", TEA))[0]["status"] == "accepted"


async def test_a_sync_add_that_is_not_settled_in_time_is_resolving() -> None:
    may_run = asyncio.Event()
    async with serving(server={"sync_timeout_s": 0.05}) as product:

        @product.scheduler.handler("add")
        async def add(message: Message) -> None:
            await may_run.wait()

        code, message, data = await product.ask("add", TEA | SYNC | {"item_id": "one"})
        assert (code, [entry["status"] for entry in data]) == (200, ["resolving"])
        assert "0.05 s (server.sync_timeout_s)" in message
        memory = await product.done("get_memory/one.0", user_id="ann")
        assert (memory["memory"], memory["metadata"]["status"]) == ("I drink tea", "resolving")
        may_run.set()
        assert (await product.scheduler.wait("one", user_id="ann")).status == "completed"
        (entry,) = await product.done("add", TEA | SYNC | {"item_id": "one"})  # the same once more
        assert entry["status"] == "activated"


async def test_a_sync_add_says_which_of_its_memories_were_deleted() -> None:
    async with serving() as product:
        turns = {"messages": [{"content": "I drink tea"}, {"content": "I drink milk"}]}
        add = {"user_id": "ann", "item_id": "one", **turns, **SYNC}
        await product.done("add", add)
        await product.done("delete_memory", {"user_id": "ann", "memory_ids": ["one.0"]})
        added = await product.done("add", add)
        assert [entry["status"] for entry in added] == ["deleted", "activated"]
        assert (await product.ask("get_memory/one.0", user_id="ann")).code == 410


async def test_a_sync_add_whose_work_fails_says_so() -> None:
    async with serving() as product:

        @product.scheduler.handler("add")
        async def add(message: Message) -> Done:
            raise InvalidWorkError("never")

        (entry,) = await product.done("add", TEA | SYNC)
        assert entry["status"] == "failed"


async def test_a_fine_add_waits_for_the_facts_of_its_turns() -> None:
    with scripted() as model:
        model.answers = extract
        async with serving(**model_settings(model.url)) as product:
            turns = [{"role": "user", "name": "Ann", "content": "I moved to Lisbon"}, {"content": "Hello"}]
            body = {"user_id": "ann", "messages": turns, **SYNC}
            fast = await product.done("add", body | {"mode": "fast"})
            assert (len(fast), model.calls) == (2, 0)
            fine = await product.done("add", body)
            assert model.calls == 1
            fact = await product.done(f"get_memory/{fine[-1]['memory_id']}", user_id="ann")
    assert [entry["memory"] for entry in fine] == ["I moved to Lisbon", "Hello", "Ann lives in Lisbon"]
    assert {entry["item_id"] for entry in fine} == {fine[0]["item_id"]}
    assert (fact["metadata"]["kind"], fact["metadata"]["sources"][0]["item_id"]) == (
        "fact",
        fine[0]["item_id"],
    )


async def test_a_model_that_hangs_does_not_keep_what_was_added() -> None:
    with scripted() as model:
        model.answers = lambda _: Answer(hangs=True)
        settings = model_settings(model.url) | {"server": {"sync_timeout_s": 0.5}, "worker": {"grace_s": 0.1}}
        async with serving(**settings) as product:
            code, message, data = await product.ask("add", TEA | SYNC)
            model.release.set()
    assert (code, message) == (200, "added; its facts are extracted later")
    assert [entry["status"] for entry in data] == ["activated"]


# -- fields ----------------------------------------------------------------------------------------------


async def test_fields_of_a_request_are_kept_with_its_memories() -> None:
    body = {
        "user_id": "ann",
        "task_id": "import",
        "manager_user_id": "eve",
        "project_id": "p1",
        "source": "phone",
        "operation": [{"anything": 1}],
        "chat_history": [{"role": "assistant", "content": "What do you drink?"}],
        "custom_tags": ["drinks"],
        "info": {"source": "mine"},
        "messages": [{"role": "tool", "content": "tea: 3", "tool_call_id": "call-1", "name": "stock"}],
    }
    async with serving() as product:
        (entry,) = await product.done("add", body | SYNC)
        memory = await product.done(f"get_memory/{entry['memory_id']}", user_id="ann")
        status = await product.done("scheduler/status", user_id="ann", task_id="import")
    metadata = memory["metadata"]
    assert metadata["session_id"] == "default_session"
    assert metadata["info"] == {
        "manager_user_id": "eve", "project_id": "p1", "source": "mine", "custom_tags": ["drinks"]
    }  # fmt: skip
    source = metadata["sources"][0]
    assert (source["role"], source["name"], source["message_id"]) == ("tool", "stock", "call-1")
    assert status == [{"task_id": "import", "status": "completed"}]


async def test_forms_of_messages() -> None:
    forms: list[tuple[Any, list[str]]] = [
        ("tea", ["tea"]),
        ([{"type": "text", "text": "tea"}], ["tea"]),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}], ["a\nb"]),
        ([{"role": "assistant", "tool_calls": [{}]}, {"content": "tea"}], ["tea"]),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}, {"content": "tea"}], ["tea"]),
        ([{"text": "tea"}], ["tea"]),
        ([{"content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "tea"}]}], ["tea"]),
    ]
    async with serving(works=False) as product:
        for messages, memories in forms:
            added = await product.done("add", {"user_id": "ann", "messages": messages})
            assert [entry["memory"] for entry in added] == memories


@pytest.mark.parametrize("messages", ["I drink tea", [{"role": "assistant", "content": "I drink tea"}]])
async def test_a_text_beside_messages_is_one_more_turn(messages: Any) -> None:
    async with serving() as product:
        given = {"user_id": "ann", "messages": messages, "memory_content": "I drink milk", **SYNC}
        added = await product.done("add", given)
        assert [entry["memory"] for entry in added] == ["I drink tea", "I drink milk"]
        last = await product.done(f"get_memory/{added[1]['memory_id']}", user_id="ann")
        assert [source["role"] for source in last["metadata"]["sources"]] == ["user"]


async def test_an_add_that_is_refused_keeps_nothing() -> None:
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"messages": [{"type": "file", "file": {"file_id": "1"}}]}, 501, "a part of the type 'file'"),
        ({"messages": [{"content": ["tea", {"type": "file"}]}]}, 501, "a part of the type 'file'"),
        ({"messages": [{"content": [{"type": "image_url"}]}]}, 501, "a part of the type 'image_url'"),
        ({"is_upload_skill": True}, 501, "is_upload_skill: there are no memories of skills"),
        ({"messages": [{"type": "text"}]}, 422, "must have a text"),
        ({"messages": [{"content": [7]}]}, 422, "must be an object with a text"),
        ({"messages": [{"role": "user"}]}, 422, "content: Field required"),
        ({"messages": []}, 422, "there is nothing to remember"),
        ({"messages": " "}, 400, "has nothing to remember"),
        ({"async_mode": "later"}, 422, "body.async_mode: Input should be 'async' or 'sync'"),
        ({"mode": "best"}, 422, "body.mode: Input should be 'fast' or 'fine'"),
        ({"doc_path": "notes.txt"}, 400, "this server reads no files: set documents_folder"),
        ({"info": {"page": "x" * 65_536}}, 400, "at most 65536 are allowed (limits.max_info_bytes)"),
        (
            {"info": {"page": "x" * 60_000}, "messages": [{"role": "user", "content": "hi"}] * 300},
            400,
            "each of the 300 turns would keep a copy: together at most 16777216 bytes are allowed",
        ),
        ({"custom_tags": ["x"] * 101}, 422, "body.custom_tags: List should have at most 100 items"),
        ({"custom_tags": ["x" * 201]}, 422, "body.custom_tags.0: String should have at most 200 characters"),
        ({"item_id": "a", "writable_cube_ids": ["a", "b"]}, 422, "item_id can be given for one cube only"),
    ]
    async with serving(works=False) as product:
        for fields, code, words in refused:
            answer = await product.ask("add", TEA | fields)
            assert (answer.code, words in answer.message) == (code, True), answer.message
        assert await product.scheduler.status("ann") == []


# -- documents -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "notes.txt").write_text("I drink tea\n\nYou drink milk")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    (folder / "long.txt").write_text("x" * 101)
    (folder / "empty.txt").write_text(" \n\n ")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inner.txt").symlink_to(folder / "deep" / "notes.txt")
    os.mkfifo(folder / "pipe")
    return folder


async def test_a_document_below_the_folder_becomes_memories(folder: Path) -> None:
    async with serving(documents_folder=str(folder)) as product:
        for name in ("deep/notes.txt", "./deep//notes.txt", str(folder / "deep" / "notes.txt")):
            (entry,) = await product.done("add", {"user_id": "ann", "doc_path": name, **SYNC})
            memory = await product.done(f"get_memory/{entry['memory_id']}", user_id="ann")
            assert memory["memory"] == "I drink tea\n\nYou drink milk"
            assert memory["metadata"]["sources"][0]["type"] == "doc"
            assert memory["metadata"]["info"] == {"doc_path": name}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../secret.txt", "must be a file below documents_folder"),
        ("deep/../../secret.txt", "must be a file below documents_folder"),
        ("deep/../deep/notes.txt", "must be a file below documents_folder"),
        ("/etc/passwd", "must be a file below documents_folder"),
        (".", "must be a file below documents_folder"),
        ("link.txt", "links are not followed"),
        ("inner.txt", "links are not followed"),
        ("up/secret.txt", "links are not followed"),
        ("deep", "is no plain file"),
        ("pipe", "is no plain file"),
        ("none.txt", "is no plain file"),
        ("deep/notes.txt/x", "is no plain file"),
        ("a\0b", "is no plain file"),
        ("\udfff", "is no plain file"),
        ("x" * 5000, "is no plain file"),
        ("long.txt", "may have at most 100 bytes"),
        ("empty.txt", "has nothing to remember"),
    ],
)
def test_a_document_that_is_refused(folder: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidMessageError, match=words):
        read_document(folder, name, 100)


def test_only_text_is_read(folder: Path) -> None:
    with pytest.raises(NotSupportedError, match="only text files in UTF-8"):
        read_document(folder, "picture.png", 100)


# -- parsers ---------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    [*AddRequest.model_fields, "role", "content", "type", "text", "file", "tool_calls", "name", "other"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.sampled_from(["user", "text", "file", "sync", "fine", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
OPTIONAL = [name for name in AddRequest.model_fields if name not in {"user_id", "messages"}]
REQUESTS = st.fixed_dictionaries(
    {"user_id": st.just("ann") | VALUES, "messages": VALUES}, optional=dict.fromkeys(OPTIONAL, VALUES)
)


@given(REQUESTS)
def test_every_request_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        request = AddRequest.model_validate(body)
    except (ValidationError, NotSupportedError):
        return
    try:
        message = add_message(request.turns, user_id=request.user_id, info=request.full_info)
        check_message(message, MessageLimits())
    except InvalidMessageError:
        return
    assert any(turn.content.strip() for turn in request.turns)
    assert request.cubes
    assert request.waits_for_facts <= request.waits


@given(st.text() | st.text("ab \n", max_size=400).map(lambda text: text * 40))
def test_passages_have_all_words_of_a_text(text: str) -> None:
    passages = passages_of(text)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(passage) <= LONGEST_PASSAGE for passage in passages)
