"""Any sequence of effects, steps of the indexer and changes of models leaves the tables in agreement."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reverie import Delete, Link, Message, Remember, Revise, Supersede, Touch
from reverie.effect import Move, Source
from reverie.memory.interface import Application
from reverie.memory.query import Filters, SearchQuery
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.models.interface import Models
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock
from support.agreement import disagreements
from support.hashing import HashEmbedder
from support.scale import scaled

pytestmark = [pytest.mark.scaled, pytest.mark.timeout(1800)]
TENANTS = [("ann", "ann"), ("ann", "office"), ("bob", "ann")]
NAMES = [f"m.{number}" for number in range(7)]
WORDS = ["tea", "teas", "house", "Lisbon", "7", "里斯本", "the"]
TIERS = ["working", "long_term", "archive", "parameter"]
EMBEDDERS = [None, HashEmbedder("a", 64), HashEmbedder("b", 64), HashEmbedder("c", 128)]

names = st.sampled_from(NAMES)
texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=6).map(" ".join)
versions = st.one_of(st.just("present"), st.integers(0, 3))
tiers = st.sampled_from(TIERS)
sources = st.lists(
    st.builds(
        Source, item_id=st.just("m"), index=st.integers(0, 6), name=st.sampled_from([None, "Bob", "Will"])
    ),
    max_size=2,
).map(tuple)
effects = st.one_of(
    st.builds(
        Remember,
        memory_id=names,
        text=texts,
        tier=tiers,
        kind=st.sampled_from(["fact", "preference"]),
        session_id=st.sampled_from([None, "s", "t"]),
        title=st.sampled_from([None, "title"]),
        facts=st.sampled_from([(), ("a fact",)]),
        sources=sources,
        importance=st.sampled_from([0.0, 0.5, 1.0]),
        valid_from=st.sampled_from([None, 1_000_000]),
    ),
    st.builds(
        Revise,
        memory_id=names,
        version=versions,
        text=st.none() | texts,
        kind=st.none() | st.just("event"),
        title=st.none() | st.just("other"),
        sources=st.none() | sources,
        importance=st.none() | st.just(0.9),
        valid_from=st.none() | st.just(2_000_000),
    ),
    st.builds(Supersede, memory_id=names, version=versions, successor=names),
    st.builds(Move, memory_id=names, version=versions, tier=tiers),
    st.builds(Touch, memory_id=names),
    st.builds(
        Link,
        source_id=names,
        relation=st.sampled_from(["derived_from", "derived_from", "about"]),
        target_id=names,
    ),
    st.builds(Delete, memory_id=names, version=versions),
)


class MemoryMachine(RuleBasedStateMachine):
    """One file, opened by one store at a time."""

    @initialize(embedder=st.sampled_from(EMBEDDERS))
    def start(self, embedder: HashEmbedder | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock(start_ms=1_800_000_000_000)
        self.loop = asyncio.new_event_loop()
        self.open(embedder)

    def open(self, embedder: HashEmbedder | None) -> None:
        self.embedder = embedder
        if embedder is not None:
            embedder.fails = False
        self.database = Database(str(self.folder / "m.db"), "normal")
        limits = MemorySettings(working_limit=2, long_term_limit=4)
        self.store = SqliteMemoryStore(self.database, self.clock, limits, Models(embedder=embedder))
        self.run(self.store.open())

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            if self.embedder is None:  # it makes no vectors for the items that others have left
                self.open_again(EMBEDDERS[1])
            self.finish_indexing()
            assert self.run(self.database.read(lambda c: disagreements(c, indexed=True))) == []
        finally:
            self.run(self.store.close())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # the last reader is about to end

    def finish_indexing(self) -> None:
        if self.embedder is not None:
            self.embedder.fails = False
        self.store.try_late_again()
        while self.run(self.store.index_next(3)):
            pass
        assert self.run(self.store.index_progress()).left == 0

    @rule(
        tenant=st.sampled_from(TENANTS),
        chosen=st.lists(effects, min_size=1, max_size=4),
        prepare=st.booleans(),
    )
    def apply(self, tenant, chosen, prepare: bool) -> None:
        self.clock.advance(1)
        chosen = tuple(self.with_version(tenant, effect) for effect in chosen)
        prepared = self.run(self.store.prepare(chosen)) if prepare else None
        message = Message(user_id=tenant[0], mem_cube_id=tenant[1], label="work")
        (applied,) = self.run(
            self.store.apply([Application(message=message, effects=chosen, prepared=prepared)])
        )
        assert applied.state in {"applied", "conflict", "rejected"}, applied
        if applied.state == "rejected":
            assert "ValueError" in applied.error, applied

    def with_version(self, tenant, effect):
        """The effect with the version that its item has now, if that is what it is to have."""
        if getattr(effect, "version", None) != "present":
            return effect
        item = self.run(self.store.get(tenant[0], effect.memory_id))
        fields = {name: getattr(effect, name) for name in effect.__struct_fields__}
        return type(effect)(**(fields | {"version": 0 if item is None else item.version}))

    @rule(limit=st.integers(1, 5))
    def index(self, limit: int) -> None:
        assert self.run(self.store.index_next(limit)) is not None

    @precondition(lambda self: self.embedder is not None)
    @rule(fails=st.booleans())
    def break_or_mend_embedder(self, fails: bool) -> None:
        self.embedder.fails = fails

    @rule()
    def try_late_again(self) -> None:
        self.store.try_late_again()

    @rule()
    def rebuild(self) -> None:
        self.run(self.store.rebuild())

    @rule(embedder=st.sampled_from(EMBEDDERS))
    def open_again(self, embedder: HashEmbedder | None) -> None:
        self.run(self.store.close())
        self.open(embedder)

    @rule(text=texts, user=st.sampled_from(["ann", "bob"]), past=st.booleans())
    def search(self, text: str, user: str, past: bool) -> None:
        filters = Filters(as_of=self.clock.now()) if past else Filters()
        query = SearchQuery(text=text, user_id=user, filters=filters, neighbours=1, hops=1)
        for hit in self.run(self.store.search(query)):
            assert hit.item.user_id == user
            assert past or hit.item.superseded_by is None

    @invariant()
    def tables_agree(self) -> None:
        if hasattr(self, "store"):
            assert self.run(self.database.read(disagreements)) == []


MemoryMachine.TestCase.settings = settings(max_examples=scaled(400), stateful_step_count=25, deadline=None)
test_any_sequence_leaves_the_tables_in_agreement = MemoryMachine.TestCase
