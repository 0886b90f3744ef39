"""The breaker and the limiter that all workers share for one thing they call.

Pure state machines; each backend keeps the state of a key and moves it in one atomic step. A call first
passes the **breaker**: closed, open until a moment, then half-open, which lets one probe through. Then it
passes the **limiter**, which learns: it allows `max_concurrency` calls until the first rate limit, few calls
after it, one more for each round of calls that succeed, and twice as many after each quiet minute, until the
limit is gone again. Permits have leases, so that those of a worker that died come back.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Step = Callable[["State", int], tuple["State", "Grant"]]
    """(state, time) → (next state, answer)."""

__all__ = [
    "DEFAULT_RULES",
    "LEASE_MS",
    "MOST_LISTED",
    "BreakerRules",
    "Grant",
    "LimiterRules",
    "Permit",
    "Rules",
    "SharedMachine",
    "Signal",
    "SignalKind",
    "State",
    "acquire",
    "is_blank",
    "opened",
    "report",
]

LEASE_MS = 60_000
"""How long a permit holds by default: a minute."""
MOST_LISTED = 1000
"""The most open breakers that are listed."""
PROBE = "probe-"
"""The prefix of a probe's permit, by which it is recognised even when its lease is over."""


class LimiterRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a limiter: how many calls run at once."""

    max_concurrency: int = 50
    """Calls at once while there is no other limit; default 50."""
    first_limit: int = 10
    """Calls at once after the first rate limit; default 10. Each further one halves it, down to one."""
    quiet_ms: int = 60_000
    """The limit doubles after each period of this length without a rate limit; default a minute."""


class BreakerRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a breaker: when no calls are made at all."""

    failures: int = 3
    """Failures in a row that open the breaker; default 3."""
    pause_ms: int = 30_000
    """Milliseconds until a probe; default 30 s. It doubles while a quota or a credential stays refused …"""
    max_pause_ms: int = 3_600_000
    """… up to this many milliseconds; default an hour."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one key."""

    breaker: BreakerRules = BreakerRules()
    limiter: LimiterRules | None = LimiterRules()
    """None: any number of calls at once."""
    max_retry_after_ms: int = 24 * 3_600_000
    """The longest Retry-After that is obeyed; default a day."""
    look_again_ms: int = 1_000
    """When to ask again if another worker's permit or probe is in the way; default a second."""
    forget_ms: int = 24 * 3_600_000
    """A state is forgotten this long after the last moment that means something in it; default a day."""


DEFAULT_RULES = Rules()


class SignalKind(StrEnum):
    """The ways in which a call can end."""

    SUCCESS = "success"
    FAILURE = "failure"
    RATE_LIMITED = "rate_limited"
    QUOTA = "quota"
    """No quota is left, or the credential is refused."""
    RELEASE = "release"
    """The call was not made, or says nothing about the other side."""


class Signal(msgspec.Struct, frozen=True):
    """A worker's report about a call."""

    kind: SignalKind
    retry_after_ms: int | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: how many calls may be made now."""

    now: int
    """The moment of this answer, on the backend's clock."""
    granted: int = 0
    permit: str = ""
    """The name for the report. Empty if there is nothing to give back, because no limit counts the calls."""
    retry_at: int | None = None
    """When nothing is granted: the earliest moment at which it is worth asking again."""
    obstacle: SignalKind | None = None
    """When nothing is granted: the signal that is the cause. `RATE_LIMITED` also stands for the limit."""

    @property
    def wait_ms(self) -> int:
        """Milliseconds from this answer until it is worth asking again."""
        return 0 if self.retry_at is None else max(0, self.retry_at - self.now)

    @property
    def is_probe(self) -> bool:
        """Whether this grants a probe: a single call that decides whether the breaker closes."""
        return self.permit.startswith(PROBE)


