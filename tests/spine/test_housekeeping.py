"""The timed tasks: cleaning up, asking for vectors, counting; for a tenant, for a user, and for everyone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reverie import Done, Scheduler
from reverie.backends.moves import Status
from reverie.effect import Remember
from reverie.errors import InvalidSelectionError, InvalidSettingError, MemoryDeletedError
from reverie.handlers.data_cleanup import CLEANED
from reverie.message import SYSTEM_USER
from reverie.models.usage import Spent
from reverie.settings import load_settings
from reverie.testing import drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from reverie.testing import ManualClock

DAY_S = 24 * 3600
HOUR_S = 3600


@pytest.fixture
def new_scheduler(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., Scheduler]]:
    opened: list[Scheduler] = []

    def new(**sections) -> Scheduler:
        sections.setdefault("memory", {})["embedding"] = "none"
        queue = {"url": f"sqlite:///{tmp_path / 'r.db'}", **sections.pop("queue", {})}
        scheduler = Scheduler(settings=load_settings(queue=queue, **sections), clock=clock)

        @scheduler.handler("keep")
        def keep(message):
            return Done(effects=[Remember(**fields) for fields in json.loads(message.content)])

        opened.append(scheduler)
        return scheduler

    yield new
    for scheduler in opened:
        scheduler.close()


def keep(scheduler: Scheduler, user: str, *items: dict, cube: str = "") -> None:
    fields = [{"text": "something", **item} for item in items]
    scheduler.submit("keep", user_id=user, mem_cube_id=cube, content=fields)
    drain(scheduler)


def ids(scheduler: Scheduler, user: str) -> set[str]:
    return {item.id for item in scheduler.memory.page(user_id=user, limit=1000).items}


def test_items_that_expire_are_removed_and_nothing_else(new_scheduler, clock) -> None:
    scheduler = new_scheduler()
    soon, late = clock.now() + 1000, clock.now() + 10 * DAY_S * 1000
    keep(
        scheduler,
        "ann",
        {"memory_id": "soon", "expires_at": soon},
        {"memory_id": "late", "expires_at": late},
        {"memory_id": "old", "kind": "observation"},
    )
    keep(scheduler, "ann", {"memory_id": "soon-too", "expires_at": soon}, cube="work")
    keep(scheduler, "bob", {"memory_id": "b"})
    drain(scheduler)
    clock.advance(DAY_S)
    drain(scheduler)
    assert ids(scheduler, "ann") == {"late", "old"}
    assert ids(scheduler, "bob") == {"b"}
    with pytest.raises(MemoryDeletedError):
        scheduler.memory.get("soon", user_id="ann")
    cleaned = [item for item in scheduler.status("ann") if item.task_type == "data_cleanup"]
    assert sorted(item.mem_cube_id for item in cleaned) == ["ann", "work"]
    assert "data_cleanup" not in {item.task_type for item in scheduler.status("bob")}


def test_retention_by_kind_and_tier_takes_the_closest_rule(new_scheduler, clock) -> None:
    days = {"observation": 10, "*/archive": 5, "fact/archive": 20, "turn": 1}
    scheduler = new_scheduler(memory={"retention_s": {key: day * DAY_S for key, day in days.items()}})
    names = [
        ("observation", "long_term"), ("observation", "archive"), ("fact", "archive"), ("fact", "long_term"),
        ("event", "archive"), ("turn", "long_term"),
    ]  # fmt: skip
    keep(scheduler, "ann", *({"memory_id": f"{k}-{t}", "kind": k, "tier": t} for k, t in names))
    gone_after = {}
    for day in range(1, 25):
        clock.advance(DAY_S)
        drain(scheduler)
        for name in {f"{k}-{t}" for k, t in names} - ids(scheduler, "ann") - gone_after.keys():
            gone_after[name] = day
    assert gone_after == {
        "turn-long_term": 1,
        "event-archive": 5,
        "observation-long_term": 10,
        "observation-archive": 10,
        "fact-archive": 20,
    }


def test_what_was_derived_only_from_expired_items_goes_with_them_in_one_message(new_scheduler, clock) -> None:
    scheduler = new_scheduler()
    soon = clock.now() + 1000

    @scheduler.handler("chain")
    def chain(message):
        from reverie.effect import Link  # noqa: PLC0415

        items = [Remember(memory_id=name, text=name, expires_at=soon) for name in ("fact", "turn")]
        return Done(effects=[*items, Link(source_id="fact", relation="derived_from", target_id="turn")])

    scheduler.submit("chain", user_id="ann")
    drain(scheduler)
    clock.advance(DAY_S)
    receipt = scheduler.submit("data_cleanup", user_id="ann")
    drain(scheduler)
    (item,) = scheduler.status("ann", receipt.item_id)
    assert (item.status, item.conflicts) == (Status.COMPLETED, 0)
    assert ids(scheduler, "ann") == set()


def test_many_items_are_removed_by_several_messages(new_scheduler, clock) -> None:
    scheduler = new_scheduler()
    items = [{"memory_id": f"m{n}", "expires_at": clock.now() + 1} for n in range(CLEANED + 5)]
    keep(scheduler, "ann", *items)
    clock.advance(1)
    scheduler.submit("data_cleanup", user_id="ann")
    drain(scheduler)
    assert ids(scheduler, "ann") == set()
    assert len([item for item in scheduler.status("ann") if item.task_type == "data_cleanup"]) == 2


def test_dead_letters_go_after_their_retention(new_scheduler, clock) -> None:
    scheduler = new_scheduler(queue={"dead_retention_s": DAY_S})
    scheduler.submit("mem_update", user_id="ann", content="no json")
    drain(scheduler)
    assert [item.status for item in scheduler.status("ann")] == [Status.FAILED]
    clock.advance(DAY_S + 1)
    drain(scheduler)
    assert [item for item in scheduler.status("ann") if item.status is Status.FAILED] == []


@pytest.mark.parametrize("rules", [{"*": 5}, {"a/b/c": 5}, {"/archive": 5}, {"turn": 0}, {"turn": 1e12}])
def test_rules_of_retention_that_mean_nothing_are_refused(rules) -> None:
    with pytest.raises(InvalidSettingError, match="retention_s"):
        load_settings(memory={"retention_s": rules})


def test_a_users_trigger_is_done_for_each_cube(new_scheduler, clock) -> None:
    tasks = {"statistics_update": {"enabled": True, "trigger_mode": "user_activity", "interval": 60}}
    scheduler = new_scheduler(scheduler={"tasks": tasks})
    for cube in ("ann", "work"):
        keep(scheduler, "ann", {"memory_id": cube}, cube=cube)
    scheduler.schedule_user_task("statistics_update", "ann")
    clock.advance(60)
    drain(scheduler)
    found = scheduler.observe.statistics(user_id="ann")
    assert [(one.mem_cube_id, one.items) for one in found.tenants] == [("ann", 1), ("work", 1)]


def test_statistics_count_kinds_tiers_growth_and_tokens(new_scheduler, clock) -> None:
    scheduler = new_scheduler()
    keep(scheduler, "ann", {"memory_id": "1"}, {"memory_id": "2", "kind": "turn"})
    keep(scheduler, "bob", {"memory_id": "3", "tier": "archive"})
    drain(scheduler)
    empty = scheduler.observe.statistics()
    assert (empty.total.items, empty.tenants) == (0, [])
    for day in range(8):
        if day in {0, 6}:
            clock.advance(HOUR_S)
            drain(scheduler)
            clock.advance(DAY_S - HOUR_S)
        else:
            clock.advance(DAY_S)
        drain(scheduler)
        if day == 5:
            keep(scheduler, "ann", {"memory_id": "4"}, {"memory_id": "5"}, {"memory_id": "6"})
            scheduler.memory.delete("1", user_id="ann")
    today = scheduler.observe.statistics().day
    spent = [
        Spent(
            key=f"{user}{day}", day=day, user_id=user, mem_cube_id=user, label="mem_read", model="m",
            input_tokens=10, output_tokens=1,
        )
        for user in ("ann", "bob")
        for day in (today, "2000-01-01")
    ]  # fmt: skip
    scheduler.run(scheduler.runtime.gateway.ledger.write_spent(spent))
    found = scheduler.observe.statistics()
    ann, bob = found.tenants
    assert (ann.user_id, ann.items, ann.kinds, ann.tiers) == (
        "ann", 4, {"fact": 3, "turn": 1}, {"long_term": 4},
    )  # fmt: skip
    assert ann.kinds_by_tier == {"fact": {"long_term": 3}, "turn": {"long_term": 1}}
    assert (ann.grown_week, bob.grown_week, ann.tokens_week) == (2, 0, 11)
    total = found.total
    assert (found.tenants_with_memories, total.items, total.kinds, total.tiers) == (
        2, 5, {"fact": 4, "turn": 1}, {"archive": 1, "long_term": 4},
    )  # fmt: skip
    assert (total.grown_day, total.grown_week, total.tokens_day, total.tokens_week) == (0, 2, 22, 22)
    with pytest.raises(InvalidSelectionError, match="user_id"):
        scheduler.observe.statistics(mem_cube_id="x")


def test_a_tenant_that_has_not_changed_is_not_counted_again(new_scheduler, clock) -> None:
    scheduler = new_scheduler()
    keep(scheduler, "ann", {"memory_id": "1"})
    keep(scheduler, "bob", {"memory_id": "2"})
    for _ in range(3):
        clock.advance(HOUR_S)
        drain(scheduler)
        keep(scheduler, "bob", {"memory_id": str(clock.now())})

    def counted(user):
        return sum(item.task_type == "statistics_update" for item in scheduler.status(user))

    assert (counted("ann"), counted("bob")) == (1, 3)
    assert {item.status for item in scheduler.status(SYSTEM_USER)} == {Status.COMPLETED}


def test_embedding_refresh_asks_the_indexer(new_scheduler) -> None:
    scheduler = new_scheduler()
    asked = []
    scheduler.open()
    scheduler.runtime.store.on_unindexed = lambda: asked.append("pass")
    scheduler.submit("embedding_refresh", user_id="ann")
    drain(scheduler)
    assert asked == ["pass"]
