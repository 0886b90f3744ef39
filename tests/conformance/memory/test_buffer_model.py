"""Any sequence of steps on buffers loses no row, does none twice, and lets one run at a time have rows.

The model keeps for each row what has become of it; claims are held beside it, some for ever, as if their
worker had died.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from reverie import Delete, Remember
from reverie.effect import Buffer, BufferDone
from reverie.memory.buffers import BufferClaim, BufferKey
from reverie.testing import ManualClock
from support.memory_bench import open_file
from support.scale import scaled

KEYS = [BufferKey("ann", "ann"), BufferKey("ann", "office"), BufferKey("bob", "bob")]
HOLDERS = ["one", "two", "three"]
LEASE_S = 10
MOST = 2
keys = st.sampled_from(KEYS)


class BufferModel(RuleBasedStateMachine):
    """Takes the same steps in a store and in plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.clock = ManualClock()
        self.bench = self.run(self.stack.enter_async_context(open_file(":memory:", clock=self.clock)))
        self.rows: dict[str, BufferKey] = {}
        """Row that was put → its buffer."""
        self.deleted: set[str] = set()
        self.done: dict[str, int] = {}
        """Row → how often a message was applied that marked it done."""
        self.failures: dict[str, int] = {}
        self.claims: list[BufferClaim] = []
        self.holding: dict[str, tuple[str, str, int]] = {}
        """Row → the token, the holder and the end of its lease."""

    def run(self, work):
        return self.loop.run_until_complete(work)

    def apply(self, key: BufferKey, *effects) -> str:
        return self.run(self.bench.apply(*effects, user_id=key.user_id, cube=key.project_id))

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()

    @rule(key=keys, count=st.integers(1, 4), tokens=st.integers(1, 30))
    def insert(self, key: BufferKey, count: int, tokens: int) -> None:
        for _ in range(count):
            name = f"r{len(self.rows)}"
            self.rows[name] = key
            text = f"text of {name}"
            row = Buffer(buffer_id=name, blob_id=name, content=text, tokens=tokens)
            assert self.apply(key, Remember(memory_id=name, text=text), row) == "applied"

    @rule(key=keys, holder=st.sampled_from(HOLDERS), max_tokens=st.integers(1, 60))
    def claim(self, key: BufferKey, holder: str, max_tokens: int) -> None:
        now = self.clock.now()
        held = {
            name
            for name, (_, other, until) in self.holding.items()
            if self.rows[name] == key and until > now and other != holder
        }
        claim = self.run(
            self.bench.store.claim_buffer(
                key, holder, lease_ms=LEASE_S * 1000, max_tokens=max_tokens, most=MOST
            )
        )
        taken = [row.buffer_id for row in claim.rows]
        if held:
            assert taken == []
            return
        mine = {name for name, (_, other, _) in self.holding.items() if other == holder}
        lost = {name for name in self.holding if self.rows[name] == key} - mine
        for name in [name for name in lost if self.failures.get(name, 0) + 1 >= MOST]:
            del self.holding[name]
            self.failures[name] = self.failures.get(name, 0) + 1
        free = [name for name in self.rows if self.rows[name] == key and self.is_free(name, holder)]
        free = [name for name in free if name in mine] or free
        for name in lost & set(taken):
            self.failures[name] = self.failures.get(name, 0) + 1
        assert taken == free[: len(taken)]
        assert bool(taken) == bool(free)
        assert len(taken) < 2 or sum(row.buffer_size for row in claim.rows) <= max_tokens
        for name in [name for name, (_, other, _) in self.holding.items() if other == holder]:
            if self.rows[name] == key:
                del self.holding[name]
        self.holding |= dict.fromkeys(taken, (claim.token, holder, now + LEASE_S * 1000))
        self.claims.append(claim)

    def is_free(self, name: str, holder: str) -> bool:
        if name in self.deleted or name in self.done or self.failures.get(name, 0) >= MOST:
            return False
        lease = self.holding.get(name)
        return lease is None or lease[2] <= self.clock.now() or lease[1] == holder

    @rule(data=st.data(), failed=st.booleans())
    def release(self, data: st.DataObject, failed: bool) -> None:
        if self.claims:
            claim = data.draw(st.sampled_from(self.claims))
            reason = "no" if failed else None
            self.run(self.bench.store.release_buffer(claim, failed=reason, most=MOST))
            for name in self.still_held(claim):
                del self.holding[name]
                self.failures[name] = self.failures.get(name, 0) + failed

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.claims:
            claim = data.draw(st.sampled_from(self.claims))
            ids = tuple(row.buffer_id for row in claim.rows)
            state = self.apply(claim.key, BufferDone(token=claim.token, buffer_ids=ids))
            living = [name for name in ids if name not in self.deleted]
            mine = self.still_held(claim)
            assert state == ("applied" if living == mine else "conflict")
            if state == "applied":
                for name in mine:
                    self.done[name] = self.done.get(name, 0) + 1
                    del self.holding[name]

    def still_held(self, claim: BufferClaim) -> list[str]:
        names = [row.buffer_id for row in claim.rows]
        return [name for name in names if self.holding.get(name, ("",))[0] == claim.token]

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        living = [name for name in self.rows if name not in self.deleted]
        if living:
            name = data.draw(st.sampled_from(living))
            assert self.apply(self.rows[name], Delete(memory_id=name, version=1)) == "applied"
            self.deleted.add(name)
            self.holding.pop(name, None)

    @rule(key=keys)
    def retry_failed(self, key: BufferKey) -> None:
        failed = {
            name
            for name, count in self.failures.items()
            if count >= MOST and self.rows[name] == key and name not in self.deleted | self.done.keys()
        }
        assert self.run(self.bench.store.retry_failed_rows(key)) == len(failed)
        for name in failed:
            del self.failures[name]

    @rule(seconds=st.sampled_from([1, LEASE_S - 1, LEASE_S, 3 * LEASE_S]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def every_row_is_where_the_model_has_it(self) -> None:
        found = {}
        for key in KEYS:
            for row in self.run(self.bench.store.buffer_rows(key, limit=10_000)):
                found[row.buffer_id] = (key, row.status)
                assert row.content == ("" if row.status == "done" else f"text of {row.buffer_id}")
        expected = {
            name: (key, self.status_of(name)) for name, key in self.rows.items() if name not in self.deleted
        }
        assert found == expected
        assert set(self.done.values()) <= {1}

    def status_of(self, name: str) -> str:
        if name in self.done:
            return "done"
        if name in self.holding:
            return "processing"
        return "failed" if self.failures.get(name, 0) >= MOST else "idle"


@pytest.mark.timeout(600)
def test_no_row_is_lost_and_none_is_done_twice() -> None:
    run_state_machine_as_test(
        BufferModel,
        settings=settings(
            max_examples=max(25, scaled(500)),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
