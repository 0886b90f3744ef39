"""What workers share, on every backend: a limiter that learns, a breaker in front of it."""

from __future__ import annotations

import asyncio

import pytest

from conformance.conftest import Bench
from reverie.backends.breaker_state import BreakerRules, Grant, LimiterRules, Rules, Signal, SignalKind

BREAKER_ONLY = Rules(limiter=None)
SUCCESS = Signal(SignalKind.SUCCESS)
FAILURE = Signal(SignalKind.FAILURE)
RELEASE = Signal(SignalKind.RELEASE)
QUOTA = Signal(SignalKind.QUOTA)
LIMITED = Signal(SignalKind.RATE_LIMITED)


async def acquire(bench: Bench, n: int = 1, rules: Rules | None = None, **options) -> Grant:
    return await bench.backend.shared.acquire("model", n, rules=rules or Rules(), **options)


async def report(bench: Bench, permit: str, signal: Signal, rules: Rules | None = None) -> Grant:
    return await bench.backend.shared.report("model", permit, signal, rules or Rules())


async def room(bench: Bench, rules: Rules | None = None) -> int:
    """How many calls would be granted now."""
    grant = await acquire(bench, 1000, rules)
    await report(bench, grant.permit, RELEASE, rules)
    return grant.granted


# -- the limiter -------------------------------------------------------------------------------------


async def test_nothing_but_the_greatest_concurrency_limits_at_first(bench: Bench) -> None:
    first = await acquire(bench, 30)
    second = await acquire(bench, 30)
    third = await acquire(bench)
    assert (first.granted, second.granted, third.granted) == (30, 20, 0)
    assert first.now == bench.clock.now()
    assert third.permit == ""
    assert third.retry_at == bench.clock.now() + Rules().look_again_ms
    await report(bench, first.permit, SUCCESS)
    assert await room(bench) == 30


async def test_permits_of_a_worker_that_died_come_back(bench: Bench) -> None:
    assert (await acquire(bench, 50, lease_ms=5000)).granted == 50
    bench.clock.advance(4.999)
    assert await room(bench) == 0
    bench.clock.advance(0.001)
    assert await room(bench) == 50


async def test_a_rate_limit_leaves_ten_and_a_burst_of_them_no_less(bench: Bench) -> None:
    calls = [await acquire(bench) for _ in range(50)]
    for call in calls:
        bench.clock.advance(0.01)
        await report(bench, call.permit, LIMITED)
    assert await room(bench) == 10
    bench.clock.advance(0.01)
    another = await acquire(bench)
    bench.clock.advance(0.01)
    await report(bench, another.permit, LIMITED)
    assert await room(bench) == 5


async def test_the_limit_grows_by_one_for_each_round_of_successes(bench: Bench) -> None:
    await report(bench, "", LIMITED)
    for expected in (11, 12):
        for _ in range(expected - 1):
            call = await acquire(bench)
            assert await room(bench) == expected - 2
            await report(bench, call.permit, SUCCESS)
        assert await room(bench) == expected


async def test_the_limit_doubles_after_each_quiet_minute_until_it_is_gone(bench: Bench) -> None:
    await report(bench, "", LIMITED)
    bench.clock.advance(59)
    await report(bench, "", LIMITED)  # begins the minute anew
    bench.clock.advance(59)
    rooms = [await room(bench)]
    for _ in range(3):
        bench.clock.advance(60)
        rooms.append(await room(bench))
    assert rooms == [10, 20, 40, 50]


async def test_nothing_is_granted_before_the_end_of_a_retry_after(bench: Bench) -> None:
    answer = await report(bench, "", Signal(SignalKind.RATE_LIMITED, 7000))
    end = bench.clock.now() + 7000
    assert (answer.granted, answer.retry_at, answer.wait_ms) == (0, end, 7000)
    bench.clock.advance(6.999)
    obstacle = SignalKind.RATE_LIMITED
    assert await acquire(bench) == Grant(now=bench.clock.now(), retry_at=end, obstacle=obstacle)
    bench.clock.advance(0.001)
    assert (await acquire(bench)).granted == 1


