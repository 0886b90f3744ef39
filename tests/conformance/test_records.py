"""Records and the audit log, on every backend."""

from __future__ import annotations

import asyncio

import pytest

from reverie.backends import records
from reverie.backends.records import AuditEntry, Dropped, Record, TooManyRecordsError


def entry(action: str, user_id: str | None = None) -> AuditEntry:
    return AuditEntry(at=5, who="k1", action=action, target="t", user_id=user_id, trace_id="x")


async def test_a_record_is_written_replaced_and_removed(bench) -> None:
    store = bench.backend.records
    assert await store.get("key", "a") is None
    one = Record(kind="key", id="a:b/é", value={"n": [1, "é"], "none": None})
    await store.change([one, Record(kind="hook", id="a:b/é", value={})])
    assert await store.get("key", "a:b/é") == one
    other = Record(kind="key", id="a:b/é", value={"n": 2})
    await store.change([other])
    assert await store.page("key") == [other]
    await store.change([Dropped(kind="key", id="a:b/é"), Dropped(kind="key", id="unknown")])
    assert await store.page("key") == []
    assert len(await store.page("hook")) == 1


async def test_records_come_in_pages_by_id(bench) -> None:
    store = bench.backend.records
    await store.change([Record(kind="key", id=name, value={}) for name in "dbca"])
    assert [record.id for record in await store.page("key", limit=3)] == ["a", "b", "c"]
    assert [record.id for record in await store.page("key", after="c", limit=3)] == ["d"]


async def test_a_change_and_its_entries_are_one_step(bench, monkeypatch) -> None:
    for module in ("", ".memory.records", ".sqlite.records", ".redis.records"):
        target = (
            f"reverie.backends{module}.MOST_RECORDS" if module else "reverie.backends.records.MOST_RECORDS"
        )
        monkeypatch.setattr(target, 2)
    store = bench.backend.records
    await store.change([Record(kind="key", id=name, value={}) for name in "ab"], [entry("key.create")])
    with pytest.raises(TooManyRecordsError, match="2 records of the kind key"):
        await store.change([Record(kind="key", id="c", value={})], [entry("key.create")])
    assert [record.id for record in await store.page("key")] == ["a", "b"]
    assert len(await store.audited()) == 1
    await store.change([Record(kind="key", id="a", value={"changed": True})])
    assert records.MOST_RECORDS == 2


async def test_the_audit_log_is_read_newest_first(bench) -> None:
    store = bench.backend.records
    for number in range(5):
        await store.change([], [entry(f"act-{number}", "ann" if number % 2 else "bob")])
    newest = await store.audited(limit=2)
    assert [each.action for each in newest] == ["act-4", "act-3"]
    assert newest[0].number > newest[1].number
    rest = await store.audited(before=newest[-1].number)
    assert [each.action for each in rest] == ["act-2", "act-1", "act-0"]
    assert [each.action for each in await store.audited(user_id="ann")] == ["act-3", "act-1"]
    assert (rest[0].at, rest[0].who, rest[0].target, rest[0].trace_id) == (5, "k1", "t", "x")


async def test_many_changes_at_once_lose_nothing(bench) -> None:
    store = bench.backend.records
    changes = [
        store.change([Record(kind="key", id=f"{number}", value={})], [entry("key.create")])
        for number in range(50)
    ]
    await asyncio.gather(*changes)
    assert len(await store.page("key")) == len(await store.audited(limit=1000)) == 50
