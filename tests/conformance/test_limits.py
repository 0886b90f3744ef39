"""How much a queue takes, and who is served first."""

from __future__ import annotations

import asyncio

import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie.backends.moves import ClaimRequest, LevelRoom, ScopeLimits, Want
from reverie.errors import QueueFullError, TooManyLabelsError


@pytest.mark.limits(total=ScopeLimits(depth=3))
async def test_a_full_queue_refuses_and_keeps_nothing_of_it(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", "bob"))
    with pytest.raises(QueueFullError) as refusal:
        await bench.submit(message("3"), message("4"))
    assert (refusal.value.limit, refusal.value.allowed, refusal.value.tenant) == (
        "queue.max_depth",
        3,
        None,
    )
    assert refusal.value.retry_after_s > 0
    assert await bench.status(message("3")) is None
    assert await bench.submit(message("3"), message("1")) == ["accepted", "duplicate"]
    claims = await bench.claim()
    with pytest.raises(QueueFullError):
        await bench.submit(message("5"))
    child = message("child")
    await settle(bench, done(claims[0], follow_ups=(child, message("another"))))  # these are never refused
    await settle(bench, *(done(claim) for claim in claims[1:]))
    assert await bench.submit(message("5")) == ["accepted"]


@pytest.mark.limits(tenant=ScopeLimits(depth=2))
async def test_a_full_tenant_does_not_stand_in_the_way_of_others(bench: Bench) -> None:
    await bench.submit(message("1"), message("2", label="other"))
    with pytest.raises(QueueFullError, match="'ann/ann'") as refusal:
        await bench.submit(message("3"))
    assert refusal.value.limit == "queue.max_depth_per_tenant"
    assert await bench.submit(message("3", "bob"), message("4", mem_cube_id="c")) == ["accepted"] * 2


@pytest.mark.limits(tenant=ScopeLimits(rate=2))
async def test_a_tenant_may_not_submit_faster_than_its_rate(bench: Bench) -> None:
    assert await bench.submit(message("1")) == ["accepted"]
    assert await bench.submit(message("2")) == ["accepted"]
    with pytest.raises(QueueFullError) as refusal:
        await bench.submit(message("3"))
    assert (refusal.value.limit, refusal.value.retry_after_s) == ("queue.max_rate_per_tenant", 0.5)
    assert await bench.submit(message("3", "bob")) == ["accepted"]
    assert await bench.submit(message("1")) == ["duplicate"]
    bench.clock.advance(0.5)
    assert await bench.submit(message("3")) == ["accepted"]
    bench.clock.advance(60)
    assert await bench.submit(*(message(f"m{n}") for n in range(6))) == ["accepted"] * 6  # paid later
    bench.clock.advance(2)
    with pytest.raises(QueueFullError):
        await bench.submit(message("4"))
    bench.clock.advance(0.5)
    assert await bench.submit(message("4")) == ["accepted"]


@pytest.mark.limits(total=ScopeLimits(rate=1))
async def test_all_together_may_not_submit_faster_than_the_rate(bench: Bench) -> None:
    await bench.submit(message("1"))
    with pytest.raises(QueueFullError, match=r"queue\.max_rate = "):
        await bench.submit(message("1", "bob"))


@pytest.mark.limits(tenant=ScopeLimits(concurrency=2))
async def test_a_tenant_has_no_more_in_progress_than_it_may(bench: Bench) -> None:
    await bench.submit(*(message(f"{label}{n}", label=label) for label in ("a", "b") for n in range(3)))
    await bench.submit(message("bobs", "bob", label="a"))
    first = await bench.claim("a")
    assert sorted(ids(first)) == ["a0", "a1", "bobs"]
    assert await bench.claim("b") == []
    woken = asyncio.create_task(bench.queue.wait(["b"], None))
    await settle(bench, done(first[0]))
    await asyncio.wait_for(woken, 10)
    (one,) = await bench.claim("b")
    assert one.message.item_id == "b0"
    await settle(bench, *(done(claim) for claim in (*first[1:], one)))
    assert sorted(await bench.run_all("a") + await bench.run_all("b")) == ["a2", "b1", "b2"]


@pytest.mark.limits(total=ScopeLimits(concurrency=2))
async def test_all_together_have_no_more_in_progress_than_they_may(bench: Bench) -> None:
    await bench.submit(*(message(str(n), f"user{n}") for n in range(3)))
    first = await bench.claim()
    assert len(first) == 2
    assert await bench.claim() == []
    woken = asyncio.create_task(bench.queue.wait(["work"], None))
    await settle(bench, done(first[0]))
    await asyncio.wait_for(woken, 10)
    assert len(await bench.claim()) == 1


# -- levels ------------------------------------------------------------------------------------------


async def flood(bench: Bench, **levels: int) -> dict[str, Want]:
    """Fifty users with one message of each label; what a worker with much room wants of them."""
    for label, level in levels.items():
        await bench.submit(*(message(f"{label}{n}", f"u{n}", label, level=level) for n in range(50)))
    return {label: Want(slots=50, level=level) for label, level in levels.items()}


def rooms(*shares: int, most: tuple[int, int, int]) -> dict[int, LevelRoom]:
    return {n + 1: LevelRoom(share=shares[n], most=most[n]) for n in range(3)}


def count(claims) -> dict[str, int]:
    labels = [claim.message.label for claim in claims]
    return {label: labels.count(label) for label in sorted(set(labels))}


async def test_free_slots_are_shared_by_weight(bench: Bench) -> None:
    wants = await flood(bench, low=3, high=1, mid=2)
    levels = rooms(16, 4, 1, most=(21, 21, 21))
    request = ClaimRequest(worker="w", wants=wants, slots=21, levels=levels)
    assert count(await bench.queue.claim(request)) == {"high": 16, "low": 1, "mid": 4}


async def test_what_a_level_leaves_the_others_may_take(bench: Bench) -> None:
    wants = await flood(bench, low=3, mid=2)
    wants["high"] = Want(slots=50, level=1)
    levels = rooms(16, 4, 1, most=(20, 19, 18))
    request = ClaimRequest(worker="w", wants=wants, slots=21, levels=levels)
    assert count(await bench.queue.claim(request)) == {"low": 2, "mid": 19}
    # nothing more is given than the most of each level and the free slots of all


async def test_reserved_slots_stay_free(bench: Bench) -> None:
    wants = await flood(bench, low=3)
    levels = rooms(16, 4, 1, most=(20, 19, 18))
    request = ClaimRequest(worker="w", wants=wants, slots=21, levels=levels)
    assert count(await bench.queue.claim(request)) == {"low": 18}


async def test_the_labels_of_a_level_share_its_slots(bench: Bench) -> None:
    wants = await flood(bench, a=3, b=3, c=3)
    levels = rooms(0, 0, 9, most=(9, 9, 9))
    request = ClaimRequest(worker="w", wants=wants, slots=9, levels=levels)
    assert count(await bench.queue.claim(request)) == {"a": 3, "b": 3, "c": 3}


async def test_a_lane_that_waits_long_moves_up_a_level(bench: Bench) -> None:
    wants = await flood(bench, low=3)
    bench.clock.advance(60)
    wants |= await flood(bench, mid=2)
    levels = rooms(16, 4, 1, most=(0, 4, 1))
    request = ClaimRequest(worker="w", wants=wants, slots=4, levels=levels)
    assert count(await bench.queue.claim(request)) == {"low": 2, "mid": 2}
    bench.clock.advance(60)
    request = ClaimRequest(worker="w", wants=wants, slots=3, levels=rooms(3, 0, 0, most=(3, 0, 0)))
    assert count(await bench.queue.claim(request)) == {"low": 2, "mid": 1}


@pytest.mark.limits(max_labels=3, retention_ms=60_000)
async def test_a_label_too_many_is_refused_until_one_is_forgotten(bench: Bench) -> None:
    await bench.submit(message("1", label="a"), message("2", label="b"))
    for new in (["c", "d"], ["c:", "é", "a"]):
        with pytest.raises(TooManyLabelsError, match=r"queue\.max_labels = 3"):
            await bench.submit(*(message(f"new-{label}", label=label) for label in new))
    assert await bench.status(message("new-c")) is None
    assert await bench.submit(message("3", label="c")) == ["accepted"]
    with pytest.raises(TooManyLabelsError) as refusal:
        await bench.submit(message("4", label="d"))
    assert (refusal.value.value, refusal.value.allowed) == ("d", 3)
    assert await bench.submit(message("4", label="a"), message("5", label="b")) == ["accepted"] * 2
    assert await bench.submit(message("4", label="d")) == ["conflict"]
    first, second = await bench.claim("a")
    follow_up = message("6", label="e")  # never refused
    assert await settle(bench, done(first, follow_ups=(follow_up,)), done(second)) == ["applied"] * 2
    with pytest.raises(TooManyLabelsError):
        await bench.submit(message("7", label="d"))
    for label in ("a", "b", "c", "e"):
        await bench.run_all(label)
    with pytest.raises(TooManyLabelsError):
        await bench.submit(message("7", label="d"))
    assert (await bench.advance(60)).expired == 6
    assert await bench.submit(message("7", label="d")) == ["accepted"]
    assert [state.label for state in await bench.views.labels()] == ["d"]


@pytest.mark.limits(max_labels=20, retention_ms=1000)
async def test_a_new_label_with_every_message_leaves_no_more_labels_than_allowed(bench: Bench) -> None:
    accepted = refused = 0
    for number in range(200):
        try:
            await bench.submit(message(str(number), label=f"made-up-{number}"))
            accepted += 1
        except TooManyLabelsError:
            refused += 1
            await bench.run_all(f"made-up-{number - 1}")
            await bench.advance(1)
        assert len(await bench.views.labels()) <= 20
        if number % 3 == 0:
            await bench.run_all(f"made-up-{number}")
    assert min(accepted, refused) > 10
