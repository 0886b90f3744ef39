"""API keys and the audit log over HTTP, and that every change is in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler, Bury
from reverie.access.keys import KeyLimits
from reverie.memory.extraction import Extraction
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

SEARCH = {"user_id": "ann", "query": "tea"}


@pytest.fixture
async def scheduler(clock, tmp_path) -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"}, memory={"embedding": "none"}
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)

    @scheduler.handler("export")
    def export(message: Any) -> Bury:
        return Bury("the printer is on fire")

    await scheduler.open()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
async def admin(scheduler: AsyncScheduler) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key of an admin."""
    boss = await scheduler.keys.create("boss", "admin")
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        client.headers["authorization"] = f"Bearer {boss.token}"
        yield client


async def test_the_life_of_a_key(admin: httpx.AsyncClient, scheduler: AsyncScheduler, clock) -> None:
    body = {
        "name": "Ann's phone",
        "users": ["ann"],
        "cubes": ["ann", "work"],
        "attributes": {"team": "sales"},
        "limits": {"requests_per_s": 100},
        "expires_at": clock.now() + 60_000,
    }
    made = (await admin.post("/admin/keys", json=body)).json()["data"]
    key = made["key"]
    assert made["token"].startswith(f"rv_{key['id']}_")
    assert (key["role"], key["users"], key["cubes"]) == ("user", ["ann"], ["ann", "work"])
    assert (key["attributes"], key["limits"]["requests_per_s"]) == ({"team": "sales"}, 100)
    found = await scheduler.runtime.keys.find(made["token"])
    assert found is not None
    assert found[0].attributes == {"team": "sales"}
    assert found[1] == KeyLimits(requests_per_s=100)

    async def status(token: str) -> int:
        headers = {"authorization": token}
        return (await admin.post("/product/search", json=SEARCH, headers=headers)).status_code

    path = f"/admin/keys/{key['id']}"
    rotated = (await admin.post(f"{path}/rotate", json={"overlap_s": 5})).json()["data"]
    assert [await status(made["token"]), await status(rotated["token"])] == [200, 200]
    again = (await admin.post(f"{path}/rotate")).json()["data"]
    assert [await status(rotated["token"]), await status(again["token"])] == [401, 200]
    revoked = (await admin.delete(path)).json()["data"]
    assert revoked["revoked_at"] == clock.now()
    assert await status(again["token"]) == 401
    assert (await admin.post(f"{path}/rotate")).status_code == 400
    tokens = (made["token"], rotated["token"], again["token"])
    secrets = [token.removeprefix(f"rv_{key['id']}_") for token in tokens]  # they may have a _ themselves
    assert min(map(len, secrets)) > 20
    listed = (await admin.get("/admin/keys")).text + (await admin.get("/admin/audit")).text
    assert "hash" not in listed
    assert not any(secret in listed for secret in secrets)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"name": "x"}, 400, "names its users"),
        ({"name": "x", "role": "king"}, 400, "role='king'"),
        ({"name": " ", "users": ["ann"]}, 400, "name=' '"),
        ({"name": "x", "users": ["_system"]}, 400, "do not begin with _"),
        ({"name": "x", "users": ["ann"], "expires_at": 1000}, 400, "future"),
        ({"name": "x", "users": ["ann"], "limits": {"requests_per_s": 0}}, 422, "greater than 0"),
        ({"users": ["ann"]}, 422, "name"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(admin, body, code, words) -> None:
    refused = await admin.post("/admin/keys", json=body)
    assert refused.status_code == code
    assert words in refused.json()["message"]


async def test_keys_and_the_log_come_in_pages(admin: httpx.AsyncClient, scheduler: AsyncScheduler) -> None:
    for number in range(4):
        await scheduler.keys.create(f"k{number}", "service")

    async def all_of(path: str, name: str) -> list[Any]:
        found, cursor = [], None
        while True:
            query = {"limit": 2, **({} if cursor is None else {"cursor": cursor})}
            page = (await admin.get(path, params=query)).json()["data"]
            found += page[name]
            cursor = page["next"]
            if cursor is None:
                return found

    keys = await all_of("/admin/keys", "keys")
    assert [key["id"] for key in keys] == sorted(key["id"] for key in keys)
    assert {key["name"] for key in keys} == {"boss", "k0", "k1", "k2", "k3"}
    entries = await all_of("/admin/audit", "entries")
    assert [entry["target"] for entry in entries] == [
        key["id"] for key in sorted(keys, key=lambda key: key["name"] if key["name"] != "boss" else "")
    ][::-1]
    assert (await admin.get("/admin/audit", params={"cursor": "x"})).status_code == 400


async def test_every_change_is_in_the_log_with_its_caller(admin, scheduler: AsyncScheduler) -> None:
    add = {"user_id": "ann", "messages": "I keep my treasure", "item_id": "t"}
    await admin.post("/product/add", json=add)
    for item_id in ("e1", "e2"):
        await scheduler.submit("export", user_id="ann", item_id=item_id)
    await scheduler.runtime.drain()
    await scheduler.submit("import", user_id="ann", item_id="i1", content="treasure")
    queue = "/product/scheduler"
    of_ann: dict[str, Any] = {"user_id": "ann"}
    changes = [
        ("PATCH", "/product/memories/t.0", {"text": "treasure island"}, "memory.update", "t.0"),
        ("POST", "/product/delete_memory", {"memory_ids": ["t.0"]}, "memory.delete", "t.0"),
        ("PUT", "/product/extraction", {"mission": "treasure"}, "extraction.set", "ann"),
        ("POST", f"{queue}/dead_letters/requeue", {"item_ids": ["e1"]}, "item.requeue", "e1"),
        ("POST", f"{queue}/dead_letters/delete", {"item_ids": ["e2"]}, "item.delete", "e2"),
        ("POST", f"{queue}/cancel", {"item_ids": ["i1"]}, "item.cancel", "i1"),
        ("POST", f"{queue}/triggers/memory_compression/run", {}, "trigger.run", "memory_compression"),
        ("POST", f"{queue}/triggers/memory_compression/cancel", {}, "trigger.cancel", "memory_compression"),
        ("POST", f"{queue}/labels/export/pause", None, "label.pause", "export"),
        ("POST", f"{queue}/labels/export/resume", None, "label.resume", "export"),
        ("POST", f"{queue}/triggers/data_cleanup/disable", None, "trigger.disable", "data_cleanup"),
        ("POST", f"{queue}/triggers/data_cleanup/enable", None, "trigger.enable", "data_cleanup"),
    ]
    (boss,) = await scheduler.keys.page()
    for method, path, body, action, target in changes:
        response = await admin.request(method, path, json=None if body is None else of_ann | body)
        assert response.status_code == 200, (path, response.text)
        (entry, *_) = await scheduler.audit.page(limit=1)
        told = (entry.who, entry.action, entry.target, entry.user_id)
        assert told == (boss.id, action, target, None if body is None else "ann"), path
        assert entry.trace_id == response.headers["x-trace-id"]
    page = (await admin.get("/admin/audit", params=of_ann)).json()["data"]
    assert {entry["user_id"] for entry in page["entries"]} == {"ann"}
    everything = (await admin.get("/admin/audit")).text
    assert "treasure" not in everything
    before = len(await scheduler.audit.page())
    for path in (f"{queue}/cancel", f"{queue}/dead_letters/delete"):  # nothing is changed, nothing is noted
        assert (await admin.post(path, json={"user_id": "ann", "item_ids": ["nothing"]})).status_code == 200
    assert (await admin.patch("/product/memories/nothing", json={"text": "x"})).status_code == 404
    assert len(await scheduler.audit.page()) == before


async def test_a_change_by_a_program_is_by_the_local_caller(scheduler: AsyncScheduler) -> None:
    await scheduler.extraction.set(Extraction(mission="a diary"), user_id="ann")
    await scheduler.control.pause("export")
    assert [(entry.who, entry.action) for entry in await scheduler.audit.page()] == [
        ("local", "label.pause"),
        ("local", "extraction.set"),
    ]


async def test_a_command_about_very_many_items_is_one_entry(scheduler: AsyncScheduler) -> None:
    for number in range(101):
        await scheduler.submit("import", user_id="ann", item_id=str(number))
    await scheduler.control.cancel(user_id="ann", label="import")
    (entry,) = await scheduler.audit.page()
    assert (entry.action, entry.target, entry.user_id) == (
        "item.cancel",
        "101 items of user_id=ann, label=import",
        "ann",
    )
