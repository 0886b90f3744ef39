"""A server under MemOS's published Python client, and under a conversation in MemOS's own fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.living import wait_until
from support.memos_client import MemosClient, RefusedError, memos_client
from support.places import sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.places import Server

CONVERSATION = [
    {"role": "user", "content": "I moved to Lisbon in May", "chat_time": "2026-05-02", "message_id": "m1"},
    {"role": "assistant", "content": "How do you like Lisbon?"},
]


class Served(NamedTuple):
    """A running server, and a key for ann and one for bob."""

    server: Server
    ann: str
    bob: str

    def client(self, token: str, folder) -> Iterator[MemosClient]:
        return memos_client(str(self.server.client.base_url).rstrip("/"), token, folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sqlite(tmp_path_factory.mktemp("memos")) as place:
        with place.scheduler() as scheduler:
            tokens = [scheduler.keys.create(name, users=[name]).token for name in ("ann", "bob")]
        with place.server() as server:
            yield Served(server, *tokens)


def test_the_published_client_works_by_its_base_address(served: Served, tmp_path) -> None:
    with served.client(served.ann, tmp_path) as client:

        def wait_for(task: dict) -> None:
            wait_until(
                lambda: client("get_task_status", task_id=task["task_id"])["data"]["status"] == "completed"
            )

        whose = {"user_id": "ann", "conversation_id": "may"}
        added = client("add_message", messages=CONVERSATION, tags=["travel"], **whose)
        assert (added["code"], added["data"]["success"]) == (0, True)
        wait_for(added["data"])
        found = client("search_memory", query="Where did I move in May?", relativity=0, **whose)["data"]
        memory = found["memory_detail_list"][0]
        assert (memory["memory_value"], memory["tags"]) == ("I moved to Lisbon in May", ["travel"])
        assert memory["conversation_id"] == "may"
        listed = client("get_memory", user_id="ann")["data"]
        assert (listed["total"], listed["pages"]) == (2, 1)
        assert listed["memory_detail_list"][0]["id"] == memory["id"]
        said = client("get_message", **whose)["data"]["message_detail_list"]
        assert [(message["role"], message["content"]) for message in said] == [
            (turn["role"], turn["content"]) for turn in CONVERSATION
        ]
        words = "No, I moved to Braga in May"
        wait_for(client("add_feedback", feedback_content=words, **whose)["data"])
        corrected = client("get_memory_by_id", memid=memory["id"])["data"]
        assert "Braga" in corrected["memory_value"]
        client("update_memory", memory_id=memory["id"], content="I moved to Porto in May")
        assert client("get_memory_by_id", memid=memory["id"])["data"]["memory_value"].startswith(
            "I moved to Po"
        )
        assert client("delete_memory", memory_ids=[said[1]["message_id"]])["data"]["success"]
        with served.client(served.bob, tmp_path) as stranger:
            for status, method, arguments in (
                (403, "search_memory", {"query": "Porto", "user_id": "ann"}),
                (404, "get_task_status", {"task_id": added["data"]["task_id"]}),
                (404, "get_memory_by_id", {"memid": memory["id"]}),
            ):
                with pytest.raises(RefusedError) as refused:
                    stranger(method, **arguments)
                assert refused.value.status == status
            theirs = stranger("search_memory", query="Porto", user_id="bob", relativity=0)["data"]
            assert theirs["memory_detail_list"] == []


def test_a_conversation_in_the_fields_of_memos(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.bob}"}

    def ask(method: str, path: str, body: dict | None = None, **query: object) -> dict:
        url = f"/product/{path}"
        response = served.server.client.request(method, url, json=body, params=query, headers=headers)
        answer = response.json()
        assert (response.status_code, answer["code"]) == (200, 200), answer
        return answer

    whose = {"user_id": "bob", "session_id": "june"}
    added = ask(
        "POST",
        "add",
        {
            **whose,
            "task_id": "talk",
            "writable_cube_ids": ["bob"],
            "async_mode": "async",
            "custom_tags": ["travel"],
            "info": {"scene": "chat"},
            "messages": CONVERSATION,
            "chat_history": [],
            "is_feedback": False,
        },
    )["data"]
    assert [entry["memory"] for entry in added] == [turn["content"] for turn in CONVERSATION]
    assert ask("POST", "scheduler/wait", user_name="bob", timeout_seconds=30)["message"] == "idle"
    asked = {
        **whose,
        "query": "Where did I move in May?",
        "readable_cube_ids": ["bob"],
        "mode": "fast",
        "top_k": 10,
        "relativity": 0,
        "dedup": "mmr",
        "include_preference": True,
        "pref_top_k": 6,
        "search_tool_memory": True,
        "internet_search": False,
    }
    (cube,) = ask("POST", "search", asked)["data"]["text_mem"]
    first = cube["memories"][0]
    assert (cube["cube_id"], first["memory"]) == ("bob", "I moved to Lisbon in May")
    assert (first["id"], first["metadata"]["tags"]) == (added[0]["memory_id"], ["travel"])
    feedback = {
        **whose,
        "history": [{"role": "assistant", "content": "You moved to Lisbon in May."}],
        "feedback_content": "No, I moved to Braga in May",
        "retrieved_memory_ids": [first["id"]],
        "feedback_time": "2026-06-01",
        "writable_cube_ids": ["bob"],
        "async_mode": "sync",
        "corrected_answer": True,
        "task_id": "talk",
    }
    ((update,),) = [given["record"]["update"] for given in ask("POST", "feedback", feedback)["data"]]
    assert (update["archived_id"], "Braga" in update["text"]) == (first["id"], True)
    assert ask("GET", f"get_memory/{first['id']}", user_id="bob")["data"]["id"] == update["id"]
    status = ask("GET", "scheduler/status", user_id="bob", task_id="talk")["data"]
    assert status == [{"task_id": "talk", "status": "completed"}]


def test_a_wrong_key_is_refused(served: Served, tmp_path) -> None:
    with served.client(served.ann[:-1], tmp_path) as client, pytest.raises(RefusedError) as refused:
        client("search_memory", query="Lisbon", user_id="ann")
    assert refused.value.status == 401
