"""One message from capture to memory, through every face and on every kind of place."""

from __future__ import annotations

import json
import signal
import textwrap

import pytest

from reverie import AsyncScheduler, Done, Message, Remember, Scheduler, Turn
from support.places import PLACES, SHARED, Place

EVERYWHERE = pytest.mark.parametrize("place", PLACES, indirect=True)
BETWEEN_PROCESSES = pytest.mark.parametrize("place", SHARED, indirect=True)


@EVERYWHERE
def test_from_python(place: Place) -> None:
    with Scheduler(settings=place.settings()) as scheduler:
        receipt = scheduler.memory.add("I moved to Lisbon in May", user_id="ann", session_id="s1")
        assert receipt.status == "accepted"
        assert scheduler.wait(receipt.item_id, user_id="ann").status == "completed"
        (hit,) = scheduler.memory.search("who moved to Lisbon?", user_id="ann", note=False)
        assert hit.text == "I moved to Lisbon in May"
        assert (hit.sources[0].item_id, hit.sources[0].index, hit.sources[0].role) == (
            receipt.item_id,
            0,
            "user",
        )
        assert hit.item.session_id == "s1"
        assert scheduler.memory.get(hit.item.id, user_id="ann") == hit.item
        assert not scheduler.memory.search("Lisbon", user_id="bob")
        assert scheduler.memory.get(hit.item.id, user_id="bob") is None


@EVERYWHERE
async def test_from_async_python(place: Place) -> None:
    async with AsyncScheduler(settings=place.settings()) as scheduler:
        turns = [Turn(content="I like tea", role="user"), Turn(content="Noted: tea", role="assistant")]
        receipt = await scheduler.memory.add(turns, user_id="ann")
        await scheduler.wait(receipt.item_id, user_id="ann")
        hits = await scheduler.memory.search("tea", user_id="ann")
        assert sorted((hit.sources[0].index, hit.sources[0].role) for hit in hits) == [
            (0, "user"),
            (1, "assistant"),
        ]


@EVERYWHERE
def test_a_handler_of_ones_own_with_effects_and_follow_ups(place: Place) -> None:
    scheduler = Scheduler(settings=place.settings())
    seen = []

    @scheduler.handler("import")
    def import_note(message: Message, ctx) -> Done:
        effect = Remember(memory_id="note-1", text=f"imported {message.json()['doc']}", kind="event")
        return Done(
            effects=[effect],
            follow_ups=[Message(user_id=message.user_id, label="check", content="of note-1")],
        )

    scheduler.handler("check")(lambda message: seen.append((message.content, message.task_id)))
    with scheduler:
        receipt = scheduler.submit("import", user_id="ann", content={"doc": "seven"}, task_id="t")
        scheduler.wait(receipt.item_id, user_id="ann")
        (follow_up,) = [row for row in scheduler.status("ann", "t") if row.task_type == "check"]
        scheduler.wait(follow_up.item_id, user_id="ann")
        assert seen == [("of note-1", "t")]
        assert scheduler.memory.get("note-1", user_id="ann").kind == "event"
        assert scheduler.get_task_status_by_business_id("t", "ann")["status"] == "completed"
        assert scheduler.get_task_status_by_business_id("nobody's", "ann") is None


@BETWEEN_PROCESSES
def test_over_http(place: Place) -> None:
    with place.server() as server:
        turn = {"role": "user", "content": "I moved to Lisbon in May", "chat_time": "2026-05-02"}
        answer = server.client.post("/product/add", json={"user_id": "ann", "messages": [turn]}).json()
        assert (answer["code"], answer["message"]) == (200, "ok")
        (added,) = answer["data"]
        assert (added["memory"], added["cube_id"]) == ("I moved to Lisbon in May", "ann")
        assert (added["memory_type"], added["status"]) == ("LongTermMemory", "accepted")

        with place.scheduler() as scheduler:
            scheduler.wait(added["item_id"], user_id="ann")
        query = {"user_id": "ann", "task_id": added["item_id"]}
        answer = server.client.get("/product/scheduler/status", params=query).json()
        assert answer["data"] == [{"task_id": added["item_id"], "status": "completed"}]

        answer = server.client.post("/product/search", json={"user_id": "ann", "query": "Lisbon"}).json()
        (cube,) = answer["data"]["text_mem"]
        (memory,) = cube["memories"]
        assert (cube["cube_id"], memory["id"], memory["memory"]) == (
            "ann",
            added["memory_id"],
            added["memory"],
        )
        (source,) = memory["metadata"]["sources"]
        expected = {"item_id": added["item_id"], "index": 0, "role": "user", "chat_time": "2026-05-02"}
        assert source == {**expected, "name": None, "message_id": None, "type": "chat", "info": None}


@BETWEEN_PROCESSES
def test_from_the_shell(place: Place) -> None:
    added = place.command("add", "I moved to Lisbon in May", "--user", "ann", "--json")
    receipt = json.loads(added.stdout)
    assert receipt["status"] == "accepted"
    before = json.loads(place.command("status", receipt["item_id"], "-u", "ann", "--json").stdout)
    assert [row["status"] for row in before] == ["waiting"]
    assert place.command("worker", "--drain").returncode == 0
    after = json.loads(place.command("status", "-u", "ann", "--json").stdout)
    assert [(row["item_id"], row["status"]) for row in after] == [(receipt["item_id"], "completed")]
    (hit,) = json.loads(place.command("search", "Lisbon", "-u", "ann", "--json").stdout)["hits"]
    assert hit["item"]["text"] == "I moved to Lisbon in May"
    assert hit["item"]["sources"][0]["item_id"] == receipt["item_id"]
    table = place.command("search", "Lisbon", "-u", "ann").stdout
    assert "I moved to Lisbon" in table


@BETWEEN_PROCESSES
def test_a_users_handlers_in_a_worker(place: Place) -> None:
    (place.folder / "app.py").write_text(
        textwrap.dedent("""
            from reverie import Scheduler

            scheduler = Scheduler()

            @scheduler.handler("shout")
            def shout(message, ctx):
                print(message.content.upper(), flush=True)
        """)
    )
    receipt = json.loads(place.command("submit", "shout", "hello", "--user", "ann", "--json").stdout)
    worker = place.command("worker", "--drain", "--app", "app:scheduler")
    assert worker.stdout == "HELLO\n", worker.stderr
    with place.scheduler() as scheduler:
        assert scheduler.status("ann", receipt["item_id"])[0].status == "completed"


@BETWEEN_PROCESSES
def test_a_running_server_takes_up_what_another_process_submits(place: Place) -> None:
    with place.server() as server, place.scheduler() as scheduler:
        receipt = scheduler.memory.add("from elsewhere", user_id="ann")
        assert scheduler.wait(receipt.item_id, user_id="ann").status == "completed"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


@BETWEEN_PROCESSES
def test_a_server_without_a_worker_only_takes_in(place: Place) -> None:
    with place.server(API_SCHEDULER_ON="false") as server:
        body = {"user_id": "ann", "memory_content": "kept for later", "task_id": "t"}
        assert server.client.post("/product/add", json=body).status_code == 200
        answer = server.client.get(
            "/product/scheduler/status", params={"user_id": "ann", "task_id": "t"}
        ).json()
        assert answer["data"] == [{"task_id": "t", "status": "in_progress"}]
    place.command("worker", "--drain")
    with place.scheduler() as scheduler:
        assert scheduler.get_task_status_by_business_id("t", "ann")["status"] == "completed"
