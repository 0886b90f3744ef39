"""Queue and memory in one file: messages that are settled together change memory as if each came alone."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.effect import Delete, Link, Remember, Revise, Source, Supersede, Touch
from reverie.effect import Move as MoveItem
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.message import Message
from reverie.models.interface import Models
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock
from support.agreement import disagreements
from support.hashing import HashEmbedder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from reverie.backends.moves import Claim
    from reverie.effect import Effect

SAME = {
    "items": "SELECT user_id, id, project_id, text, tier, version, superseded_by, access_count"
    " FROM memory_items",
    "places": "SELECT i.user_id, i.id, s.server_session_id, c.place, s.places, c.uses FROM memory_items AS i"
    " JOIN memory_cards AS c USING (seq) LEFT JOIN memory_sessions AS s USING (session)",
    "tiers": "SELECT user_id, project_id, tier, items FROM memory_tiers JOIN memory_tenants USING (tenant)"
    " WHERE items > 0",
    "links": "SELECT user_id, source_id, relation, target_id FROM memory_links",
    "versions": "SELECT user_id, id, version, text, change FROM memory_versions",
    "tombstones": "SELECT user_id, id FROM memory_tombstones",
    "messages": "SELECT user_id, id, status FROM pending_messages",
}
"""What does not depend on how messages are settled; the numbers of rows do."""


class Bench:
    """A queue and a memory store in one file."""

    def __init__(self, path: Path, embedder: HashEmbedder | None, **settings: Any) -> None:
        self.database = Database(str(path), "normal")
        clock = ManualClock()
        models = Models(embedder=embedder)
        self.store = SqliteMemoryStore(self.database, clock, MemorySettings(**settings), models)
        self.backend = SqliteBackend(
            self.database, clock, apply_effects=self.store.effects_within(self.database)
        )

    async def claim(self, *items: str) -> list[Claim]:
        """Submit and claim messages; `ann/2` is of the user ann and has a lane of its own."""
        messages = [
            Message(
                user_id=item.partition("/")[0], item_id=item, label=item.replace("/", "-"), session_id="s"
            )
            for item in items
        ]
        await self.backend.queue.submit(messages)
        wants = {message.label: Want(slots=1, per_slot=1) for message in messages}
        claims = await self.backend.queue.claim(
            ClaimRequest(worker="w", wants=wants, slots=len(items), enough=len(items))
        )
        by_id = {claim.message.item_id: claim for claim in claims}
        return [by_id[item] for item in items]

    async def settlements(self, given: dict[str, Sequence[Effect]]) -> list[Settlement]:
        claims = await self.claim(*given)
        return [
            Settlement(
                claim=claim,
                move=Move.COMPLETE,
                effects=tuple(effects),
                prepared=await self.store.prepare(effects),
            )
            for claim, effects in zip(claims, given.values(), strict=True)
        ]

    async def settle(self, **given: Sequence[Effect]) -> list[str]:
        """Settle one message for each argument, all together; the names are made to ids."""
        together = await self.settlements(
            {name.replace("_", "/"): effects for name, effects in given.items()}
        )
        return [answer.state for answer in await self.backend.queue.settle(together)]

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return await self.database.read(lambda connection: connection.execute(statement).fetchall())

    async def ids(self) -> list[str]:
        return [memory_id for (memory_id,) in await self.rows("SELECT id FROM memory_items ORDER BY seq")]


@asynccontextmanager
async def opened(path: Path, embedder: HashEmbedder | None, **settings: Any) -> AsyncIterator[Bench]:
    bench = Bench(path, embedder, **settings)
    await bench.store.open()
    await bench.backend.open()
    try:
        yield bench
        assert await bench.database.read(disagreements) == []
    finally:
        await bench.backend.close()
        await bench.store.close()


@pytest.fixture(params=[None, HashEmbedder()], ids=["no embedder", "embedder"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path / "q.db", request.param, working_limit=2) as bench:
        yield bench


def new(memory_id: str, text: str = "tea in Lisbon", **fields: Any) -> Remember:
    return Remember(memory_id=memory_id, text=text, sources=(Source(item_id="m", name="Will"),), **fields)


async def test_many_messages_take_few_statements(bench: Bench) -> None:
    ran: list[str] = []

    def trace(_: object, statement: str, __: object) -> bool:
        ran.append(statement)
        return True

    messages = {f"user{n % 30}/{n}": [new(f"m{n}", f"tea number {n}")] for n in range(120)}
    together = await bench.settlements(messages)
    await bench.database.write(lambda connection: setattr(connection, "exec_trace", trace))
    answers = await bench.backend.queue.settle(together)
    await bench.database.write(lambda connection: setattr(connection, "exec_trace", None))
    assert {answer.state for answer in answers} == {"applied"}
    assert await bench.ids() == [f"m{n}" for n in range(120)]
    of_memory = [one for one in ran if " memory_" in one and "INTO memory_tenants" not in one]
    assert len(of_memory) < 30


@pytest.mark.parametrize(
    ("spoilt", "state"),
    [
        ([new("bad1"), new("taken", "other words"), new("bad2")], "rejected"),
        ([new("bad1"), Revise(memory_id="taken", version=7, text="x"), new("bad2")], "conflict"),
        ([new("bad1"), Link(source_id="bad1", relation="about", target_id="nothing")], "rejected"),
        ([new("bad1"), new("bad2", importance="much")], "rejected"),
        ([new("bad1"), new("bad2", valid_from=2**63)], "rejected"),
    ],
)
async def test_a_message_that_fails_leaves_nothing_and_spoils_no_neighbour(
    bench: Bench, spoilt: list[Effect], state: str
) -> None:
    assert await bench.settle(ann_0=[new("taken")]) == ["applied"]
    answers = await bench.settle(ann_1=[new("a1")], ann_2=spoilt, ann_3=[new("a3")], bob_1=[new("b1")])
    assert answers == ["applied", state, "applied", "applied"]
    assert await bench.ids() == ["taken", "a1", "a3", "b1"]
    places = "SELECT i.id, c.place FROM memory_cards AS c JOIN memory_items AS i USING (seq)"
    assert dict(await bench.rows(places)) == {"taken": 1, "a1": 2, "a3": 3, "b1": 1}
    statuses = dict(await bench.rows("SELECT id, status FROM pending_messages"))
    assert statuses == {"ann/0": "completed", "ann/2": "processing"} | dict.fromkeys(
        ["ann/1", "ann/3", "bob/1"], "completed"
    )


async def test_a_stale_claim_leaves_nothing_and_spoils_no_neighbour(bench: Bench) -> None:
    together = await bench.settlements({"ann/1": [new("a1")], "ann/2": [new("a2")], "bob/1": [new("b1")]})
    await bench.backend.queue.settle([Settlement(claim=together[1].claim, move=Move.RELEASE)])
    answers = await bench.backend.queue.settle(together)
    assert [answer.state for answer in answers] == ["applied", "stale", "applied"]
    assert await bench.ids() == ["a1", "b1"]


async def test_a_message_sees_what_earlier_ones_of_its_group_have_written(bench: Bench) -> None:
    answers = await bench.settle(
        ann_1=[new(name) for name in ("revised", "deleted", "old", "new", "moved", "touched")],
        ann_2=[Revise(memory_id="revised", version=1, text="coffee")],
        ann_3=[Delete(memory_id="deleted", version=1), new("late")],
        ann_4=[Supersede(memory_id="old", version=1, successor="new"), Touch(memory_id="touched")],
        ann_5=[MoveItem(memory_id="moved", version=1, tier="archive"), new("deleted")],
        ann_6=[Link(source_id="late", relation="about", target_id="new")],
    )
    assert answers == ["applied"] * 6
    found = {row[0]: row[1:] for row in await bench.rows("SELECT id, text, version, tier FROM memory_items")}
    assert found.keys() == {"revised", "old", "new", "moved", "touched", "late"}
    assert found["revised"] == ("coffee", 2, "long_term")
    assert found["moved"] == ("tea in Lisbon", 2, "archive")
    assert await bench.rows("SELECT id FROM memory_items WHERE superseded_by = 'new'") == [("old",)]
    assert len(await bench.rows("SELECT * FROM memory_links")) == 2


async def test_an_id_comes_twice_in_a_group(bench: Bench) -> None:
    assert (
        await bench.settle(ann_1=[new("one"), new("one")], ann_2=[new("one")], ann_3=[new("two")])
        == ["applied"] * 3
    )
    assert await bench.ids() == ["one", "two"]
    assert await bench.settle(ann_4=[new("three")], ann_5=[new("three", "other words")]) == [
        "applied",
        "rejected",
    ]


async def test_a_full_tier_keeps_its_limit_and_the_items_of_most_worth(bench: Bench) -> None:
    worth = {"a": 0.4, "b": 0.9, "c": 0.1, "d": 0.8, "e": 0.2}
    messages = {
        f"ann_{name}": [new(name, tier="working", importance=importance)]
        for name, importance in worth.items()
    }
    assert await bench.settle(**messages, bob_1=[new("x", tier="working")]) == ["applied"] * 6
    kept = await bench.rows("SELECT id FROM memory_items WHERE tier = 'working' ORDER BY id")
    assert kept == [("b",), ("d",), ("x",)]


names = st.sampled_from(["p", "q", "r", "s"])
versions = st.integers(1, 3)
texts = st.sampled_from(["tea", "tea in Lisbon", "house"])
effects = st.one_of(
    st.builds(
        new,
        names,
        texts,
        tier=st.sampled_from(["working", "long_term", "archive"]),
        importance=st.sampled_from([0.1, 0.5, 0.9]),
    ),
    st.builds(Revise, memory_id=names, version=versions, text=st.none() | texts, importance=st.just(0.7)),
    st.builds(Supersede, memory_id=names, version=versions, successor=names),
    st.builds(MoveItem, memory_id=names, version=versions, tier=st.sampled_from(["working", "archive"])),
    st.builds(Touch, memory_id=names),
    st.builds(Link, source_id=names, relation=st.just("derived_from"), target_id=names),
    st.builds(Delete, memory_id=names, version=versions),
)
messages = st.lists(
    st.tuples(st.sampled_from(["ann", "bob"]), st.lists(effects, min_size=1, max_size=4)), max_size=8
)


async def outcome(path: Path, given: list[tuple[str, list[Effect]]], *, together: bool) -> Any:
    """The answers, and what the tables have afterwards."""
    async with opened(path, HashEmbedder(), working_limit=2) as bench:
        group = await bench.settlements({f"{user}/{n}": effects for n, (user, effects) in enumerate(given)})
        parts = [group] if together else [[one] for one in group]
        answers = [(a.state, a.error) for part in parts for a in await bench.backend.queue.settle(part)]
        return answers, {name: sorted(await bench.rows(select), key=repr) for name, select in SAME.items()}


@settings(max_examples=60, deadline=None)
@given(messages)
def test_messages_together_do_what_each_does_alone(given: list[tuple[str, list[Effect]]]) -> None:
    async def both() -> list[Any]:
        return [await outcome(Path(folder, f"{how}.db"), given, together=how) for how in (True, False)]

    with tempfile.TemporaryDirectory() as folder:
        together, alone = asyncio.run(both())
    assert together == alone
