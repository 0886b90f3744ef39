"""The memory store: effects once, search by words in every script."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import Message, Remember
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, Settlement, Status, Want
from reverie.backends.views import StatusQuery
from reverie.dispatch.settler import Settler
from reverie.errors import ReadTimeoutError
from reverie.memory.interface import Application, SearchQuery
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.memory.words import index_words, query_phrases
from reverie.storage.sqlite import Database

ONE = Message(user_id="ann", label="work", item_id="1")
NEXT = Message(user_id="ann", label="next", item_id="2")


def effect(memory_id: str, text: str = "some words") -> Remember:
    return Remember(memory_id=memory_id, text=text)


@pytest.fixture(params=["file", "memory"])
async def store(request, tmp_path, clock):
    path = str(tmp_path / "m.db") if request.param == "file" else ":memory:"
    store = SqliteMemoryStore(Database(path), clock)
    await store.open()
    yield store
    await store.close()


async def find(store, text: str, user_id: str = "ann", **query) -> list[str]:
    return [hit.item.id for hit in await store.search(SearchQuery(text=text, user_id=user_id, **query))]


async def test_effects_are_applied_once_and_the_first_run_decides(store) -> None:
    first = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    again = Application(message=ONE, effects=(effect("b"),))
    (applied,) = await store.apply([first])
    assert (applied.state, applied.follow_ups) == ("applied", (NEXT,))
    (applied,) = await store.apply([again])
    assert (applied.state, applied.follow_ups) == ("already", (NEXT,))
    assert await find(store, "words") == ["a"]


async def test_a_closed_message_takes_no_effects(store) -> None:
    (closed,) = await store.apply([Application(message=ONE, close=True)])
    (late,) = await store.apply([Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))])
    assert (closed.state, late.state, late.follow_ups) == ("closed", "closed", ())
    assert await find(store, "words") == []


async def test_what_a_worker_closed_after_it_had_lost_the_message_does_not_hold(store) -> None:
    later = msgspec.structs.replace(ONE, losses=1)
    await store.apply([Application(message=ONE, close=True)])
    (holder,) = await store.apply([Application(message=later, effects=(effect("a"),))])
    assert holder.state == "applied"
    (stale,) = await store.apply([Application(message=ONE, close=True)])
    assert stale.state == "already"
    assert await find(store, "words") == ["a"]


async def test_a_late_answer_finds_what_the_holder_closed(store) -> None:
    holder = msgspec.structs.replace(ONE, losses=1)
    await store.apply([Application(message=holder, close=True)])
    (late,) = await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert late.state == "closed"


async def test_another_message_under_a_forgotten_id_is_not_taken_for_the_first(store) -> None:
    other = msgspec.structs.replace(ONE, content="other")
    await store.apply([Application(message=ONE, effects=(effect("a"),))])
    (applied,) = await store.apply([Application(message=other, effects=(effect("b", "new words"),))])
    assert applied.state == "applied"
    third = msgspec.structs.replace(ONE, content="third")
    (refused,) = await store.apply([Application(message=third, effects=(effect("b", "a third text"),))])
    assert refused.state == "rejected"
    assert "taken by another text" in refused.error


async def test_an_acceptance_that_is_rejected_leaves_the_row_of_the_earlier_one(store) -> None:
    first = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,), submitted_at=1)
    await store.apply([first])
    (rejected,) = await store.apply([Application(message=ONE, effects=(effect("a", None),), submitted_at=2)])
    assert rejected.state == "rejected"
    (again,) = await store.apply([first])
    assert (again.state, again.follow_ups) == ("already", (NEXT,))


async def test_a_later_acceptance_has_follow_ups_of_its_own(store) -> None:
    await store.apply([Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,), submitted_at=1)])
    (second,) = await store.apply([Application(message=ONE, effects=(effect("b"),), submitted_at=2)])
    (again,) = await store.apply([Application(message=ONE, effects=(effect("c"),), submitted_at=2)])
    assert (second.state, again.state, again.follow_ups) == ("applied", "already", ())
    (late,) = await store.apply([Application(message=ONE, effects=(effect("d"),), submitted_at=1)])
    assert (late.state, late.follow_ups) == ("closed", ())
    assert late.error == "the id was accepted again after this run"
    assert await find(store, "words") == ["a", "b"]


@pytest.mark.parametrize(("days_ago", "state"), [(-30, "applied"), (30, "applied"), (30.01, "stale")])
async def test_a_lease_that_ended_long_ago_is_refused(store, clock, days_ago: float, state: str) -> None:
    lease_until = clock.now() - round(days_ago * 24 * 3600 * 1000)
    (answer,) = await store.apply(
        [Application(message=ONE, effects=(effect("a"),), submitted_at=1, lease_until=lease_until)]
    )
    assert answer.state == state
    assert await find(store, "words") == (["a"] if state == "applied" else [])


async def test_one_that_is_rejected_leaves_nothing_and_spoils_no_neighbour(store) -> None:
    bad = Application(message=ONE, effects=(effect("a"), effect("b", None)))
    good = Application(message=NEXT, effects=(effect("c"),))
    rejected, applied = await store.apply([bad, good])
    assert (rejected.state, applied.state) == ("rejected", "applied")
    assert rejected.error
    assert await find(store, "words") == ["c"]
    (again,) = await store.apply([Application(message=ONE, effects=(effect("d"),))])
    assert again.state == "applied"


async def test_the_same_id_of_two_users_is_two_memories(store) -> None:
    other = msgspec.structs.replace(ONE, user_id="bob", mem_cube_id="bob")
    await store.apply([Application(message=ONE, effects=(effect("a"),))])
    await store.apply([Application(message=other, effects=(effect("a", "other words"),))])
    assert (await store.get("ann", "a")).text == "some words"
    assert (await store.get("bob", "a")).text == "other words"
    assert await find(store, "other") == []


async def test_search_keeps_to_user_and_cubes(store) -> None:
    for user, cube in (("ann", "home"), ("ann", "office"), ("bob", "home")):
        message = Message(user_id=user, mem_cube_id=cube, label="work")
        await store.apply([Application(message=message, effects=(effect(f"{user}-{cube}"),))])
    assert sorted(await find(store, "words")) == ["ann-home", "ann-office"]
    assert await find(store, "words", mem_cube_ids=("home",)) == ["ann-home"]
    assert await find(store, "words", mem_cube_ids=("attic",)) == []
    assert len(await find(store, "words", limit=1)) == 1


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("I moved to Lisbon", "who is moving?"),
        ("Caffè in Zürich", "cafe zurich"),
        ("我住在里斯本的海边", "里斯本在哪里"),
        ("昨日は東京に行きました", "東京"),
        ("나는 서울에 산다", "서울"),
        ('she said "AND"', 'the word "AND" OR NOT NEAR('),
        ("the year 2026", "2026"),
    ],
)
async def test_words_are_found(store, text: str, query: str) -> None:
    await store.apply([Application(message=ONE, effects=(effect("a", text), effect("b", "nothing of it")))])
    assert (await find(store, query))[0] == "a"


async def test_the_best_comes_first(store) -> None:
    texts = {"a": "tea", "b": "green tea from Uji", "c": "coffee"}
    effects = tuple(effect(name, text) for name, text in texts.items())
    await store.apply([Application(message=ONE, effects=effects)])
    hits = await store.search(SearchQuery(text="green tea", user_id="ann"))
    assert [hit.item.id for hit in hits] == ["b", "a"]
    assert hits[0].score == 1.0 > hits[1].score > 0


@given(text=st.text())
def test_any_text_can_be_indexed_and_asked(text: str) -> None:
    phrases, later = query_phrases(text, 1000)
    assert later == 0
    assert all(phrase.count('"') == 2 for phrase in phrases)
    assert bool(phrases) is bool(index_words(text))


@pytest.mark.parametrize("query", ["", "  ", "?!", '"'])
async def test_a_query_without_words_finds_nothing(store, query: str) -> None:
    await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert await find(store, query) == []


@pytest.mark.parametrize("path", ["m.db", ":memory:"])
async def test_the_rarest_words_of_a_long_query_are_searched_for(tmp_path, clock, path: str) -> None:
    settings = MemorySettings(max_query_words=2, max_query_words_counted=6)
    path = path if path == ":memory:" else str(tmp_path / path)
    store = SqliteMemoryStore(Database(path), clock, settings)
    await store.open()
    texts = ["green tea", "green leaves", "green tea leaves", "green jasmine"]
    effects = tuple(effect(str(number), text) for number, text in enumerate(texts))
    await store.apply([Application(message=ONE, effects=effects)])

    async def ask(text: str) -> tuple[set[str], int]:
        hits = await store.search(SearchQuery(text=text, user_id="ann"))
        return {hit.item.id for hit in hits}, hits.words_left_out

    assert await ask("green Green GREEN tea") == ({"0", "1", "2", "3"}, 0)
    assert await ask("green tea jasmine") == ({"0", "2", "3"}, 1)
    assert await ask("unknown words of no index jasmine") == ({"3"}, 0)
    assert await ask("unknown words of no index jasmine green tea") == ({"3"}, 2)
    await store.close()


def test_of_a_very_long_query_only_the_beginning_is_read() -> None:
    assert query_phrases("one two one three", 3) == (['"one"', '"two"', '"three"'], 0)
    assert query_phrases("one two one three four five", 2) == (['"one"', '"two"'], 3)
    assert query_phrases("里斯本在哪里", 2) == (['"里 斯"', '"斯 本"'], 3)


async def test_a_search_that_takes_too_long_is_an_error_and_never_nothing_found(tmp_path, clock) -> None:
    settings = MemorySettings(search_timeout_s=1e-6)
    store = SqliteMemoryStore(Database(str(tmp_path / "m.db")), clock, settings)
    await store.open()
    with pytest.raises(ReadTimeoutError, match=r"memory\.search_timeout_s"):
        await store.search(SearchQuery(text="tea", user_id="ann"))
    await store.close()


# -- the settler between two databases ---------------------------------------------------------------


async def settle(
    store, clock, earlier: Application | None, move: Move, *, losses: int = 0, **fields
) -> MemoryBackend:
    """Claim ONE, let an earlier run leave its row in the inbox, then settle."""
    backend = MemoryBackend(clock)
    request = ClaimRequest(worker="w", wants={"work": Want(slots=1)})
    await backend.queue.submit([ONE])
    (claim,) = await backend.queue.claim(request)
    for _ in range(losses):
        clock.advance(request.lease_ms / 1000)
        await backend.queue.advance(10)
        (claim,) = await backend.queue.claim(request)
    if earlier is not None:
        await store.apply([earlier])
    settler = Settler(backend, store, lambda *_: None, lambda *_: pytest.fail("no conflict"))
    settler.put([Settlement(claim=claim, move=move, **fields)])
    await settler.flush()
    return backend


async def status(backend: MemoryBackend, item_id: str = "1") -> Status | None:
    rows = (await backend.views.read(StatusQuery(user_id="ann", item_id=item_id))).rows
    return rows[0].status if rows else None


async def test_a_second_run_submits_the_follow_ups_of_the_first(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    backend = await settle(store, clock, earlier, Move.COMPLETE, effects=(effect("b"),))
    assert (await status(backend), await status(backend, "2")) == (Status.COMPLETED, Status.WAITING)
    assert await find(store, "words") == ["a"]


async def test_after_a_loss_a_run_that_has_nothing_to_apply_asks_what_the_lost_one_did(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),), follow_ups=(NEXT,))
    backend = await settle(store, clock, earlier, Move.COMPLETE, losses=1)
    assert (await status(backend), await status(backend, "2")) == (Status.COMPLETED, Status.WAITING)


@pytest.mark.parametrize(("losses", "late"), [(0, "applied"), (1, "already")])
async def test_a_run_that_was_alone_with_nothing_to_apply_leaves_no_row(store, clock, losses, late) -> None:
    backend = await settle(store, clock, None, Move.COMPLETE, losses=losses)
    assert await status(backend) is Status.COMPLETED
    (answer,) = await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert answer.state == late


async def test_what_an_earlier_run_applied_is_not_buried(store, clock) -> None:
    earlier = Application(message=ONE, effects=(effect("a"),))
    backend = await settle(store, clock, earlier, Move.BURY, error="no use")
    assert await status(backend) is Status.COMPLETED


async def test_what_an_earlier_run_closed_ends_without_effects(store, clock) -> None:
    earlier = Application(message=ONE, close=True)
    backend = await settle(store, clock, earlier, Move.COMPLETE, effects=(effect("b"),))
    assert await status(backend) is Status.FAILED
    assert await find(store, "words") == []


async def test_a_buried_message_is_closed_for_late_answers(store, clock) -> None:
    backend = await settle(store, clock, None, Move.BURY, error="no use")
    assert await status(backend) is Status.FAILED
    (late,) = await store.apply([Application(message=ONE, effects=(effect("a"),))])
    assert late.state == "closed"
