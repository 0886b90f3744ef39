"""The buffer zone: rows are put, taken by one run at a time, and done once."""

from __future__ import annotations

import asyncio

from reverie import Delete, Remember
from reverie.effect import Buffer, BufferDone
from reverie.memory.buffers import BufferClaim, BufferKey, BufferState, KeepsBuffers
from support.memory_bench import open_file

KEY = BufferKey("ann", "ann")
LEASE_MS = 60_000


def row(name: str, tokens: int = 10, **fields) -> Buffer:
    return Buffer(buffer_id=f"row-{name}", blob_id=name, content=f"text of {name}", tokens=tokens, **fields)


async def put(bench, *names: str, user_id: str = "ann", cube: str = "", tokens: int = 10) -> None:
    """Remember and buffer texts."""
    effects = []
    for name in names:
        effects += [Remember(memory_id=name, text=f"text of {name}"), row(name, tokens)]
    assert await bench.apply(*effects, user_id=user_id, cube=cube) == "applied"


async def claim(bench, holder: str = "run", key: BufferKey = KEY, **options) -> BufferClaim:
    return await bench.store.claim_buffer(key, holder, **{"lease_ms": LEASE_MS, "max_tokens": 100, **options})


async def done(bench, taken: BufferClaim, *names: str) -> str:
    """Mark rows of a claim done, or those with these names; the answer is the state of the message."""
    ids = tuple(f"row-{name}" for name in names) or tuple(row.buffer_id for row in taken.rows)
    effect = BufferDone(token=taken.token, buffer_ids=ids, blob_type=taken.key.blob_type)
    user_id, cube = taken.key.tenant
    return await bench.apply(effect, user_id=user_id, cube=cube)


def names(taken: BufferClaim) -> list[str]:
    return [row.blob_id for row in taken.rows]


async def state(bench, key: BufferKey = KEY) -> BufferState:
    return (await bench.store.buffer_states([key]))[0]


async def statuses(bench, key: BufferKey = KEY) -> dict[str, str]:
    return {row.blob_id: row.status for row in await bench.store.buffer_rows(key, limit=10_000)}


async def test_the_store_keeps_buffers(bench) -> None:
    assert isinstance(bench.store, KeepsBuffers)


async def test_a_buffer_counts_its_rows_and_tokens(bench) -> None:
    assert await state(bench) == BufferState(key=KEY)
    began = bench.clock.now()
    await put(bench, "a", "b", tokens=7)
    bench.clock.advance(5)
    await put(bench, "c", tokens=100)
    await put(bench, "x", user_id="bob")
    await put(bench, "y", cube="office")
    office, other = BufferKey("ann", "office"), BufferKey("ann", "ann", "doc")
    assert await bench.store.buffer_states([office, KEY, other]) == [
        BufferState(key=office, rows=1, tokens=10, oldest=began + 5000),
        BufferState(key=KEY, rows=3, tokens=114, oldest=began),
        BufferState(key=other),
    ]
    rows = await bench.store.buffer_rows(KEY)
    assert [(row.buffer_id, row.content, row.buffer_size) for row in rows] == [
        ("row-a", "text of a", 7),
        ("row-b", "text of b", 7),
        ("row-c", "text of c", 100),
    ]
    assert (rows[2].created_at, rows[2].updated_at, rows[2].status) == (began + 5000, began + 5000, "idle")


async def test_a_known_id_changes_nothing(bench) -> None:
    await bench.apply(row("a", metadata={"role": "user"}))
    await bench.apply(Buffer(buffer_id="row-a", blob_id="other", content="other", tokens=1), cube="office")
    (kept,) = await bench.store.buffer_rows(KEY)
    assert (kept.blob_id, kept.content, kept.metadata) == ("a", "text of a", {"role": "user"})
    taken = await claim(bench)
    assert await done(bench, taken) == "applied"
    await bench.apply(row("a"))
    assert await statuses(bench) == {"a": "done"}


