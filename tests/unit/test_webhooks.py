"""Outgoing webhooks: which events are told to whom, how often they are tried, and what a failure leaves."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler
from reverie.backends.views import StatusQuery
from reverie.base.clock import from_epoch_ms
from reverie.effect import Delete, Remember, Supersede
from reverie.errors import (
    BackendUnavailableError,
    InvalidSelectionError,
    UnknownWebhookError,
    VersionConflictError,
)
from reverie.failures import InvalidWorkError
from reverie.message import SYSTEM_USER
from reverie.outcome import Done
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client
from support.extractor import extract
from support.receiving import receiver
from support.scripted_model import scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from reverie.backends.views import ItemStatus
    from reverie.testing import ManualClock
    from reverie.webhooks.records import NewWebhook
    from support.places import Place
    from support.receiving import Receiver

TEXT = "I moved to Lisbon in May"
ALL = [
    "memory.added",
    "memory.updated",
    "memory.superseded",
    "memory.deleted",
    "task.completed",
    "task.failed",
    "budget.reached",
]


@pytest.fixture(params=["memory", "sqlite", "two files"])
async def scheduler(request, tmp_path, clock: ManualClock) -> AsyncIterator[AsyncScheduler]:
    """A scheduler that may send to this machine: all in memory, in one file, or queue and memory apart."""
    queue = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.db'}"
    memory = f"sqlite:///{tmp_path / 'memory.db'}" if request.param == "two files" else None
    scheduler = new_scheduler(clock, queue={"url": queue}, memory={"url": memory})
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


def new_scheduler(clock: ManualClock, webhooks: dict[str, Any] | None = None, **settings) -> AsyncScheduler:
    allowed = {"allowed_hosts": ["127.0.0.1"], **(webhooks or {})}
    return AsyncScheduler(settings=load_settings(webhooks=allowed, **settings), clock=clock)


in_memory = pytest.mark.parametrize("scheduler", ["memory"], indirect=True)
"""For what is the same wherever queue and memory are."""


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as opened:
        yield opened


async def run(scheduler: AsyncScheduler) -> None:
    await scheduler.runtime.drain()


def events(server: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in server.all]


async def deliveries(scheduler: AsyncScheduler) -> list[ItemStatus]:
    return (await scheduler.runtime.backend.views.read(StatusQuery(user_id=SYSTEM_USER))).rows


def is_signed(made: NewWebhook, headers: dict[str, str], body: bytes) -> bool:
    """As the documentation tells a receiver to check it."""
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return hmac.compare_digest(expected, headers["webhook-signature"])


# -- what is told ------------------------------------------------------------------------------------


async def test_a_memory_that_was_added_is_told_by_its_id(scheduler: AsyncScheduler, server: Receiver) -> None:
    made = await scheduler.webhooks.create(server.url, ["memory.added"])
    await scheduler.memory.add(TEXT, user_id="ann", item_id="moved")
    await run(scheduler)
    ((path, headers, body),) = server.all
    assert path == "/alerts?team=a%20b"
    assert is_signed(made, headers, body)
    (delivery,) = await deliveries(scheduler)
    assert delivery.status == "completed"
    assert json.loads(body) == {
        "id": delivery.item_id,
        "type": "memory.added",
        "at": 1_800_000_000_000,
        "data": {
            "user_id": "ann",
            "mem_cube_id": "ann",
            "label": "add",
            "item_id": "moved",
            "memory_ids": ["moved.0"],
        },
    }
    assert headers["webhook-id"] == delivery.item_id
    assert b"Lisbon" not in body


@in_memory
async def test_content_is_told_to_whom_it_is_meant_for(scheduler: AsyncScheduler, server: Receiver) -> None:
    await scheduler.webhooks.create(server.url, ["memory.added", "task.failed"], include_content=True)

    @scheduler.handler("work")
    def work(_: object) -> None:
        raise InvalidWorkError("the reason is long")

    await scheduler.memory.add(TEXT, user_id="ann", item_id="moved")
    await scheduler.submit("work", user_id="ann")
    await run(scheduler)
    told = {event["type"]: event["data"] for event in events(server)}
    assert told["memory.added"]["memories"] == [{"id": "moved.0", "kind": "turn", "text": TEXT}]
    assert told["task.failed"]["error"] == "reverie.failures.InvalidWorkError: the reason is long"


@in_memory
async def test_events_are_chosen_by_kind_user_and_label(scheduler: AsyncScheduler) -> None:
    with receiver() as every, receiver() as of_ann, receiver() as of_work:
        await scheduler.webhooks.create(every.url, ["task.completed"])
        await scheduler.webhooks.create(of_ann.url, ["task.completed"], users=["ann"])
        await scheduler.webhooks.create(of_work.url, ["task.completed", "task.failed"], labels=["work"])
        scheduler.handler("work")(lambda _: None)
        for user in ("ann", "bob"):
            await scheduler.memory.add(TEXT, user_id=user)
            await scheduler.submit("work", user_id=user, task_id="t")
        await run(scheduler)

        def told(server: Receiver) -> list[tuple[str, str]]:
            return sorted((event["data"]["user_id"], event["data"]["label"]) for event in events(server))

        assert told(every) == [("ann", "add"), ("ann", "work"), ("bob", "add"), ("bob", "work")]
        assert told(of_ann) == [("ann", "add"), ("ann", "work")]
        assert told(of_work) == [("ann", "work"), ("bob", "work")]


async def test_what_handlers_do_to_memories(scheduler: AsyncScheduler, server: Receiver) -> None:
    await scheduler.webhooks.create(server.url, ALL)

    @scheduler.handler("work")
    def work(_: object) -> Done:
        return Done(
            effects=[
                *[Remember(memory_id=f"m{n}", text=f"fact {n}") for n in range(150)],
                Supersede(memory_id="m0", version=1, successor="m1"),
                Delete(memory_id="m2", version=1),
            ]
        )

    await scheduler.submit("work", user_id="ann", item_id="w", task_id="t")
    await run(scheduler)
    told = [(event["type"], event["data"]) for event in events(server)]
    assert [kind for kind, _ in told] == [
        *["memory.added"] * 2,
        "memory.superseded",
        "memory.deleted",
        "task.completed",
    ]
    assert [id_ for _, data in told[:2] for id_ in data["memory_ids"]] == [f"m{n}" for n in range(150)]
    assert (told[2][1]["memory_ids"], told[2][1]["successors"]) == (["m0"], ["m1"])
    assert told[3][1]["memory_ids"] == ["m2"]
    assert told[4][1]["task_id"] == "t"


async def test_a_task_that_fails_again_after_a_requeue_is_told_again(
    scheduler: AsyncScheduler, server: Receiver
) -> None:
    await scheduler.webhooks.create(server.url, ["task.failed"])

    @scheduler.handler("work")
    def work(_: object) -> None:
        raise InvalidWorkError("nobody should read this outside")

    await scheduler.submit("work", user_id="ann", item_id="w")
    await run(scheduler)
    await scheduler.control.requeue(user_id="ann", item_ids=["w"])
    await run(scheduler)
    first, second = events(server)
    assert first["data"]["reason"] == second["data"]["reason"] == "invalid"
    assert "error" not in first["data"]
    assert first["id"] != second["id"]


async def test_a_task_that_was_never_started_fails_too(
    scheduler: AsyncScheduler, server: Receiver, clock: ManualClock
) -> None:
    await scheduler.webhooks.create(server.url, ["task.failed"])
    deadline = from_epoch_ms(clock.now()) + timedelta(seconds=5)
    await scheduler.submit("nobody's", user_id="ann", item_id="w", deadline=deadline)
    clock.advance(6)
    await run(scheduler)
    await run(scheduler)
    (event,) = events(server)
    assert (event["data"]["item_id"], event["data"]["reason"]) == ("w", "deadline")


async def test_a_budget_that_is_reached_is_told_once_a_day(
    tmp_path, clock: ManualClock, server: Receiver
) -> None:
    with scripted() as model:
        model.answers = extract
        llm = {"preset": "custom", "url": model.url, "model": "tiny", "api_key": "k", "tokens_per_day": 15}
        scheduler = new_scheduler(clock, queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, llm=llm)
        await scheduler.webhooks.create(server.url, ["budget.reached"])
        for text in ("I like tea", "I like milk", "I like water"):
            await scheduler.submit("mem_read", user_id="ann", content=text)
            await run(scheduler)
        (event,) = events(server)
        assert event["data"] == {
            "user_id": "ann",
            "mem_cube_id": "ann",
            "day": "2027-01-15",
            "what": "tokens",
        }
        await scheduler.stop()


async def test_a_persons_changes_are_told(scheduler: AsyncScheduler, server: Receiver) -> None:
    await scheduler.memory.add(TEXT, user_id="ann", item_id="moved")
    await run(scheduler)
    await scheduler.webhooks.create(server.url, ["memory.updated", "memory.deleted"])
    await scheduler.memory.update("moved.0", user_id="ann", text="I moved to Porto")
    await run(scheduler)
    await scheduler.memory.delete("moved.0", user_id="ann")
    await run(scheduler)
    assert [(event["type"], event["data"]["memory_ids"]) for event in events(server)] == [
        ("memory.updated", ["moved.0"]),
        ("memory.deleted", ["moved.0"]),
    ]


async def test_a_change_that_was_not_made_is_not_told(
    scheduler: AsyncScheduler, server: Receiver, clock: ManualClock
) -> None:
    await scheduler.memory.add(TEXT, user_id="ann", item_id="moved")
    await run(scheduler)
    await scheduler.webhooks.create(server.url, ["memory.updated", "memory.deleted"])
    with pytest.raises(VersionConflictError):
        await scheduler.memory.update("moved.0", user_id="ann", text="I moved to Porto", version=7)
    (withdrawn,) = await deliveries(scheduler)
    assert withdrawn.status == "cancelled"
    intent = Delete(memory_id="moved.0", version=1)
    await scheduler.runtime.notices.intend(("ann", "ann"), intent)  # killed before the change
    await run(scheduler)
    assert [one.status for one in await deliveries(scheduler)] == ["cancelled", "waiting"]
    clock.advance(31)
    await run(scheduler)
    assert [one.status for one in await deliveries(scheduler)] == ["cancelled", "cancelled"]
    assert server.all == []


# -- delivery ----------------------------------------------------------------------------------------


@in_memory
async def test_a_delivery_is_tried_again_under_the_same_id(
    scheduler: AsyncScheduler, clock: ManualClock
) -> None:
    with receiver(500, 302, 429) as server:
        server.headers["retry-after"] = "7"
        made = await scheduler.webhooks.create(server.url, ["memory.added"])
        await scheduler.memory.add(TEXT, user_id="ann")
        for _ in range(4):
            await run(scheduler)
            clock.advance(8)
        tries = server.all
        assert len({headers["webhook-id"] for _, headers, _ in tries}) == 1
        assert len(tries) == 4  # the redirect was not followed
        assert all(is_signed(made, headers, body) for _, headers, body in tries)
    (delivery,) = await deliveries(scheduler)
    assert (delivery.status, delivery.attempts) == ("completed", 4)


@in_memory
async def test_what_is_given_up_is_a_dead_letter_that_says_why(
    scheduler: AsyncScheduler, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver(*[503] * 10) as server:
        made = await scheduler.webhooks.create(server.url, ["memory.added", "task.failed"])
        await scheduler.memory.add(TEXT, user_id="ann")
        for _ in range(12):
            await run(scheduler)
            clock.advance(300)
        (letter,) = (await scheduler.control.dead_letters(label="webhook")).rows
        assert letter.error == f"the webhook {made.webhook.id} was not delivered: answered 503"
        assert len(server.all) == 10
        (alert,) = [one for one in await scheduler.observe.alerts() if one.rule == "webhook_failing"]
        assert alert.subject == made.webhook.id
        assert f"`reverie webhooks delete {made.webhook.id}`" in alert.remedy
        await scheduler.control.requeue(label="webhook")
        await run(scheduler)
        assert len(server.all) == 1  # it was not told of its own failure, either
    assert [one for one in await scheduler.observe.alerts() if one.rule == "webhook_failing"] == []
    assert caplog.text.count("webhook.failed") == 10


@in_memory
async def test_a_receiver_that_is_gone_is_not_asked_again(scheduler: AsyncScheduler) -> None:
    with receiver(410) as server:
        await scheduler.webhooks.create(server.url, ["memory.added"])
        await scheduler.memory.add(TEXT, user_id="ann")
        await run(scheduler)
        assert [one.status for one in await deliveries(scheduler)] == ["failed"]


@in_memory
async def test_a_webhook_that_fails_holds_up_no_other(scheduler: AsyncScheduler) -> None:
    with receiver(*[500] * 100) as broken, receiver() as well:
        await scheduler.webhooks.create(broken.url, ["memory.added"])
        await scheduler.webhooks.create(well.url, ["memory.added"])
        for number in range(5):
            await scheduler.memory.add(TEXT, user_id="ann", item_id=f"i{number}")
        await run(scheduler)
        assert [event["data"]["item_id"] for event in events(well)] == [f"i{n}" for n in range(5)]
        assert len(broken.all) == 1  # the others wait behind it, in order


async def test_of_a_webhook_that_is_behind_events_are_dropped(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = new_scheduler(clock, {"max_waiting": 2}, queue={"url": "memory://"})
    with receiver(*[500] * 100) as server:
        await scheduler.webhooks.create(server.url, ["memory.added"])
        for number in range(5):
            await scheduler.memory.add(TEXT, user_id="ann", item_id=f"i{number}")
            await run(scheduler)
            scheduler.runtime.webhooks._forget()  # as if a second had gone by
        assert len(await deliveries(scheduler)) == 2
        assert caplog.text.count("webhook.full") == 1
    await scheduler.stop()


@in_memory
async def test_deliveries_of_a_deleted_webhook_are_cancelled(
    scheduler: AsyncScheduler, clock: ManualClock
) -> None:
    with receiver(500) as server:
        made = await scheduler.webhooks.create(server.url, ["memory.added"])
        await scheduler.memory.add(TEXT, user_id="ann")
        await run(scheduler)
        await scheduler.webhooks.delete(made.webhook.id)
        clock.advance(10)
        await run(scheduler)
        assert [one.status for one in await deliveries(scheduler)] == ["cancelled"]
        assert len(server.all) == 1


@in_memory
async def test_a_name_that_leads_inside_is_refused_at_the_delivery(
    scheduler: AsyncScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: inside)
    made = await scheduler.webhooks.create("https://inside.example/x", ["memory.added"])
    await scheduler.memory.add(TEXT, user_id="ann")
    await run(scheduler)
    (letter,) = (await scheduler.control.dead_letters(label="webhook")).rows
    assert "the host 'inside.example' resolves to" in letter.error
    assert "add the host to webhooks.allowed_hosts" in letter.error
    posted = await scheduler.webhooks.test(made.webhook.id)
    assert posted.status is None
    assert "which is not public" in posted.problem


@in_memory
async def test_nobody_else_can_make_a_delivery(scheduler: AsyncScheduler, server: Receiver) -> None:
    made = await scheduler.webhooks.create(server.url, ["memory.added"])
    content = {"type": "memory.added", "at": 0, "data": {"user_id": "bob"}}
    await scheduler.submit("webhook", user_id="ann", mem_cube_id=made.webhook.id, content=content)
    await run(scheduler)
    assert (await scheduler.status("ann"))[0].error == "messages of this label are made by Reverie alone"
    assert server.all == []


@pytest.mark.parametrize(
    ("first", "second", "status", "told"),
    [
        (["m"], ["n"], "completed", ["memory.added", "task.completed"]),
        (["m"], InvalidWorkError("no"), "completed", ["memory.added", "task.completed"]),
        (InvalidWorkError("no"), ["m"], "completed", ["memory.added", "task.completed"]),
        (InvalidWorkError("no"), InvalidWorkError("never"), "failed", ["task.failed"]),
    ],
)
async def test_only_what_took_hold_is_told_if_the_queue_did_not_hear_of_the_first_run(
    tmp_path, clock: ManualClock, server: Receiver, first: Any, second: Any, status: str, told: list[str]
) -> None:
    """In two databases: the store knows how a run has ended, then the process dies."""

    def new(answer: Any) -> AsyncScheduler:
        scheduler = new_scheduler(
            clock,
            queue={"url": f"sqlite:///{tmp_path / 'queue.db'}"},
            memory={"url": f"sqlite:///{tmp_path / 'memory.db'}"},
        )

        @scheduler.handler("work")
        def work(_: object) -> Done:
            if isinstance(answer, Exception):
                raise answer
            return Done(effects=[Remember(memory_id=name, text=name) for name in answer])

        return scheduler

    async def die(_: object) -> None:
        raise BackendUnavailableError("the queue is away")

    dying, living = new(first), new(second)
    await dying.webhooks.create(server.url, ["memory.added", "task.completed", "task.failed"])
    await dying.submit("work", user_id="ann", item_id="w")
    dying.runtime.backend.queue.settle = die
    with pytest.raises(BackendUnavailableError):
        await run(dying)
    await dying.stop()
    await living.open()
    clock.advance(31)
    await run(living)
    assert (await living.status("ann", "w"))[0].status == status
    found = events(server)
    assert [event["type"] for event in found] == told
    assert [event["data"].get("memory_ids", ["m"]) for event in found] == [["m"]] * len(found)
    await living.stop()


@in_memory
async def test_without_webhooks_settling_reads_records_at_most_once_a_second(
    scheduler: AsyncScheduler,
) -> None:
    records = scheduler.runtime.backend.records
    page, reads = records.page, []

    async def counting(kind: str, **fields: Any) -> Any:
        reads.append(kind)
        return await page(kind, **fields)

    records.page = counting
    webhooks = scheduler.runtime.webhooks
    webhooks._read_at = None
    for number in range(20):
        await scheduler.memory.add(TEXT, user_id="ann", item_id=f"i{number}")
        await run(scheduler)
        if number == 0:
            webhooks._read_at = float("inf")  # the second does not end
    assert reads == ["webhook"]
    assert await deliveries(scheduler) == []


# -- making webhooks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"events": []}, "name at least one of memory.added"),
        ({"events": ["memory.lost"]}, "'memory.lost' is none of memory.added"),
        ({"url": "http://10.0.0.1/"}, "must be https"),
        ({"url": "https://10.0.0.1/"}, "10.0.0.1 is not a public address"),
        ({"url": "https://localhost/"}, "localhost is not a public address"),
        ({"url": "https://2130706433/"}, "2130706433 is not a public address"),
        ({"users": []}, "users: name 1 to 1000"),
        ({"labels": [""]}, "labels: names are not empty"),
        ({"name": "x" * 201}, "at most 200"),
    ],
)
async def test_webhooks_that_are_refused(clock: ManualClock, fields: dict[str, Any], words: str) -> None:
    scheduler = new_scheduler(clock, queue={"url": "memory://"})
    with pytest.raises(InvalidSelectionError, match=words):
        await scheduler.webhooks.create(
            **{"url": "https://example.org/", "events": ["memory.added"], **fields}
        )
    assert await scheduler.webhooks.page() == []
    await scheduler.stop()


async def test_there_may_be_only_so_many(clock: ManualClock) -> None:
    scheduler = new_scheduler(clock, {"max_webhooks": 1}, queue={"url": "memory://"})
    await scheduler.webhooks.create("https://example.org/", ["memory.added"])
    with pytest.raises(InvalidSelectionError, match=r"1 webhooks already \(webhooks\.max_webhooks\)"):
        await scheduler.webhooks.create("https://example.org/", ["memory.added"])
    await scheduler.stop()


@in_memory
async def test_over_http_the_secret_is_shown_once(
    scheduler: AsyncScheduler, client, server: Receiver
) -> None:
    body = {"url": server.url, "events": ["task.failed"], "users": ["ann"], "unknown": 1}
    made = (await client.post("/admin/webhooks", json=body)).json()["data"]
    assert made["secret"].startswith("whsec_")
    path = f"/admin/webhooks/{made['id']}"
    one = (await client.get(path)).json()["data"]
    assert one == {name: value for name, value in made.items() if name != "secret"}
    listed = (await client.get("/admin/webhooks")).json()["data"]
    assert listed == {"webhooks": [one], "next": None}
    tested = (await client.post(f"{path}/test")).json()["data"]
    assert tested == {"id": made["id"], "delivered": True, "status": 200, "problem": None}
    (event,) = events(server)
    assert (event["type"], event["data"]) == ("webhook.test", {"webhook_id": made["id"]})
    assert (await client.delete(path)).json()["data"] == {"id": made["id"]}
    for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/test")):
        assert (await client.request(method, where)).status_code == 404
    assert (await client.post("/admin/webhooks", json={**body, "url": "https://[::1]/"})).status_code == 400
    assert (await client.post("/admin/webhooks", json={"url": server.url})).status_code == 422
    with pytest.raises(UnknownWebhookError):
        await scheduler.webhooks.get(made["id"])
    assert [(entry.action, entry.target) for entry in await scheduler.audit.page()] == [
        ("webhook.delete", made["id"]),
        ("webhook.create", made["id"]),
    ]


@in_memory
async def test_the_same_request_makes_one_webhook(
    scheduler: AsyncScheduler, client, server: Receiver
) -> None:
    body = {"url": server.url, "events": ["task.failed"], "name": "failures"}

    async def make(key: str, **fields: Any) -> Any:
        headers = {"idempotency-key": key}
        return await client.post("/admin/webhooks", json={**body, **fields}, headers=headers)

    made = [(await make(key)).json()["data"] for key in ("one", "one", "two")]
    assert made[0] == made[1]
    assert made[0]["id"] != made[2]["id"]
    assert made[0]["secret"] != made[2]["secret"]
    async with documented_client(create_app(scheduler, run_worker=False)) as other_process:
        headers = {"idempotency-key": "one"}
        again = await other_process.post("/admin/webhooks", json=body, headers=headers)
        assert again.json()["data"] == made[0]
        refused = await other_process.post("/admin/webhooks", json=body | {"name": "x"}, headers=headers)
        assert refused.status_code == 409
    assert len(await scheduler.webhooks.page()) == 2


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_in_the_shell(place: Place) -> None:
    place.extra["REVERIE_WEBHOOKS__ALLOWED_HOSTS"] = '["127.0.0.1"]'
    with receiver() as server:
        made = place.command("webhooks", "create", server.url, "-e", "memory.added", "-u", "ann", "--json")
        webhook = json.loads(made.stdout)
        assert (webhook["users"], webhook["labels"]) == (["ann"], None)
        tested = place.command("webhooks", "test", webhook["id"])
        assert (tested.returncode, tested.stdout) == (0, "delivered: the receiver has answered 200\n")
        assert [event["type"] for event in events(server)] == ["webhook.test"]
    tested = place.command("webhooks", "test", webhook["id"], "--json")
    assert tested.returncode == 1
    assert json.loads(tested.stdout)["delivered"] is False
    listed = place.command("webhooks", "list").stdout
    assert webhook["id"] in listed
    assert webhook["secret"] not in listed
    assert place.command("webhooks", "delete", webhook["id"]).stdout == f"deleted {webhook['id']}\n"