@pytest.mark.parametrize(
    ("signals", "obstacle"),
    [
        ([FAILURE] * 3, SignalKind.FAILURE),
        ([Signal(SignalKind.QUOTA)], SignalKind.QUOTA),
        ([Signal(SignalKind.RATE_LIMITED, 9000)], SignalKind.RATE_LIMITED),
    ],
)
async def test_an_answer_that_grants_nothing_names_the_cause(bench: Bench, signals, obstacle) -> None:
    for signal in signals:
        await report(bench, "", signal)
    assert (await acquire(bench)).obstacle is obstacle
    bench.clock.advance(30)
    probe = await acquire(bench)
    assert (probe.granted, probe.obstacle) == (1, None)
    if probe.is_probe:
        assert (await acquire(bench)).obstacle is obstacle
        await report(bench, probe.permit, SUCCESS)
        assert (await acquire(bench)).obstacle is None


async def test_a_retry_after_beyond_all_bounds_is_bounded(bench: Bench) -> None:
    answer = await report(bench, "", Signal(SignalKind.RATE_LIMITED, 10**15))
    assert answer.wait_ms == Rules().max_retry_after_ms


# -- the breaker -------------------------------------------------------------------------------------


async def test_three_failures_in_a_row_open_the_breaker_and_a_probe_closes_it(bench: Bench) -> None:
    for signal in (FAILURE, FAILURE, SUCCESS, FAILURE, FAILURE):
        assert (await report(bench, (await acquire(bench)).permit, signal)).retry_at is None
    opened = await report(bench, (await acquire(bench)).permit, FAILURE)
    assert opened.wait_ms == 30_000
    bench.clock.advance(29.999)
    assert (await acquire(bench)).retry_at == opened.retry_at
    bench.clock.advance(0.001)
    probe = await acquire(bench, 5)
    assert (probe.granted, probe.is_probe) == (1, True)
    refused = await acquire(bench)
    assert (refused.granted, refused.wait_ms) == (0, Rules().look_again_ms)
    again = await report(bench, probe.permit, FAILURE)
    assert again.wait_ms == 30_000
    bench.clock.advance(30)
    probe = await acquire(bench)
    assert (await report(bench, probe.permit, SUCCESS)).retry_at is None
    assert await room(bench) == 50


async def test_a_quota_opens_at_once_and_pauses_twice_as_long_each_time(bench: Bench) -> None:
    rules = Rules(limiter=None, breaker=BreakerRules(pause_ms=1000, max_pause_ms=5000))
    pauses = [(await report(bench, "", QUOTA, rules)).wait_ms]
    for _ in range(4):
        bench.clock.advance(pauses[-1] / 1000)
        probe = await acquire(bench, 10, rules)
        assert (probe.granted, probe.is_probe) == (1, True)
        pauses.append((await report(bench, probe.permit, QUOTA, rules)).wait_ms)
    assert pauses == [1000, 2000, 4000, 5000, 5000]
    bench.clock.advance(5)
    probe = await acquire(bench, 1, rules)
    await report(bench, probe.permit, SUCCESS, rules)
    assert (await acquire(bench, 7, rules)).granted == 7
    assert (await report(bench, "", QUOTA, rules)).wait_ms == 1000


async def test_many_that_find_out_at_the_same_time_make_no_longer_pause(bench: Bench) -> None:
    waits = {(await report(bench, "", QUOTA, BREAKER_ONLY)).wait_ms for _ in range(8)}
    assert waits == {30_000}
    asked = await report(bench, "", Signal(SignalKind.QUOTA, 60_000), BREAKER_ONLY)
    assert asked.wait_ms == 60_000


async def test_who_is_refused_without_having_asked_is_as_good_as_a_probe(bench: Bench) -> None:
    waits = []
    for _ in range(3):
        waits.append((await report(bench, "", QUOTA)).wait_ms)
        bench.clock.advance(waits[-1] / 1000)
    assert waits == [30_000, 60_000, 120_000]


async def test_a_probe_that_is_lost_with_its_worker_frees_itself(bench: Bench) -> None:
    await report(bench, "", QUOTA)
    bench.clock.advance(30)
    lost = await acquire(bench, lease_ms=5000)
    bench.clock.advance(4.999)
    assert (await acquire(bench)).granted == 0
    bench.clock.advance(0.001)
    probe = await acquire(bench)
    assert probe.is_probe
    late = await report(bench, lost.permit, QUOTA)  # the other one decides
    assert late.wait_ms == Rules().look_again_ms
    assert (await report(bench, lost.permit, SUCCESS)).retry_at is None  # late, but good news
    assert (await acquire(bench, 5)).granted == 5