async def test_the_oldest_rows_are_taken_up_to_a_number_of_tokens(bench) -> None:
    await put(bench, *"abcd", tokens=40)
    assert names(await claim(bench, "one", max_tokens=100)) == ["a", "b"]
    assert await statuses(bench) == {"a": "processing", "b": "processing", "c": "idle", "d": "idle"}
    assert (await state(bench)).rows == 2
    bench.clock.advance(LEASE_MS / 1000)
    assert names(await claim(bench, "two", max_tokens=1)) == ["a"]  # at least one


async def test_one_run_at_a_time_has_rows_of_a_buffer(bench) -> None:
    await put(bench, *"abc", tokens=40)
    await put(bench, "x", user_id="bob")
    first = await claim(bench, "one", max_tokens=40)
    second = await claim(bench, "two")
    assert (names(first), names(second)) == (["a"], [])
    assert first.token != second.token
    assert names(await claim(bench, "two", BufferKey("bob", "bob"))) == ["x"]
    await bench.store.release_buffer(second)  # has nothing to give back
    assert await done(bench, first) == "applied"
    assert names(await claim(bench, "two")) == ["b", "c"]


async def test_claims_at_the_same_moment_share_no_row(bench) -> None:
    await put(bench, *"abcdefgh", tokens=40)
    claims = await asyncio.gather(*(claim(bench, f"run{n}", max_tokens=80) for n in range(20)))
    assert sorted(len(taken.rows) for taken in claims) == [0] * 19 + [2]


async def test_a_lease_that_is_over_lets_another_run_take_the_rows(bench) -> None:
    await put(bench, *"ab")
    first = await claim(bench, "one")
    bench.clock.advance(LEASE_MS / 1000 - 1)
    assert names(await claim(bench, "two")) == []
    bench.clock.advance(1)
    assert (await state(bench)).rows == 2
    second = await claim(bench, "two")
    assert names(second) == ["a", "b"]
    assert await done(bench, first) == "conflict"
    await bench.store.release_buffer(first, failed="late", most=1)  # changes nothing
    assert await done(bench, second) == "applied"
    assert await statuses(bench) == {"a": "done", "b": "done"}


async def test_a_lease_that_is_over_still_ends_in_done_if_nobody_took_the_rows(bench) -> None:
    await put(bench, "a")
    taken = await claim(bench)
    bench.clock.advance(10 * LEASE_MS)
    assert await done(bench, taken) == "applied"


async def test_a_redelivered_message_takes_its_own_lease_over(bench) -> None:
    await put(bench, *"abc", tokens=40)
    first = await claim(bench, "one", max_tokens=80)
    again = await claim(bench, "one", max_tokens=40)
    assert (names(first), names(again)) == (["a", "b"], ["a"])
    assert await statuses(bench) == {"a": "processing", "b": "idle", "c": "idle"}
    assert await done(bench, first) == "conflict"
    assert await done(bench, again) == "applied"
    assert await statuses(bench) == {"a": "done", "b": "idle", "c": "idle"}


async def test_a_redelivered_message_takes_no_more_than_it_had(bench) -> None:
    """Its model has been paid for these rows: with others among them, it would be paid again."""
    await put(bench, *"ab", tokens=40)
    await claim(bench, "one", max_tokens=200)
    await put(bench, "late", tokens=40)
    assert names(await claim(bench, "one", max_tokens=200)) == ["a", "b"]
    bench.clock.advance(2 * LEASE_MS / 1000)
    again = await claim(bench, "one", max_tokens=200)
    assert [(row.blob_id, row.failures) for row in again.rows] == [("a", 0), ("b", 0)]
    assert await done(bench, again) == "applied"
    assert names(await claim(bench, "one", max_tokens=200)) == ["late"]


