"""What the moves leave on a Redis server, whom they wake there, and what they cost."""

from __future__ import annotations

import re

import pytest

from reverie.backends.control import CancelItems, DeleteItems, PauseLabel, RequeueItems, ResumeLabel
from reverie.backends.moves import ClaimRequest, LevelRoom, Move, Presence, QueueLimits, ScopeLimits, Want
from reverie.backends.redis import keys
from reverie.backends.redis.library import MOVES, QUEUE, REPAIR, Source, repair_source
from reverie.backends.views import StatusQuery
from support.redis_bench import NOW, Bench, message, open_bench, within
from support.servers import valkey

# -- nothing is left ---------------------------------------------------------------------------------


async def test_a_lane_that_a_cancel_empties_leaves_its_ring(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2"), message("3", "bob")])
    ring = f"{bench.prefix}:ready:work"
    assert bench.server.zrange(ring, 0, -1) == [b"ann:ann:work", b"bob:bob:work"]
    await bench.control(CancelItems, user_id="ann", item_ids=("1",))
    assert bench.server.zcard(ring) == 2
    await bench.control(CancelItems, user_id="ann")
    assert bench.server.zrange(ring, 0, -1) == [b"bob:bob:work"]
    await bench.control(CancelItems)
    assert bench.lane_keys() == set()


async def test_what_was_handed_back_can_be_cancelled(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2")])
    await bench.settle(*await bench.claim(), move=Move.RELEASE, attempt=False)
    await bench.control(CancelItems, user_id="ann", item_ids=("1",))
    (claim,) = await bench.claim()
    assert claim.message.item_id == "2"
    await bench.settle(claim)
    assert bench.lane_keys() == set()


async def test_a_lane_that_must_rest_leaves_its_ring(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2")])
    claims = await bench.claim(slots=1, ordered=False)
    assert ":ready:work" in bench.key_names()
    assert await bench.claim(min_idle_ms=5000) == []
    assert ":ready:work" not in bench.key_names()
    await bench.settle(*claims)
    assert ":ready:work" not in bench.key_names()
    bench.clock.advance(5)
    await bench.queue.advance(10)
    assert len(await bench.claim(min_idle_ms=5000)) == 1


async def test_what_is_cancelled_has_no_deadline(bench: Bench) -> None:
    await bench.queue.submit([message("1", deadline=within(5))])
    assert ":deadlines" in bench.key_names()
    await bench.control(CancelItems, user_id="ann")
    assert bench.lane_keys() == set()


@pytest.mark.parametrize("end", [Move.COMPLETE, Move.BURY, Move.CANCEL])
async def test_dependencies_leave_no_key(bench: Bench, end: Move) -> None:
    await bench.queue.submit([message("a:1"), message("2", depends_on=("a:1",))])
    assert ":dependants:ann%3Aa%3A1" in bench.key_names()
    await bench.settle(*await bench.claim(), move=end)
    await bench.settle(*await bench.claim()) if end is Move.COMPLETE else None
    assert bench.lane_keys() == set()


async def test_who_is_cancelled_waits_for_nobody(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2", depends_on=("1",))])
    await bench.control(CancelItems, user_id="ann", item_ids=("2",))
    assert not any(key.startswith((":dependants", ":delayed")) for key in bench.key_names())
    await bench.control(RequeueItems, user_id="ann", item_ids=("2",))
    claims = await bench.claim()
    assert [claim.message.item_id for claim in claims] == ["1", "2"]
    await bench.settle(claims[0], move=Move.BURY)
    await bench.settle(claims[1])


async def test_a_unique_key_goes_with_its_message_or_its_window(bench: Bench) -> None:
    name = ":unique:ann:ann:work:k%3A"
    await bench.queue.submit([message("1", unique_key="k:")])
    assert name in bench.key_names()
    await bench.settle(*await bench.claim())
    assert bench.lane_keys() == set()
    await bench.queue.submit([message("2", unique_key="k:", unique_window_s=10)])
    assert bench.server.pttl(bench.prefix + name) == -1
    await bench.settle(*await bench.claim())
    assert 0 < bench.server.pttl(bench.prefix + name) <= 70_000
    await bench.queue.submit([message("3", unique_key="k:", unique_policy="replace")])
    assert bench.server.pttl(bench.prefix + name) == -1
    assert bench.server.zrange(bench.prefix + name, 0, -1) == [b"2", b"3"]


async def test_what_runs_have_kept_goes_with_their_message(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2")])
    one, two = await bench.claim()
    for claim in (one, two):
        assert await bench.queue.save_memo(claim, "step", "é")
        assert await bench.queue.load_memos(claim) == {"step": "é"}
    await bench.settle(one)
    await bench.settle(two, move=Move.BURY)
    assert {key for key in bench.key_names() if key.startswith(":memos")} == {":memos:ann%3A2"}
    await bench.control(DeleteItems, user_id="ann")
    assert bench.lane_keys() == set()


async def test_what_is_deleted_or_expires_leaves_no_key(bench: Bench) -> None:
    await bench.queue.submit(
        [
            message("1", task_id="t:1", deadline=within(5)),
            message("2", task_id="t:1", due=within(5), unique_key="k", unique_window_s=1),
            message("3", due=within(5), depends_on=("2",)),
        ]
    )
    await bench.control(CancelItems, user_id="ann", item_ids=("2",))
    bench.clock.advance(5)
    assert [ended.message.item_id for ended in (await bench.queue.advance(10)).ended] == ["1"]
    assert len((await bench.control(DeleteItems, user_id="ann", label="work")).changed) == 2
    bench.clock.advance(60)
    assert (await bench.queue.advance(10)).expired == 1
    assert {key for key in bench.key_names() if not key.startswith((":wake", ":horizon"))} == {":labels"}


async def test_a_worker_that_is_gone_leaves_no_key(bench: Bench) -> None:
    await bench.queue.renew([], 1000, Presence(worker="v", labels=("work",), lives_ms=1000))
    await bench.queue.renew([], 1000, Presence(worker="w", labels=("a b",), lives_ms=1000))
    assert [worker.labels for worker in await bench.backend.views.workers()] == [("work",), ("a b",)]
    await bench.queue.renew([], 1000, Presence(worker="v", labels=()))
    bench.clock.advance(1)
    await bench.queue.advance(10)
    assert bench.key_names() == set()


async def test_a_rate_is_forgotten_when_nobody_comes_up_against_it(redis_url: str) -> None:
    limits = QueueLimits(tenant=ScopeLimits(rate=2), total=ScopeLimits(rate=10))
    async with open_bench(redis_url, limits) as bench:
        await bench.queue.submit([message("1")])
        assert bench.server.zcard(f"{bench.prefix}:arrivals") == 2
        bench.clock.advance(1)
        await bench.queue.advance(10)
        assert ":arrivals" not in bench.key_names()


async def test_lanes_of_a_full_tenant_wait_outside_of_their_rings(redis_url: str) -> None:
    async with open_bench(redis_url, QueueLimits(tenant=ScopeLimits(concurrency=1))) as bench:
        await bench.queue.submit(
            [message("1"), message("2", label="other"), message("3", "bob", label="other")]
        )
        claims = await bench.claim()
        assert [claim.message.item_id for claim in await bench.claim("other")] == ["3"]
        assert not any(key.startswith(":ready") for key in bench.key_names())
        assert bench.server.hgetall(f"{bench.prefix}:parked") == {b"ann:ann": b" other"}
        assert (bench.tokens("work"), bench.tokens("other")) == (0, 0)
        await bench.settle(*claims)
        assert ":parked" not in bench.key_names()
        assert bench.tokens("other") == 1


@pytest.mark.parametrize("before", [[], ["before 1", "before 2"]])
async def test_what_was_lost_comes_alone_from_the_end_of_its_lane_too(
    bench: Bench, before: list[str]
) -> None:
    """One that was lost, and then retried after a delay, takes a new place among new ones."""
    await bench.queue.submit([message("lost")])
    await bench.settle(*await bench.claim(ordered=False), move=Move.LOSE)
    await bench.settle(*await bench.claim(ordered=False), move=Move.RETRY, delay_ms=1000)
    await bench.queue.submit([message(name) for name in before])
    bench.clock.advance(1)
    await bench.queue.advance(10)
    await bench.queue.submit([message("after 1"), message("after 2")])
    for names in filter(None, [before, ["lost"], ["after 1", "after 2"]]):
        claims = await bench.claim(ordered=False)
        assert [claim.message.item_id for claim in claims] == names
        await bench.settle(*claims)
    assert bench.lane_keys() == set()


# -- what stands there -------------------------------------------------------------------------------


async def test_what_few_items_have_stands_in_their_json(bench: Bench) -> None:
    one = message("1", deadline=within(5), unique_key="a b", unique_window_s=1.5)
    await bench.queue.submit([one, message("2", depends_on=("1",), due=within(9))])
    assert (
        bench.meta(one).items()
        >= {
            "dependants": 1,
            "deadline": NOW + 5000,
            "unique": "a%20b",
            "unique_window_ms": 1500,
        }.items()
    )
    assert bench.meta(message("2")).items() >= {"waits_for": 1, "due": NOW + 9000}.items()
    await bench.claim()
    await bench.control(CancelItems, user_id="ann", item_ids=("1",))
    assert bench.meta(one)["cancel_requested"] == 1


async def test_what_was_sent_back_has_no_deadline_any_more(bench: Bench) -> None:
    await bench.queue.submit([message("1", deadline=within(5))])
    bench.clock.advance(5)
    assert await bench.claim() == []
    await bench.control(RequeueItems, user_id="ann")
    assert (await bench.queue.advance(10)).next_due is None
    (claim,) = await bench.claim()
    assert (claim.message.deadline, claim.message.requeues) == (None, 1)
    query = StatusQuery(user_id="ann", with_message=True)
    (row,) = (await bench.backend.views.read(query)).rows
    assert (row.message.deadline, row.message.requeues) == (None, 1)


async def test_a_command_may_choose_anyones_items(bench: Bench) -> None:
    users = ["ann", "bob:x", "cem"]
    await bench.queue.submit([message("now", user) for user in users])
    await bench.queue.submit([message("later", user, label="other", due=within(5)) for user in users])
    first = await bench.control(CancelItems, label="other", limit=2)
    assert (len(first.changed), first.more) == (2, True)
    second = await bench.control(CancelItems, item_ids=("later",), limit=2)
    assert (len(second.changed), second.more) == (1, False)
    assert {key.user_id for key in [*first.changed, *second.changed]} == set(users)
    assert (await bench.control(DeleteItems, label="other")).changed == []
    assert len((await bench.control(RequeueItems, label="other")).changed) == 3
    assert [claim.message.user_id for claim in await bench.claim()] == users


async def test_dead_letters_of_one_label_are_found_among_many(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr("reverie.backends.redis.views.DEAD_PAGE", 3)
    messages = [message(str(n), label="work" if n % 4 == 0 else "other") for n in range(20)]
    await bench.queue.submit(messages)
    await bench.settle(*await bench.claim(), *await bench.claim("other"), move=Move.BURY)
    read = bench.backend.views.read
    page = await read(StatusQuery(dead=True, label="work", limit=2))
    assert [row.item_id for row in page.rows] == ["0", "4"]
    page = await read(StatusQuery(dead=True, label="work", limit=3, after=page.next))
    assert ([row.item_id for row in page.rows], page.next) == (["8", "12", "16"], None)


# -- whom it wakes -----------------------------------------------------------------------------------


async def test_who_has_no_room_for_work_leaves_its_tokens_to_others(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    request = ClaimRequest(
        worker="w",
        wants={"work": Want(slots=1)},
        slots=1,
        levels={3: LevelRoom(share=0, most=0)},
    )
    assert await bench.queue.claim(request) == []
    assert bench.tokens("work") == 1
    bench.clock.advance(1)  # every wait hears of that
    await bench.queue.wait(["work"], None)
    assert bench.tokens("work") == 1
    assert len(await bench.claim()) == 1


async def test_nobody_is_woken_for_a_paused_label(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    await bench.queue.control(PauseLabel("work"))
    assert await bench.claim() == []
    assert bench.tokens("work") == 0
    await bench.queue.control(ResumeLabel("work"))
    assert bench.tokens("work") == 1


async def test_nobody_is_woken_while_all_that_may_run_runs(redis_url: str) -> None:
    async with open_bench(redis_url, QueueLimits(total=ScopeLimits(concurrency=1))) as bench:
        await bench.queue.submit([message("1"), message("2", "bob")])
        claims = await bench.claim()
        assert (len(claims), bench.tokens("work")) == (1, 0)
        await bench.settle(*claims)
        assert bench.tokens("work") == 1


async def test_every_worker_hears_of_a_cancel(bench: Bench) -> None:
    for n in range(6):
        await bench.queue.renew([], 1000, Presence(worker=f"w{n}", labels=("work",)))
    await bench.queue.submit([message("1")])
    await bench.claim()
    for _ in range(2):
        await bench.control(CancelItems, user_id="ann")
        assert bench.tokens("%00cancelled") == 6


# -- what it costs -----------------------------------------------------------------------------------


async def test_the_cost_of_a_move_does_not_grow_with_the_number_of_tenants() -> None:
    costs = []
    with valkey() as url:
        for tenants in (10, 5000):
            async with open_bench(url) as bench:
                for first in range(0, tenants, 500):
                    last = min(first + 500, tenants)
                    await bench.queue.submit([message("1", f"u{n}") for n in range(first, last)])
                claims: list = []

                async def claim(bench: Bench = bench, claims: list = claims) -> None:
                    claims += await bench.claim(slots=5)

                costs.append(
                    [
                        await bench.cost(claim()),
                        await bench.cost(bench.queue.renew(claims, 30_000)),
                        await bench.cost(bench.settle(*claims)),
                        await bench.cost(bench.queue.submit([message("2", "u3")])),
                        await bench.cost(bench.control(CancelItems, user_id="u9")),
                        await bench.cost(bench.queue.advance(10)),
                    ]
                )
    assert costs[0] == costs[1]


# -- the library -------------------------------------------------------------------------------------


async def test_a_changed_text_is_another_library(bench: Bench) -> None:
    assert Source.of("reverie", "a").name != Source.of("reverie", "b").name
    assert QUEUE.name.startswith("reverie_v6_")
    assert QUEUE.text.startswith(f"#!lua name={QUEUE.name}\n")
    names = {row[1] for row in bench.server.function_list(QUEUE.name)}
    assert names == {QUEUE.name.encode()}


def test_every_key_is_described() -> None:
    used = set(re.findall(r"prefix \.\. ':([a-z_]+)", QUEUE.text + repair_source().text))
    described = set(re.findall(r"`{prefix}:([a-z_]+)", keys.__doc__ or ""))
    assert {"lanes", "ready", "due", "wake_horizon"} <= used
    assert used <= described


def test_every_key_of_triggers_is_described() -> None:
    text = QUEUE.text
    used = {*re.findall(r"triggers \.\. ':([a-z_]+)", text), *re.findall(r"sort_in\(step, '(\w+)'", text)}
    described = set(re.findall(r"`{trigger_prefix}:([a-z_]+)", keys.__doc__ or ""))
    assert {"task", "queue", "blocked", "lock"} <= used
    assert used == described == set(keys.TRIGGER_KINDS)


@pytest.mark.parametrize(("source", "blocks"), [(QUEUE, MOVES), (repair_source(), REPAIR)])
def test_the_library_has_room_for_more_names(source: Source, blocks: tuple[tuple[str, ...], ...]) -> None:
    """Lua allows 200 local names in one text; those of a move are gone at its end."""
    common, *moves = (
        sum(names.count(",") + 1 for names in re.findall(r"^local ([\w, ]+)", part, re.MULTILINE))
        for part in re.split(r"\ndo -- \w+\n", source.text)
    )
    assert len(moves) == len(blocks)
    assert common + max(moves) < 190


async def test_a_stream_that_somebody_deleted_holds_up_nobody(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("1", "bob")])
    claims = await bench.claim()
    await bench.settle(*claims, move=Move.RELEASE, attempt=False)
    bench.server.delete(f"{bench.prefix}:ann:ann:work")
    assert (await bench.backend.views.health()).oldest_waiting_at == NOW
    assert [claim.message.user_id for claim in await bench.claim()] == ["bob"]
