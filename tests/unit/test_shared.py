"""The machines behind limiter and breaker, whatever happens to them in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reverie.backends.breaker_state import (
    BreakerRules,
    LimiterRules,
    Rules,
    Signal,
    SignalKind,
    State,
    acquire,
    is_blank,
    report,
)
from reverie.backends.sqlite import SqliteBackend
from reverie.storage.sqlite import Database

RULES = st.builds(
    Rules,
    breaker=st.builds(
        BreakerRules,
        failures=st.integers(1, 3),
        pause_ms=st.integers(1, 30),
        max_pause_ms=st.integers(30, 100),
    ),
    limiter=st.none()
    | st.builds(
        LimiterRules,
        max_concurrency=st.integers(1, 20),
        first_limit=st.integers(1, 20),
        quiet_ms=st.integers(1, 50),
    ),
    max_retry_after_ms=st.just(200),
    look_again_ms=st.integers(1, 20),
    forget_ms=st.integers(50, 500),
)
SIGNALS = st.builds(Signal, st.sampled_from(SignalKind), st.none() | st.integers(0, 1000))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 60)),
        st.tuples(st.just("acquire"), st.integers(1, 30), st.integers(1, 100)),
        st.tuples(st.just("report"), st.integers(0, 50), SIGNALS),
    ),
    max_size=60,
)


class Walk:
    """A state moved by events, and the permits that are out as an observer counts them."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.state, self.now = rules, State(), 1000
        self.out: dict[str, tuple[int, int]] = {}
        self.names = 0

    def acquire(self, n: int, lease_ms: int):
        self.names += 1
        self.state, grant = acquire(
            self.state, self.now, str(self.names), n=n, lease_ms=lease_ms, rules=self.rules
        )
        if grant.permit:
            self.out[grant.permit] = (grant.granted, self.now + lease_ms)
        return grant

    def report(self, index: int, signal: Signal):
        names = [*self.out, "", "unknown"]
        name = names[index % len(names)]
        self.out.pop(name, None)
        self.state, answer = report(self.state, self.now, name, signal, self.rules)
        return answer

    @property
    def under_way(self) -> int:
        return sum(calls for calls, until in self.out.values() if until > self.now)

    def go(self, events) -> None:
        for kind, *values in events:
            if kind == "wait":
                self.now += values[0]
                continue
            answer = getattr(self, kind)(*values)
            assert answer.now == self.now
            if kind == "acquire":
                self.check(answer, values[0])

    def check(self, grant, n: int) -> None:
        assert 0 <= grant.granted <= n
        assert (grant.granted == 0) == (grant.retry_at is not None)
        if grant.retry_at is not None:
            assert grant.retry_at > self.now
            assert not grant.permit
        if self.rules.limiter is not None and grant.granted:
            limit = self.state.limit or self.rules.limiter.max_concurrency
            assert self.under_way <= limit <= self.rules.limiter.max_concurrency
        probes = [u for name, (_, u) in self.out.items() if name.startswith("probe-") and u > self.now]
        assert not grant.is_probe or len(probes) == 1


@given(RULES, EVENTS)
def test_never_more_is_granted_than_the_limit_and_never_two_probes(rules: Rules, events) -> None:
    Walk(rules).go(events)


@given(RULES, EVENTS)
def test_it_always_recovers_when_the_other_side_does(rules: Rules, events) -> None:
    walk = Walk(rules)
    walk.go(events)
    walk.out.clear()  # whoever held permits is dead
    greatest = rules.limiter.max_concurrency if rules.limiter else 50
    for _ in range(1000):
        grant = walk.acquire(greatest, 10)
        if grant.granted == greatest and walk.under_way in {greatest, 0}:
            return
        if grant.granted:
            walk.report(list(walk.out).index(grant.permit), Signal(SignalKind.SUCCESS))
            walk.now += 1
        else:
            assert grant.retry_at - walk.now <= 300  # nobody is told to wait for ever
            walk.now = grant.retry_at
    raise AssertionError(walk.state)


@given(RULES, EVENTS)
def test_what_nobody_touches_means_nothing_in_the_end(rules: Rules, events) -> None:
    walk = Walk(rules)
    walk.go(events)
    walk.now = max(walk.now, walk.state.forget_at)
    walk.state, _ = report(walk.state, walk.now, "", Signal(SignalKind.RELEASE), rules)
    assert is_blank(walk.state)


async def test_sqlite_waits_for_the_disk_in_no_call_of_limiter_and_breaker(tmp_path, clock) -> None:
    backend = SqliteBackend(Database(str(tmp_path / "q.db")), clock)
    await backend.open()
    database = backend.shared._database
    waits = []
    original = database.submit

    def submit(job, *, durable: bool = True, urgent: bool = False):
        waits.append(durable)
        return original(job, durable=durable, urgent=urgent)

    database.submit = submit
    grant = await backend.shared.acquire("key")
    await backend.shared.report("key", grant.permit or "", Signal(SignalKind.RATE_LIMITED))
    assert waits == [False, False]
    del database.submit
    await backend.close()