async def test_rows_whose_runs_never_end_are_given_up(bench) -> None:
    await put(bench, *"ab")
    for failures, holder in enumerate(("one", "two", "three")):
        taken = await claim(bench, holder, most=3)
        assert [row.failures for row in taken.rows] == [failures, failures]
        bench.clock.advance(LEASE_MS / 1000)
    await put(bench, "c")
    assert names(await claim(bench, "four", most=3)) == ["c"]
    assert await statuses(bench) == {"a": "failed", "b": "failed", "c": "processing"}


async def test_only_rows_with_the_given_blobs_are_taken(bench) -> None:
    await put(bench, *"abc")
    assert names(await claim(bench, blob_ids=["c", "a", "unknown"])) == ["a", "c"]
    assert await statuses(bench) == {"a": "processing", "b": "idle", "c": "processing"}


async def test_done_needs_the_token_and_is_all_or_nothing(bench) -> None:
    await put(bench, *"abc", tokens=40)
    taken = await claim(bench, max_tokens=80)
    for effect in (
        BufferDone(token="wrong", buffer_ids=("row-a",)),
        BufferDone(token=taken.token, buffer_ids=("row-a", "row-c")),
        BufferDone(token=taken.token, buffer_ids=("row-a",), blob_type="doc"),
    ):
        assert await bench.apply(Remember(memory_id="fact", text="a fact"), effect) == "conflict"
    assert (
        await bench.apply(BufferDone(token=taken.token, buffer_ids=("row-a",)), cube="office") == "conflict"
    )
    assert await bench.store.get("ann", "fact") is None
    effect = BufferDone(token=taken.token, buffer_ids=("row-a", "row-b"))
    assert await bench.apply(Remember(memory_id="fact", text="a fact"), effect) == "applied"
    assert await bench.store.get("ann", "fact") is not None
    assert await done(bench, taken) == "conflict"  # not a second time


async def test_another_user_cannot_end_a_claim(bench) -> None:
    await put(bench, "a")
    taken = await claim(bench)
    effect = BufferDone(token=taken.token, buffer_ids=("row-a",))
    assert await bench.apply(effect, user_id="bob") == "applied"  # which has no such row
    assert await statuses(bench) == {"a": "processing"}


async def test_done_rows_lose_their_content(bench) -> None:
    await put(bench, "a")
    await done(bench, await claim(bench))
    (kept,) = await bench.store.buffer_rows(KEY, "done")
    assert (kept.content, kept.buffer_size) == ("", 10)
    assert await state(bench) == BufferState(key=KEY)
    assert names(await claim(bench)) == []


async def test_a_deleted_memory_leaves_its_buffer(bench) -> None:
    await put(bench, *"abc")
    taken = await claim(bench, max_tokens=20)
    for name in "ac":  # one of them is being read
        assert await bench.apply(Delete(memory_id=name, version=1)) == "applied"
    assert await statuses(bench) == {"b": "processing"}
    assert await done(bench, taken) == "applied"
    assert await statuses(bench) == {"b": "done"}
    await bench.apply(Delete(memory_id="b", version=1))
    assert await statuses(bench) == {}


async def test_the_text_of_a_deleted_memory_is_not_buffered(bench) -> None:
    await put(bench, "a")
    await bench.apply(Delete(memory_id="a", version=1))
    await bench.apply(Delete(memory_id="unwritten", version=0))
    assert await bench.apply(row("a"), row("unwritten"), row("b")) == "applied"
    assert await statuses(bench) == {"b": "idle"}


async def test_rows_are_given_up_after_too_many_failures(bench) -> None:
    await put(bench, *"ab")
    for _ in range(2):
        await bench.store.release_buffer(await claim(bench, blob_ids=["a"]), failed="no answer", most=3)
    await bench.store.release_buffer(await claim(bench))  # without a reason, nothing is counted
    assert {row.blob_id: row.failures for row in await bench.store.buffer_rows(KEY)} == {"a": 2, "b": 0}
    await bench.store.release_buffer(await claim(bench), failed="no answer", most=3)
    assert await statuses(bench) == {"a": "failed", "b": "idle"}
    assert [row.blob_id for row in await bench.store.buffer_rows(KEY, "failed")] == ["a"]
    assert (await state(bench)).rows == 1
    assert names(await claim(bench)) == ["b"]


