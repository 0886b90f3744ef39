"""The inbox: the effects of a message are applied once, however often its handler ran."""

from __future__ import annotations

import msgspec
import pytest

from reverie import Message, Remember
from reverie.memory.interface import Application

ONE = Message(user_id="ann", label="work", item_id="1")
NEXT = Message(user_id="ann", label="next", item_id="2")


def effect(memory_id: str, text: str = "some words") -> Remember:
    return Remember(memory_id=memory_id, text=text)


async def test_effects_are_applied_once_and_the_first_run_decides(bench) -> None:
    first = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    again = Application(message=ONE, effects=(effect("b"),))
    (applied,) = await bench.store.apply([first])
    assert (applied.state, applied.follow_ups) == ("applied", (NEXT,))
    (applied,) = await bench.store.apply([again])
    assert (applied.state, applied.follow_ups) == ("already", (NEXT,))
    assert await bench.find("words") == ["a"]


async def test_a_closed_message_takes_no_effects(bench) -> None:
    (closed,) = await bench.store.apply([Application(message=ONE, close=True)])
    (late,) = await bench.store.apply([Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))])
    assert (closed.state, late.state, late.follow_ups) == ("closed", "closed", ())
    assert await bench.find("words") == []


async def test_what_a_worker_closed_after_it_had_lost_the_message_does_not_hold(bench) -> None:
    later = msgspec.structs.replace(ONE, losses=1)
    await bench.store.apply([Application(message=ONE, close=True)])
    (holder,) = await bench.store.apply([Application(message=later, effects=(effect("a"),))])
    assert holder.state == "applied"
    (stale,) = await bench.store.apply([Application(message=ONE, close=True)])
    assert stale.state == "already"
    assert await bench.find("words") == ["a"]


async def test_a_late_answer_finds_what_the_holder_closed(bench) -> None:
    holder = msgspec.structs.replace(ONE, losses=1)
    await bench.store.apply([Application(message=holder, close=True)])
    (late,) = await bench.store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert late.state == "closed"


async def test_another_message_under_a_forgotten_id_is_not_taken_for_the_first(bench) -> None:
    other = msgspec.structs.replace(ONE, content="other")
    await bench.store.apply([Application(message=ONE, effects=(effect("a"),))])
    (applied,) = await bench.store.apply([Application(message=other, effects=(effect("b", "new words"),))])
    assert applied.state == "applied"
    third = msgspec.structs.replace(ONE, content="third")
    (refused,) = await bench.store.apply([Application(message=third, effects=(effect("b", "a third text"),))])
    assert refused.state == "rejected"
    assert "taken by another text" in refused.error


async def test_an_acceptance_that_is_rejected_leaves_the_row_of_the_earlier_one(bench) -> None:
    first = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,), submitted_at=1)
    await bench.store.apply([first])
    (rejected,) = await bench.store.apply(
        [Application(message=ONE, effects=(effect("a", None),), submitted_at=2)]
    )
    assert rejected.state == "rejected"
    (again,) = await bench.store.apply([first])
    assert (again.state, again.follow_ups) == ("already", (NEXT,))


async def test_a_later_acceptance_has_follow_ups_of_its_own(bench) -> None:
    await bench.store.apply(
        [Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,), submitted_at=1)]
    )
    (second,) = await bench.store.apply([Application(message=ONE, effects=(effect("b"),), submitted_at=2)])
    (again,) = await bench.store.apply([Application(message=ONE, effects=(effect("c"),), submitted_at=2)])
    assert (second.state, again.state, again.follow_ups) == ("applied", "already", ())
    (late,) = await bench.store.apply([Application(message=ONE, effects=(effect("d"),), submitted_at=1)])
    assert (late.state, late.follow_ups) == ("closed", ())
    assert late.error == "the id was accepted again after this run"
    assert sorted(await bench.find("words")) == ["a", "b"]


@pytest.mark.parametrize(("days_ago", "state"), [(-30, "applied"), (30, "applied"), (30.01, "stale")])
async def test_a_lease_that_ended_long_ago_is_refused(bench, clock, days_ago: float, state: str) -> None:
    lease_until = clock.now() - round(days_ago * 24 * 3600 * 1000)
    (answer,) = await bench.store.apply(
        [Application(message=ONE, effects=(effect("a"),), submitted_at=1, lease_until=lease_until)]
    )
    assert answer.state == state
    assert await bench.find("words") == (["a"] if state == "applied" else [])


async def test_one_that_is_rejected_leaves_nothing_and_spoils_no_neighbour(bench) -> None:
    bad = Application(message=ONE, effects=(effect("a"), effect("b", None)))
    good = Application(message=NEXT, effects=(effect("c"),))
    rejected, applied = await bench.store.apply([bad, good])
    assert (rejected.state, applied.state) == ("rejected", "applied")
    assert rejected.error
    assert await bench.find("words") == ["c"]
    (again,) = await bench.store.apply([Application(message=ONE, effects=(effect("d"),))])
    assert again.state == "applied"


async def test_the_same_id_of_two_users_is_two_memories(bench) -> None:
    other = msgspec.structs.replace(ONE, user_id="bob", mem_cube_id="bob")
    await bench.store.apply([Application(message=ONE, effects=(effect("a"),))])
    await bench.store.apply([Application(message=other, effects=(effect("a", "other words"),))])
    assert (await bench.store.get("ann", "a")).text == "some words"
    assert (await bench.store.get("bob", "a")).text == "other words"
    assert await bench.find("other") == []
