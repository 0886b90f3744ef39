"""Any sequence of moves leaves every backend where the plain model is.

The model is the memory backend. Both are given the same messages, claims, settlements, commands and steps
of the clock, and claims that are forgotten as if their worker had died; answers, lane order and every status
must agree.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conformance.conftest import LIMITS
from reverie.backends.control import (
    CancelItems,
    DeleteItems,
    PauseLabel,
    RequeueItems,
    ResumeLabel,
    Selection,
)
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, Settlement, Status, Want
from reverie.backends.redis import RedisBackend
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.views import StatusQuery
from reverie.base.clock import from_epoch_ms
from reverie.errors import InvalidMessageError
from reverie.message import Key, Message
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock
from support.scale import scaled
from support.servers import RedisClock, delete_keys

replace = msgspec.structs.replace

USERS = ["ann", "bob:x"]
LABELS = {
    "work": {"ordered": True},
    "loose": {"ordered": False},
    "slow": {"ordered": True, "min_idle_ms": 700},
}
START = 1_800_000_000_000
SPECS = st.tuples(
    st.sampled_from(USERS),
    st.sampled_from(list(LABELS)),
    st.integers(0, 12),
    st.sampled_from([0, 0, 400, 900]),
    st.sampled_from([0, 0, 0, 900]),
)
"""User, label, number, due in so many milliseconds, deadline in so many."""


class Moves(RuleBasedStateMachine):
    """The moves, made on the model and on the backend under test."""

    def open_real(self):  # answers (backend, its clock or None if it shares the model's)
        raise NotImplementedError

    def close_real(self) -> None:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(START)
        self.model = MemoryBackend(self.clock, LIMITS)
        self.real, self.real_clock = self.open_real()
        self.run(self.real.open())
        self.claims: list[tuple] = []

    def run(self, work):
        return self.loop.run_until_complete(work)

    @rule(specs=st.lists(SPECS, min_size=1, max_size=5))
    def submit(self, specs) -> None:
        self.submit_all([self.message(*spec) for spec in specs])

    @rule(
        spec=SPECS,
        parents=st.lists(
            st.tuples(st.sampled_from(list(LABELS)), st.integers(0, 12)), min_size=1, max_size=3
        ),
        if_fails=st.sampled_from(["fail", "run"]),
    )
    def submit_dependant(self, spec, parents, if_fails: str) -> None:
        """A message that waits for others; what it waits for may not be known, then it is refused."""
        ids = dict.fromkeys(f"{label}-{n}" for label, n in parents)
        child = self.message(*spec, if_dependency_fails=if_fails)
        ids.pop(child.item_id, None)
        self.submit_all([replace(child, depends_on=tuple(ids))])

    @rule(
        spec=SPECS,
        policy=st.sampled_from(["skip", "replace", "extend", "sooner"]),
        key=st.sampled_from("xy"),
        window=st.sampled_from([0, 0, 2]),
    )
    def submit_unique(self, spec, policy: str, key: str, window: float) -> None:
        fields = {"unique_key": key, "unique_policy": policy, "unique_window_s": window}
        self.submit_all([self.message(*spec, **fields)])

    def message(self, user: str, label: str, n: int, later: int, patience: int, **fields) -> Message:
        now = from_epoch_ms(self.clock.now())
        return Message(
            user_id=user,
            label=label,
            item_id=f"{label}-{n}",
            task_id="even" if n % 2 == 0 else None,
            due=now + timedelta(milliseconds=later) if later else None,
            deadline=now + timedelta(milliseconds=patience) if patience else None,
            **fields,
        )

    def submit_all(self, messages) -> None:
        try:
            expected = self.run(self.model.queue.submit(messages))
        except InvalidMessageError as error:
            with pytest.raises(InvalidMessageError, match=re.escape(str(error))):
                self.run(self.real.queue.submit(messages))
        else:
            assert self.run(self.real.queue.submit(messages)) == expected

    @rule(
        command=st.sampled_from([CancelItems, RequeueItems, DeleteItems]),
        user=st.sampled_from(USERS),
        ids=st.none() | st.lists(st.tuples(st.sampled_from(list(LABELS)), st.integers(0, 12)), max_size=4),
        label=st.none() | st.sampled_from(list(LABELS)),
    )
    def control(self, command, user: str, ids, label: str | None) -> None:
        item_ids = None if ids is None else tuple(dict.fromkeys(f"{name}-{n}" for name, n in ids))
        which = Selection(user_id=user, item_ids=item_ids, label=label)
        expected = self.run(self.model.queue.control(command(which)))
        got = self.run(self.real.queue.control(command(which)))
        assert set(got.changed) == set(expected.changed)
        assert set(got.requested) == set(expected.requested)

    @rule(label=st.sampled_from(list(LABELS)), pause=st.booleans())
    def pause(self, label: str, pause: bool) -> None:
        command = PauseLabel(label) if pause else ResumeLabel(label)
        self.run(self.model.queue.control(command))
        self.run(self.real.queue.control(command))

    @rule(data=st.data(), step=st.sampled_from(["one", "memory:one", "memory:two"]))
    def save_memo(self, data, step: str) -> None:
        if self.claims:
            model, real = data.draw(st.sampled_from(self.claims))
            kept = self.run(self.model.queue.save_memo(model, step, "1"))
            assert self.run(self.real.queue.save_memo(real, step, "1")) == kept
            assert self.run(self.real.queue.load_memos(real)) == self.run(self.model.queue.load_memos(model))

    @rule(
        label=st.sampled_from(list(LABELS)),
        quantum=st.integers(1, 3),
        lease_ms=st.sampled_from([500, 5000]),
        changed=st.sampled_from([{}, {}, {}, *LABELS.values()]),
    )
    def claim(self, label: str, quantum: int, lease_ms: int, changed: dict) -> None:
        """Claim by the label's own rules, or as if they had been changed meanwhile."""
        want = Want(slots=100, per_slot=10, quantum=quantum, **(LABELS[label] | changed))
        request = ClaimRequest(worker="w", wants={label: want}, lease_ms=lease_ms)
        expected, got = self.run(self.model.queue.claim(request)), self.run(self.real.queue.claim(request))
        assert by_lane(got) == by_lane(expected)
        assert times(got) == times(expected)
        real = {claim.key: claim for claim in got}
        self.claims += [(claim, real[claim.key]) for claim in expected]

    @rule(
        data=st.data(),
        move=st.sampled_from([*Move, Move.COMPLETE]),
        delay_ms=st.sampled_from([0, 0, 300]),
        follow=st.booleans(),
        keep=st.booleans(),
        conflict=st.booleans(),
    )
    def settle(self, data, move: Move, delay_ms: int, follow: bool, keep: bool, conflict: bool) -> None:
        """Report some claims, in any order; a kept claim may be reported again, and must then be stale."""
        if not self.claims:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.claims), min_size=1, max_size=4, unique_by=id))
        conflict = conflict and move is Move.RELEASE
        delay_ms = delay_ms if move in {Move.RETRY, Move.RELEASE} and not conflict else 0

        def settlement(claim) -> Settlement:
            child = Message(
                user_id=claim.message.user_id, label="work", item_id=f"child-{claim.message.item_id}"
            )
            return Settlement(
                claim=claim,
                move=move,
                attempt=move is not Move.RELEASE,
                delay_ms=delay_ms,
                error="because" if move in {Move.RETRY, Move.BURY} or delay_ms or conflict else None,
                conflict=conflict,
                follow_ups=(child,) if follow and move in {Move.COMPLETE, Move.BURY} else (),
            )

        expected = self.run(self.model.queue.settle([settlement(model) for model, _ in chosen]))
        got = self.run(self.real.queue.settle([settlement(real) for _, real in chosen]))
        assert [a.state for a in got] == [a.state for a in expected]
        if conflict:
            for model, real in chosen:
                memos = self.run(self.model.queue.load_memos(model))
                assert self.run(self.real.queue.load_memos(real)) == memos
        if not keep:
            self.claims = [pair for pair in self.claims if pair not in chosen]

    @rule(data=st.data())
    def renew(self, data) -> None:
        if not self.claims:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.claims), min_size=1, max_size=4, unique_by=id))
        expected = self.run(self.model.queue.renew([model for model, _ in chosen], 2000))
        got = self.run(self.real.queue.renew([real for _, real in chosen], 2000))
        assert [lost.key for lost in got.lost] == [lost.key for lost in expected.lost]
        assert got.cancelled == expected.cancelled

    @rule()
    def crash(self) -> None:
        """All workers die: nobody reports what they held."""
        self.claims = []

    @rule(seconds=st.sampled_from([0, 0.1, 0.4, 1, 6, 61]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.real_clock is not None:
            self.real_clock.advance(seconds)
        expected, got = self.run(self.model.queue.advance(1000)), self.run(self.real.queue.advance(1000))
        assert (got.reaped, got.expired, got.more) == (expected.reaped, expected.expired, expected.more)
        if type(self.real) is SqliteBackend:
            assert {e.message.key for e in got.ended} == {e.message.key for e in expected.ended}
        assert got.next_due == expected.next_due

    @invariant()
    def counts_are_exact(self) -> None:
        """The counts of the labels are what one gets by counting the items."""
        pages = [self.run(self.real.views.read(StatusQuery(user_id=user))) for user in USERS]
        counted = Counter((row.task_type, row.status) for page in pages for row in page.rows)
        states = self.run(self.real.views.labels())
        shown = {(s.label, status): getattr(s, status) for s in states for status in Status}
        assert +Counter(shown) == counted
        assert states == self.run(self.model.views.labels())

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            for user in USERS:
                for task in (None, "even"):
                    query = StatusQuery(user_id=user, task_id=task)
                    expected, got = (
                        self.run(self.model.views.read(query)),
                        self.run(self.real.views.read(query)),
                    )
                    assert by_id(got) == by_id(expected)
                    for row in got.rows:
                        key = Key(row.user_id, row.item_id)
                        runs = self.run(self.real.views.history(key))
                        assert runs == self.run(self.model.views.history(key))
                lanes = self.run(self.real.views.lanes(user))
                assert lanes == self.run(self.model.views.lanes(user))
        finally:
            self.run(self.real.close())
            self.close_real()
            self.run(self.loop.shutdown_asyncgens())
            self.loop.close()


def by_lane(claims) -> dict:
    lanes: dict = {}
    for claim in claims:
        message = claim.message
        counts = (message.attempts, message.losses, message.conflicts)
        lanes.setdefault(claim.lane, []).append((message.item_id, *counts))
    return lanes


def times(claims) -> dict:
    return {claim.key: (claim.submitted_at, claim.waiting_since) for claim in claims}


def by_id(page) -> dict:
    return {row.item_id: row for row in page.rows}


class OnSqlite(Moves):
    def open_real(self):
        self.folder = tempfile.TemporaryDirectory()
        database = Database(str(Path(self.folder.name) / "q.db"), "normal")
        return SqliteBackend(database, self.clock, LIMITS), None

    def close_real(self) -> None:
        self.folder.cleanup()


def on_redis(url: str) -> type[Moves]:
    class OnRedis(Moves):
        def open_real(self):
            self.prefix = f"model-{uuid.uuid4()}"
            backend = RedisBackend(url, LIMITS, prefix=self.prefix, allow_volatile=True)
            return backend, RedisClock(url, self.prefix, START)

        def close_real(self) -> None:
            self.real_clock.close()
            delete_keys(url, self.prefix)

    return OnRedis


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_every_sequence_of_moves(kind: str, request: pytest.FixtureRequest) -> None:
    machine = OnSqlite if kind == "sqlite" else on_redis(request.getfixturevalue("redis_url"))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=scaled(2000), stateful_step_count=30, deadline=None, suppress_health_check=slow
        ),
    )