async def test_rows_that_were_given_up_can_be_tried_again(bench) -> None:
    await put(bench, *"ab")
    await put(bench, "x", cube="office")
    for key in (KEY, BufferKey("ann", "office")):
        await bench.store.release_buffer(await claim(bench, key=key), failed="no", most=1)
    assert await bench.store.retry_failed_rows(KEY) == 2
    assert await bench.store.retry_failed_rows(KEY) == 0
    assert await statuses(bench) == {"a": "idle", "b": "idle"}
    assert await statuses(bench, BufferKey("ann", "office")) == {"x": "failed"}
    assert [row.failures for row in (await claim(bench)).rows] == [0, 0]


async def test_full_and_old_buffers_are_found_among_many(bench) -> None:
    for n in range(50):
        await bench.apply(row(f"{n}"), user_id=f"user{n}")
    await put(bench, *"abc", tokens=40)
    full = BufferState(key=KEY, rows=3, tokens=120, oldest=bench.clock.now())
    assert await bench.store.full_buffers(tokens=120, before=0, limit=10) == [full]
    assert await bench.store.full_buffers(tokens=121, before=0, limit=10) == []
    bench.clock.advance(60)
    await put(bench, "late", user_id="bob")
    found = await bench.store.full_buffers(tokens=1000, before=bench.clock.now(), limit=100)
    assert len(found) == 51
    assert "bob" not in {each.key.user_id for each in found}
    await put(bench, *"defg", user_id="bob", tokens=40)
    found = await bench.store.full_buffers(tokens=120, before=0, limit=1)
    assert [each.key for each in found] == [KEY]  # the oldest first


async def test_rows_that_are_taken_done_or_failed_make_no_buffer_full(bench) -> None:
    for key in (BufferKey(user, user) for user in ("ann", "bob", "cleo")):
        await put(bench, "a", "b", user_id=key.user_id)
    await claim(bench)
    await done(bench, await claim(bench, key=BufferKey("bob", "bob")))
    await bench.store.release_buffer(await claim(bench, key=BufferKey("cleo", "cleo")), failed="no", most=1)
    now = bench.clock.now() + 1
    assert await bench.store.full_buffers(tokens=1, before=now, limit=10) == []
    bench.clock.advance(LEASE_MS / 1000)
    found = await bench.store.full_buffers(tokens=1, before=now, limit=10)
    assert [each.key.user_id for each in found] == ["ann"]


async def test_done_rows_are_pruned_after_a_time(bench) -> None:
    await put(bench, *"abc")
    await done(bench, await claim(bench, max_tokens=20))
    bench.clock.advance(10)
    await done(bench, await claim(bench))
    await put(bench, "d")
    assert await bench.store.prune_buffers(bench.clock.now(), 1) == 1
    assert await bench.store.prune_buffers(bench.clock.now(), 10) == 1
    assert await bench.store.prune_buffers(bench.clock.now(), 10) == 0
    assert await statuses(bench) == {"c": "done", "d": "idle"}


async def test_two_stores_on_one_file(tmp_path, clock) -> None:
    path = tmp_path / "memory.db"
    async with open_file(path, clock=clock) as one, open_file(path, clock=clock) as two:
        await put(one, *"abcdefgh", tokens=40)
        for _ in range(4):
            claims = await asyncio.gather(
                *(claim(each, f"run{n}", max_tokens=80) for n, each in enumerate([one, two] * 5))
            )
            (taken,) = [each for each in claims if each.rows]
            assert await done(two, taken) == "applied"
        assert set((await statuses(one)).values()) == {"done"}