class Permit(msgspec.Struct, frozen=True, array_like=True):
    """Calls under way."""

    calls: int
    since: int
    until: int


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is known about one key. The default means that nothing is wrong."""

    permits: dict[str, Permit] = {}
    failures: int = 0
    """Failures since the last success."""
    open_until: int | None = None
    """The breaker: None is closed; otherwise it is open until this moment, then half-open."""
    refused: bool = False
    """Whether the breaker is open because of a quota or a credential, not because of failures."""
    pause_ms: int = 0
    """The last pause of an open breaker."""
    limit: int | None = None
    """The limiter: None means no limit except `max_concurrency`."""
    successes: int = 0
    """Successful calls since the limit last grew."""
    lowered_at: int = 0
    limited_at: int = 0
    """The time of the last rate limit, or of the last doubling after it."""
    not_before: int = 0
    """The end of the last Retry-After."""
    forget_at: int = 0
    """From this time on the state counts as the default."""


def acquire(
    state: State, now: int, permit: str, *, n: int, lease_ms: int, rules: Rules
) -> tuple[State, Grant]:
    """Ask for `n` calls under the permit `permit`; fewer, or none, may be granted."""
    state = _as_of(state, now, rules)
    probing = _probing(state)
    if state.not_before > now:
        return state, Grant(now=now, retry_at=state.not_before, obstacle=SignalKind.RATE_LIMITED)
    if state.open_until is not None:
        obstacle = SignalKind.QUOTA if state.refused else SignalKind.FAILURE
        if state.open_until > now:
            return state, Grant(now=now, retry_at=state.open_until, obstacle=obstacle)
        if probing:
            look_at = min(*probing, now + rules.look_again_ms)
            return state, Grant(now=now, retry_at=look_at, obstacle=obstacle)
        n, permit = min(n, 1), PROBE + permit
    elif rules.limiter is None:
        return state, Grant(now=now, granted=n)
    granted = n
    if rules.limiter is not None:
        most = rules.limiter.max_concurrency
        limit = most if state.limit is None else min(state.limit, most)
        granted = min(n, limit - sum(known.calls for known in state.permits.values()))
    if granted <= 0:
        return state, Grant(now=now, retry_at=now + rules.look_again_ms, obstacle=SignalKind.RATE_LIMITED)
    permits = {**state.permits, permit: Permit(granted, now, now + lease_ms)}
    state = msgspec.structs.replace(state, permits=permits)
    return _dated(state, now, rules), Grant(now=now, granted=granted, permit=permit)


def report(state: State, now: int, permit: str, signal: Signal, rules: Rules) -> tuple[State, Grant]:
    """Apply the report about a call, with or without a permit; the answer says when to ask again."""
    state = _as_of(state, now, rules)
    call = _Call(permit, state.permits.get(permit))
    if call.known is not None:
        rest = {name: other for name, other in state.permits.items() if name != permit}
        state = msgspec.structs.replace(state, permits=rest)
    match signal.kind:
        case SignalKind.SUCCESS:
            state = _succeeded(state, call, rules)
        case SignalKind.FAILURE:
            state = _failed(state, now, call, rules.breaker)
        case SignalKind.RATE_LIMITED:
            state = _rate_limited(state, now, call, signal, rules)
        case SignalKind.QUOTA:
            state = _refused(state, now, call, signal, rules.breaker)
        case SignalKind.RELEASE:
            pass
    moments = [moment for moment in (state.open_until, state.not_before) if moment and moment > now]
    if not moments and state.open_until is not None and (probing := _probing(state)):
        moments = [min(*probing, now + rules.look_again_ms)]
    return _dated(state, now, rules), Grant(now=now, retry_at=max(moments, default=None))


class SharedMachine:
    """Implements `reverie.backends.interface.SharedState`, except for where the states are kept."""

    async def acquire(
        self, key: str, n: int = 1, lease_ms: int = LEASE_MS, rules: Rules = DEFAULT_RULES
    ) -> Grant:
        """See `SharedState.acquire`."""
        permit = secrets.token_hex(8)
        return await self._move(
            key, lambda state, now: acquire(state, now, permit, n=n, lease_ms=lease_ms, rules=rules)
        )

    async def report(self, key: str, permit: str, signal: Signal, rules: Rules = DEFAULT_RULES) -> Grant:
        """See `SharedState.report`."""
        return await self._move(key, lambda state, now: report(state, now, permit, signal, rules))

    async def _move(self, key: str, step: Step) -> Grant:
        """Read the state of a key, take the step and keep the result, all in one atomic step."""
        raise NotImplementedError


def opened(states: Iterable[tuple[str, State]], now: int) -> dict[str, int]:
    """Key → when a probe may try, for keys whose breaker is not closed; at most `MOST_LISTED`."""
    found = (
        (key, state.open_until)
        for key, state in states
        if state.open_until is not None and state.forget_at > now
    )
    return dict(islice(found, MOST_LISTED))


def is_blank(state: State) -> bool:
    """Whether a state is the default, so that it need not be kept."""
    return msgspec.structs.replace(state, forget_at=0) == State()


class _Call(NamedTuple):
    """The call that a report is about; `known` if its permit still holds."""

    permit: str
    known: Permit | None

    @property
    def probed(self) -> bool:
        """Whether the call was made as a probe, even if its permit no longer holds."""
        return self.permit.startswith(PROBE)

    @property
    def decides(self) -> bool:
        """Whether the breaker waits for this very call."""
        return self.probed and self.known is not None


def _as_of(state: State, now: int, rules: Rules) -> State:
    """Apply to a state what time alone does: leases end, the limit doubles, an old state is forgotten."""
    if state.forget_at <= now:
        return State()
    permits = {name: known for name, known in state.permits.items() if known.until > now}
    state = msgspec.structs.replace(state, permits=permits)
    while state.limit is not None and rules.limiter and state.limited_at + rules.limiter.quiet_ms <= now:
        limited_at = state.limited_at + rules.limiter.quiet_ms
        state = msgspec.structs.replace(state, limited_at=limited_at)
        state = _limited(state, state.limit * 2, rules.limiter)  # type: ignore[operator]  # it is not None
    return state


def _probing(state: State) -> list[int]:
    """The end of the probe's lease, if a probe is under way; else an empty list."""
    return [known.until for name, known in state.permits.items() if name.startswith(PROBE)]


