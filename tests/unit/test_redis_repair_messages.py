"""`reverie redis repair`: entries, bodies and items that have lost each other, or something of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from reverie.backends.control import CancelItems
from reverie.backends.moves import Move, Status
from reverie.backends.redis.keys import GROUP
from reverie.backends.views import StatusQuery
from reverie.message import Key
from support.redis_bench import Bench, message, within
from support.repairing import (
    LOOSE,
    check_drained,
    counted,
    mend,
    open_apart,
    repair,
    set_the_scene,
    standing,
    stream_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    async with open_apart(redis_url) as opened:
        yield opened


# -- streams -----------------------------------------------------------------------------------------


async def test_a_group_that_was_destroyed(bench: Bench) -> None:
    await set_the_scene(bench)
    for user, label in (("ann", "work"), ("cem", "loose"), ("bob%3Ax", "work"), ("dan", "work")):
        bench.server.xgroup_destroy(stream_of(bench, user, label), GROUP)
    repaired = await repair(bench)
    assert repaired.mended["groups"] == 4
    assert (await repair(bench)).mended == {}
    taken = await bench.claim(), await bench.claim("loose", **LOOSE)
    assert [[claim.message.item_id for claim in claims] for claims in taken] == [
        [f"b{n}" for n in range(5)][:4],  # the lanes of the others have a claim that stands
        [],
    ]
    await bench.settle(*taken[0], move=Move.RELEASE, attempt=False)
    await check_drained(bench)


async def test_a_group_that_was_set_back(bench: Bench) -> None:
    await set_the_scene(bench)
    bench.server.xgroup_setid(stream_of(bench, "cem", "loose"), GROUP, "0")
    bench.server.xgroup_setid(stream_of(bench, "dan"), GROUP, "0")
    await repair(bench)
    assert (await repair(bench)).mended == {}
    claims = await bench.claim("loose", **LOOSE)
    assert claims == []
    await check_drained(bench)


async def test_entries_that_were_acknowledged_or_given_to_another(bench: Bench) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    dan, ann, bob = (stream_of(bench, user) for user in ("dan", "ann", "bob%3Ax"))
    back, running = (entry for entry, _ in bench.server.xrange(dan))
    claimed, *_ = (entry for entry, _ in bench.server.xrange(ann))
    new, *_ = (entry for entry, _ in bench.server.xrange(bob))
    bench.server.xack(dan, GROUP, back, running)
    bench.server.xclaim(ann, GROUP, "_returned", 0, [claimed])
    bench.server.xclaim(bob, GROUP, "w", 0, [new], force=True)
    repaired = await mend(bench)
    assert repaired.mended == {"claims": 2, "returned": 2}
    assert standing(bench) == before
    await check_drained(bench)


async def test_an_entry_that_stands_there_twice_or_has_ended(bench: Bench) -> None:
    await set_the_scene(bench)
    before = standing(bench)
    ann, fay = stream_of(bench, "ann"), stream_of(bench, "fay", "idle")
    _, fields = bench.server.xrange(ann)[2]
    bench.server.xadd(ann, fields)
    bench.server.xadd(fay, {"message": "{}", "item_id": "gone"})
    bench.server.xadd(fay, {"message": "{}", "item_id": "later"})
    repaired = await mend(bench)
    assert repaired.mended == {"removed": 3}
    assert standing(bench) == before
    await check_drained(bench)


async def test_a_stream_that_was_written_anew_has_other_ids(bench: Bench) -> None:
    await bench.queue.submit([message(str(n)) for n in range(3)])
    stream = stream_of(bench, "ann")
    entries = bench.server.xrange(stream)
    bench.server.delete(stream)
    for _, fields in entries:
        bench.server.xadd(stream, fields)
    repaired = await repair(bench)
    assert repaired.mended == {"groups": 1, "relinked": 3, "returned": 3}
    assert (await repair(bench)).mended == {}
    claims = await bench.claim()
    assert [claim.message.item_id for claim in claims] == ["0", "1", "2"]
    await bench.settle(*claims)
    assert bench.lane_keys() == set()


async def test_a_claim_whose_stream_is_gone_stands(bench: Bench) -> None:
    await bench.queue.submit([message(str(n)) for n in range(3)])
    kept, given_back = await bench.claim(slots=2)
    bench.server.delete(stream_of(bench, "ann"))
    repaired = await mend(bench)
    assert repaired.lost == [Key("ann", "2")]
    assert await counted(bench) == {"work": (1, 2)}
    await bench.settle(kept)
    await bench.settle(given_back, move=Move.RETRY)
    assert (await mend(bench)).lost_count == 2


async def test_a_lane_of_many_entries(bench: Bench) -> None:
    items = [str(n) for n in range(2500)]
    await bench.queue.submit([message(item) for item in items])
    await bench.settle(*await bench.claim("work", slots=3), move=Move.RELEASE, attempt=False)
    bench.server.xgroup_destroy(stream_of(bench, "ann"), GROUP)
    bench.server.delete(f"{bench.prefix}:lanes")
    repaired = await repair(bench)
    assert repaired.mended["returned"] == 2500
    assert (await repair(bench)).mended == {}
    claims = []
    while some := await bench.claim("work"):
        claims += some
        await bench.settle(*some)
    assert [claim.message.item_id for claim in claims] == items
    assert bench.lane_keys() == set()


# -- messages that have lost something ---------------------------------------------------------------


async def test_messages_that_have_lost_their_status(bench: Bench) -> None:
    sent = [message(f"é {n}", info={"n": n}, task_id="t", unique_key=str(n)) for n in range(4)]
    await bench.queue.submit(sent)
    await bench.queue.submit(
        [message("later", due=within(5), depends_on=("é 0",)), message("due", due=within(7))]
    )
    await bench.claim(slots=1)
    keys = [key for key in bench.key_names() if key.startswith("-status")]
    bench.server.delete(*(bench.prefix + key for key in keys))
    foreseen = await repair(bench, dry_run=True)
    repaired = await repair(bench)
    assert repaired.mended["adopted"] == foreseen.mended["adopted"] == 6
    assert (await repair(bench)).mended == {}
    claims = await bench.claim()
    assert [claim.message for claim in claims] == [
        msgspec.structs.replace(
            one,
            level=3,
            timestamp=claim.message.timestamp,
            redis_message_id=claim.message.redis_message_id,
            stream_key=stream_of(bench, "ann"),
        )
        for one, claim in zip(sent, claims, strict=True)
    ]
    assert len((await bench.backend.views.read(StatusQuery(user_id="ann", task_id="t"))).rows) == 4
    (again,) = await bench.queue.submit([message("other", unique_key="2")])
    assert again.status == "duplicate"
    await bench.settle(*claims)
    bench.clock.advance(6)
    await bench.queue.advance(10)
    assert [claim.message.item_id for claim in await bench.claim()] == ["later"]
    bench.clock.advance(1)
    await bench.queue.advance(10)
    assert await counted(bench) == {"work": (1, 1)}


async def test_messages_whose_body_is_lost_wait_for_a_person(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2", "bob"), message("3", "bob", label="other")])
    await bench.queue.submit([message("4", "bob", due=within(5)), message("5", depends_on=("1",))])
    bench.server.delete(stream_of(bench, "ann"), f"{bench.prefix}:delayed")
    repaired = await mend(bench)
    lost = [Key("ann", "1"), Key("ann", "5"), Key("bob", "4")]
    assert (sorted(repaired.lost), repaired.lost_count) == (lost, 3)
    assert await counted(bench) == {"work": (4, 0), "other": (1, 0)}
    (row,) = (await bench.backend.views.read(StatusQuery(user_id="ann", item_id="1"))).rows
    assert row.status is Status.WAITING
    # A person may cancel one of them, and a stream may come back: nothing is counted twice.
    await bench.control(CancelItems, user_id="bob", item_ids=("4",))
    assert await counted(bench) == {"work": (3, 0), "other": (1, 0)}
    body = msgspec.json.encode(message("1"))
    bench.server.xadd(stream_of(bench, "ann"), {"message": body, "item_id": "1"})
    repaired = await repair(bench)
    assert repaired.lost == [Key("ann", "5")]
    assert {claim.message.item_id for claim in await bench.claim()} == {"1", "2"}


async def test_messages_whose_body_is_lost_become_dead_letters_if_a_person_says_so(bench: Bench) -> None:
    await bench.queue.submit(
        [message("1"), message("2"), message("3", depends_on=("1",)), message("4", "bob")]
    )
    bench.server.delete(stream_of(bench, "ann"))
    repaired = await repair(bench, bury_lost=True)
    assert repaired.mended["buried"] == 2
    assert (await repair(bench)).mended == {}
    page = await bench.backend.views.read(StatusQuery(dead=True))
    assert [(row.item_id, row.error) for row in page.rows] == [
        ("1", "body lost"),
        ("2", "body lost"),
        ("3", "dependency: 1 failed"),
    ]
    (state,) = await bench.backend.views.labels()
    assert (state.waiting, state.in_progress, state.failed) == (1, 0, 3)
    await bench.settle(*await bench.claim())
    assert bench.lane_keys() == set()


async def test_entries_that_are_no_messages_are_left_alone(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2")])
    stream = stream_of(bench, "ann")
    strange = [
        bench.server.xadd(stream, {"theirs": "1"}),
        bench.server.xadd(stream, {"message": b"\xff{", "item_id": "3"}),
        bench.server.xadd(stream, {"message": msgspec.json.encode(message("4", "bob")), "item_id": "4"}),
        bench.server.xadd(stream, {"message": msgspec.json.encode(message("6")), "item_id": "7"}),
    ]
    bench.server.hset(f"{bench.prefix}:delayed", "ann:5", "no message")
    repaired = await mend(bench)
    assert repaired.unreadable == [
        *(f"{stream} {entry.decode()}" for entry in strange),
        f"{bench.prefix}:delayed ann:5",
    ]
    assert [entry for entry, _ in bench.server.xrange(stream)][-4:] == strange
    assert await counted(bench) == {"work": (2, 0)}


async def test_a_parent_that_has_ended_unheard(bench: Bench) -> None:
    await bench.queue.submit(
        [
            message("1"),
            message("2"),
            message("a", label="other", depends_on=("1",)),
            message("b", label="other", depends_on=("2",)),
            message("c", label="other", depends_on=("1", "2"), if_dependency_fails="run"),
        ]
    )
    bench.server.delete(*(f"{bench.prefix}:dependants:ann%3A{n}" for n in (1, 2)))
    one, two = await bench.claim()
    await bench.settle(one)
    await bench.settle(two, move=Move.BURY)
    assert await bench.claim("other") == []
    assert (await repair(bench)).mended == {"dependants": 3}
    assert (await repair(bench)).mended == {}
    assert [claim.message.item_id for claim in await bench.claim("other")] == ["a", "c"]
    (row,) = (await bench.backend.views.read(StatusQuery(user_id="ann", item_id="b"))).rows
    assert row.error == "dependency: 2 failed"


async def test_numbers_go_on_above_those_that_were_given(bench: Bench) -> None:
    await bench.queue.submit([message(str(n), f"u{n}") for n in range(20)])
    bench.server.delete(f"{bench.prefix}:labels")
    await mend(bench)
    bench.clock.advance(1)
    await bench.queue.submit([message("new", "zoe")])
    assert bench.meta(message("new", "zoe"))["seq"] == 21
    assert [claim.message.user_id for claim in await bench.claim()][-1] == "zoe"
