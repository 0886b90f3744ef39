"""Who is let in: API keys over HTTP, their limits, and what a server without keys refuses."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.access import keys as access_keys
from reverie.access.keys import ApiKeys, KeyLimits
from reverie.api.admission import credential_of
from reverie.errors import BackendUnavailableError, InvalidSelectionError
from reverie.server import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADD = {"user_id": "ann", "messages": "I moved to Lisbon"}
SEARCH = {"user_id": "ann", "query": "Lisbon"}


@pytest.fixture(params=["memory://", "sqlite"])
async def scheduler(request, clock, tmp_path) -> AsyncIterator[AsyncScheduler]:
    url = f"sqlite:///{tmp_path / 'r.db'}" if request.param == "sqlite" else request.param
    scheduler = AsyncScheduler(url, clock=clock)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


@asynccontextmanager
async def client_of(scheduler: AsyncScheduler, token: str = "") -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(scheduler, run_worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("header", "key"),
    [("Bearer k", "k"), ("token  k", "k"), ("k", "k"), ("Basic k", "Basic"), ("", ""), ("Bearer ", "Bearer")],
)
def test_a_key_comes_in_three_forms(header: str, key: str) -> None:
    assert credential_of([(b"host", b"x"), (b"authorization", header.encode())]) == key


async def test_from_the_first_key_on_every_request_needs_one(scheduler: AsyncScheduler) -> None:
    async with client_of(scheduler) as client:
        assert (await client.post("/product/add", json=ADD)).status_code == 200
        made = await scheduler.keys.create("ann", users=["ann"])
        refused = await client.post("/product/add", json=ADD)
        assert refused.status_code == 401
        assert refused.json()["data"] is None
        assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/ready", "/metrics", "/alerts", "/nowhere"):
            assert (await client.get(path)).status_code == 401
        for form in (f"Bearer {made.token}", f"Token {made.token}", made.token):
            allowed = await client.post("/product/add", json=ADD, headers={"authorization": form})
            assert allowed.status_code == 200, form
        await scheduler.keys.revoke(made.key.id)
        refused = await client.post("/product/add", json=ADD, headers={"authorization": made.token})
        assert refused.status_code == 401  # and not open again, though no key is left


@pytest.mark.parametrize("users", [["ann"], None])
async def test_where_a_backend_is_that_does_not_answer(scheduler, monkeypatch, users) -> None:
    """Only callers for all users are told."""
    made = await scheduler.keys.create("k", "read-only", users=users)

    async def away(*_: object) -> None:
        raise BackendUnavailableError("redis.inside:6379 did not answer")

    async with client_of(scheduler) as client:
        own = {"authorization": made.token}
        assert (await client.get("/health", headers=own)).status_code == 200
        monkeypatch.setattr(scheduler.runtime.backend.views, "labels", away)
        monkeypatch.setattr(scheduler.runtime.backend.views, "lanes", away)
        keyless = await client.get("/health")
        asked = [await client.get("/health", headers=own)]
        query = {"user_id": "ann", "user_name": "ann"}
        asked += [
            await client.get(f"/product/scheduler/{path}", params=query, headers=own)
            for path in ("task_queue_status", "wait/stream")
        ]
    assert [response.status_code for response in (keyless, *asked)] == [503] * 4
    assert "inside" not in keyless.text
    assert {"inside" in response.text for response in asked} == {users is None}


async def test_a_revoked_key_stays_revoked_whatever_happens_meanwhile(scheduler, monkeypatch) -> None:
    keys, records = scheduler.runtime.keys, scheduler.runtime.backend.records
    made = await keys.create("ann", users=["ann"])
    change = records.change

    async def change_late(changes, entries=()) -> None:
        monkeypatch.setattr(records, "change", change)
        await keys.revoke(made.key.id)
        await change(changes, entries)

    monkeypatch.setattr(records, "change", change_late)
    with pytest.raises(InvalidSelectionError, match="is revoked"):
        await keys.rotate(made.key.id, overlap_s=60)
    assert await keys.find(made.token) is None
    (listed,) = await keys.page()
    assert listed.revoked_at is not None


async def test_a_rotation_whose_process_dies_takes_no_revocation_back(scheduler) -> None:
    keys, records = scheduler.runtime.keys, scheduler.runtime.backend.records
    made = await keys.create("ann", users=["ann"])
    before = await records.get("key", made.key.id)
    await keys.revoke(made.key.id)
    await records.change([before])
    assert await ApiKeys(records, scheduler.runtime.audit, scheduler.runtime.clock).find(made.token) is None


async def test_without_a_key_health_says_only_whether_the_queue_is_well(scheduler: AsyncScheduler) -> None:
    async with client_of(scheduler) as client:
        assert "pending" in (await client.get("/health")).json()
        made = await scheduler.keys.create("ann", users=["ann"])
        assert (await client.get("/health")).json() == {"status": "ok"}
        own = await client.get("/health", headers={"authorization": made.token})
        assert own.json() == {"status": "ok"}
        admin = await scheduler.keys.create("boss", "admin")
        assert "pending" in (await client.get("/health", headers={"authorization": admin.token})).json()


@pytest.mark.parametrize(
    "secret", ["x", "rv_", "rv_000000000000_" + "a" * 43, "é", "rv_zz_" + "a" * 43, "a" * 10_000]
)
async def test_a_wrong_key_is_refused_everywhere(scheduler: AsyncScheduler, secret: str) -> None:
    await scheduler.keys.create("ann", users=["ann"])
    async with client_of(scheduler) as client:
        for path in ("/health", "/product/scheduler/allstatus"):
            response = await client.get(path, headers={b"authorization": secret.encode()})
            assert response.status_code == 401
            assert secret not in response.text


async def test_a_key_touches_its_own_user_alone(scheduler: AsyncScheduler) -> None:
    made = await scheduler.keys.create("ann", users=["ann"])
    async with client_of(scheduler, made.token) as client:
        assert (await client.post("/product/search", json=SEARCH)).status_code == 200
        for user_id in ("bob", "nobody-at-all"):
            refused = await client.post("/product/search", json={**SEARCH, "user_id": user_id})
            assert refused.status_code == 403
            assert refused.json()["message"] == f"this key may not touch the user {user_id!r}"


async def test_a_read_only_key_writes_nothing(scheduler: AsyncScheduler) -> None:
    made = await scheduler.keys.create("look", "read-only", users=["ann"])
    async with client_of(scheduler, made.token) as client:
        assert (await client.post("/product/search", json=SEARCH)).status_code == 200
        assert (await client.post("/product/add", json=ADD)).status_code == 403


async def test_an_expired_key_and_a_rotated_secret(scheduler: AsyncScheduler, clock) -> None:
    made = await scheduler.keys.create("ann", users=["ann"], expires_at=clock.now() + 10_000)
    async with client_of(scheduler) as client:

        async def status(token: str) -> int:
            return (
                await client.post("/product/search", json=SEARCH, headers={"authorization": token})
            ).status_code

        renewed = await scheduler.keys.rotate(made.key.id, overlap_s=5)
        assert [await status(made.token), await status(renewed.token)] == [200, 200]
        clock.advance(6)
        assert [await status(made.token), await status(renewed.token)] == [401, 200]
        clock.advance(6)
        assert await status(renewed.token) == 401


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "x-forwarded-host", "X-Real-IP", "Via"])
async def test_a_forwarded_request_is_refused_while_there_are_no_keys(scheduler, header: str) -> None:
    async with client_of(scheduler) as client:
        refused = await client.get("/health", headers={header: "10.0.0.1"})
        assert refused.status_code == 403
        assert "reverie keys create" in refused.json()["message"]
        made = await scheduler.keys.create("ann", users=["ann"])
        headers = {header: "10.0.0.1", "authorization": made.token}
        assert (await client.post("/product/search", json=SEARCH, headers=headers)).status_code == 200


async def test_the_limits_of_a_key(scheduler: AsyncScheduler, monkeypatch) -> None:
    limits = KeyLimits(max_body_bytes=200, max_json_depth=3, requests_per_s=1)
    made = await scheduler.keys.create("ann", users=["ann"], limits=limits)
    other = await scheduler.keys.create("too", users=["ann"])
    now = 1000.0
    monkeypatch.setattr("reverie.api.admission.time", SimpleNamespace(monotonic=lambda: now))
    async with client_of(scheduler, made.token) as client:
        large = await client.post("/product/add", json={**ADD, "messages": "x" * 300})
        assert large.status_code == 413
        deep = await client.post("/product/add", json={**ADD, "info": {"a": {"b": {"c": 1}}}})
        assert deep.status_code == 400
        assert "nested more than 3" in deep.json()["message"]
        quick = await client.post("/product/search", json=SEARCH)
        assert quick.status_code == 429
        assert quick.headers["retry-after"] == "1"
        authorized = {"authorization": other.token}
        assert (await client.post("/product/search", json=SEARCH, headers=authorized)).status_code == 200
        now += 1
        assert (await client.post("/product/search", json=SEARCH)).status_code == 200


async def test_a_key_that_was_read_works_while_the_backend_is_away(scheduler, monkeypatch) -> None:
    keys = scheduler.runtime.keys
    known = await scheduler.keys.create("ann", users=["ann"])
    unknown = await scheduler.keys.create("bob", users=["bob"])
    assert await keys.find(known.token)

    async def away(*_: object) -> None:
        raise BackendUnavailableError

    monkeypatch.setattr(type(scheduler.runtime.backend.records), "get", away)
    monkeypatch.setattr(access_keys, "CACHE_S", 0)
    assert await keys.find(known.token)
    with pytest.raises(BackendUnavailableError):
        await keys.find(unknown.token)


async def test_a_request_id_becomes_the_trace_id(scheduler: AsyncScheduler) -> None:
    async with client_of(scheduler) as client:
        answer = await client.get("/health", headers={"x-request-id": "order-7.a"})
        assert answer.headers["x-trace-id"] == "order-7.a"
        odd = await client.get("/health", headers={"x-request-id": "a b\x7f"})
        assert len(odd.headers["x-trace-id"]) == 32


async def test_every_answer_has_headers_that_keep_browsers_careful(scheduler: AsyncScheduler) -> None:
    async with client_of(scheduler) as client:
        for answer in (
            await client.get("/health"),
            await client.get("/nowhere"),
            await client.post("/health"),
        ):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in answer.headers