def _limited(state: State, limit: int, rules: LimiterRules) -> State:
    """Set another limit; one that is as high as `max_concurrency` is removed."""
    if limit >= rules.max_concurrency:
        return msgspec.structs.replace(state, limit=None, successes=0, lowered_at=0, limited_at=0)
    return msgspec.structs.replace(state, limit=limit, successes=0)


def _closed(state: State) -> State:
    return msgspec.structs.replace(state, failures=0, open_until=None, refused=False, pause_ms=0)


def _succeeded(state: State, call: _Call, rules: Rules) -> State:
    # A call that began before the breaker opened is old news when it succeeds; a late probe is not.
    if state.open_until is None or call.probed:
        state = _closed(state)
    if state.limit is not None and rules.limiter is not None:
        successes = state.successes + (call.known.calls if call.known else 1)
        if successes >= state.limit:
            return _limited(state, state.limit + 1, rules.limiter)
        return msgspec.structs.replace(state, successes=successes)
    return state


def _failed(state: State, now: int, call: _Call, rules: BreakerRules) -> State:
    if state.open_until is None:
        state = msgspec.structs.replace(state, failures=state.failures + 1)
        if state.failures < rules.failures:
            return state
    elif not call.decides:
        return state
    pause_ms = state.pause_ms or rules.pause_ms
    return msgspec.structs.replace(state, pause_ms=pause_ms, open_until=now + pause_ms)


def _refused(state: State, now: int, call: _Call, signal: Signal, rules: BreakerRules) -> State:
    asked = min(signal.retry_after_ms or 0, rules.max_pause_ms)
    if state.open_until is None:
        pause_ms = rules.pause_ms
    elif call.decides or (state.open_until <= now and not _probing(state)):
        pause_ms = min(state.pause_ms * 2, rules.max_pause_ms)
    else:  # one of many calls that were refused at the same time
        return msgspec.structs.replace(state, open_until=max(state.open_until, now + asked))
    open_until = now + max(pause_ms, asked)
    return msgspec.structs.replace(state, pause_ms=pause_ms, open_until=open_until, refused=True)


def _rate_limited(state: State, now: int, call: _Call, signal: Signal, rules: Rules) -> State:
    if call.probed:
        state = _closed(state)  # a server that counts our calls is up and accepts the credential
    asked = min(signal.retry_after_ms or 0, rules.max_retry_after_ms)
    state = msgspec.structs.replace(state, not_before=max(state.not_before, now + asked))
    if rules.limiter is None:
        return state
    state = msgspec.structs.replace(state, limited_at=now)
    if state.limit is None:
        limit = min(rules.limiter.first_limit, max(1, rules.limiter.max_concurrency - 1))
    elif call.known is not None and call.known.since > state.lowered_at:
        limit = max(1, state.limit // 2)
    else:
        return state  # the call began under the old limit: one burst lowers the limit once
    return msgspec.structs.replace(state, limit=limit, successes=0, lowered_at=now)


def _dated(state: State, now: int, rules: Rules) -> State:
    """Set the moment at which the state is forgotten."""
    moments = [known.until for known in state.permits.values()]
    last = max(now, state.open_until or 0, state.not_before, *moments)
    not_before = state.not_before if state.not_before > now else 0
    return msgspec.structs.replace(state, not_before=not_before, forget_at=last + rules.forget_ms)