async def test_a_probe_that_is_given_back_leaves_room_for_another(bench: Bench) -> None:
    await report(bench, "", QUOTA)
    bench.clock.advance(30)
    await report(bench, (await acquire(bench)).permit, RELEASE)
    assert (await acquire(bench)).is_probe


async def test_what_began_before_the_breaker_opened_does_not_close_it(bench: Bench) -> None:
    before = await acquire(bench)
    opened = await report(bench, "", QUOTA)
    assert (await report(bench, before.permit, SUCCESS)).retry_at == opened.retry_at
    assert (await acquire(bench)).granted == 0


# -- keys --------------------------------------------------------------------------------------------


async def test_keys_do_not_touch_each_other(bench: Bench) -> None:
    shared = bench.backend.shared
    await shared.report("a:b", "", QUOTA)
    assert (await shared.acquire("a:b")).granted == 0
    for key in ("a", "b", "a%3Ab", "", "ä"):
        assert (await shared.acquire(key)).granted == 1


async def test_workers_that_ask_at_once_share_the_limit(bench: Bench) -> None:
    await report(bench, "", LIMITED)
    grants = await asyncio.gather(*(acquire(bench, 3) for _ in range(12)))
    assert sum(grant.granted for grant in grants) == 10
    assert len({grant.permit for grant in grants if grant.granted}) == 4


async def test_what_nobody_touches_is_forgotten(bench: Bench) -> None:
    await report(bench, "", QUOTA)
    bench.clock.advance(30 + Rules().forget_ms / 1000)
    assert (await acquire(bench, 5, BREAKER_ONLY)).granted == 5


def kept(bench: Bench) -> list[str]:
    """The keys that the backend keeps."""
    shared = bench.backend.shared
    match type(bench.backend).__name__:
        case "MemoryBackend":
            return list(shared._states)
        case "SqliteBackend":
            rows = shared._database.submit(lambda c: c.execute("SELECT key FROM shared_state").fetchall())
            return [key for (key,) in rows.result()]
        case _:
            prefix = f"{bench.clock._prefix}:shared:"
            return [key.decode().removeprefix(prefix) for key in bench.clock._server.keys(f"{prefix}*")]


async def test_a_key_that_is_fine_leaves_nothing(bench: Bench) -> None:
    shared = bench.backend.shared
    for number in range(20):
        grant = await shared.acquire(f"k{number}")
        await shared.report(f"k{number}", grant.permit, SUCCESS)
    await shared.acquire("unasked", rules=BREAKER_ONLY)
    assert kept(bench) == []
    await shared.report("bad", "", QUOTA)
    assert kept(bench) == ["bad"]


async def test_states_that_are_over_do_not_pile_up(bench: Bench) -> None:
    if hasattr(bench.clock, "_server"):
        await bench.backend.shared.report("old", "", QUOTA)
        ttl = bench.clock._server.pttl(f"{bench.clock._prefix}:shared:old")
        assert 0 < ttl <= Rules().forget_ms + 30_000
        return
    for number in range(50):
        await bench.backend.shared.report(f"k{number}", "", QUOTA)
    bench.clock.advance(30 + Rules().forget_ms / 1000)
    await bench.backend.shared.report("new", "", QUOTA)
    assert kept(bench) == ["new"]


@pytest.mark.parametrize("greatest", [1, 2, 5])
async def test_a_small_concurrency_is_limited_and_recovers(bench: Bench, greatest: int) -> None:
    rules = Rules(limiter=LimiterRules(max_concurrency=greatest))
    await report(bench, "", LIMITED, rules)
    assert 1 <= await room(bench, rules) <= greatest
    bench.clock.advance(600)
    assert await room(bench, rules) == greatest


async def test_open_breakers_can_be_listed(bench: Bench) -> None:
    shared = bench.backend.shared
    assert await shared.open_breakers() == {}
    refused = await shared.report("breaker:a b:key/1", "", QUOTA, BREAKER_ONLY)
    await shared.report("other", "", SUCCESS, BREAKER_ONLY)
    assert await shared.open_breakers() == {"breaker:a b:key/1": refused.retry_at}
    bench.clock.advance((refused.retry_at - refused.now) / 1000)
    probe = await shared.acquire("breaker:a b:key/1", rules=BREAKER_ONLY)
    assert list(await shared.open_breakers()) == ["breaker:a b:key/1"]
    await shared.report("breaker:a b:key/1", probe.permit, SUCCESS, BREAKER_ONLY)
    assert await shared.open_breakers() == {}
