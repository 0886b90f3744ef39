"""Permits of the shared limiter: blocks, waits, refusals, and going on without the shared state."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from reverie.backends.breaker_state import Grant, SignalKind
from reverie.backends.memory.breaker_state import MemorySharedState
from reverie.errors import BackendUnavailableError
from reverie.failures import CredentialsError, InvalidWorkError, QuotaError, RateLimitedError, TransientError
from reverie.models.interface import BadAnswerError
from reverie.models.permits import BLOCK_S, PermitPool
from reverie.models.settings import LlmSettings
from reverie.testing import ManualClock


class Counted:
    """A shared state that counts what it is asked, and may be away."""

    def __init__(self, clock: ManualClock) -> None:
        self._inner = MemorySharedState(clock)
        self.asked: Counter[str] = Counter()
        self.is_away = False

    async def acquire(self, key, n, lease_ms, rules):
        self.asked["acquire"] += 1
        self._check()
        return await self._inner.acquire(key, n, lease_ms, rules)

    async def report(self, key, permit, signal, rules):
        self.asked[str(signal.kind)] += 1
        self._check()
        return await self._inner.report(key, permit, signal, rules)

    async def open_breakers(self):
        return await self._inner.open_breakers()

    def _check(self) -> None:
        if self.is_away:
            raise BackendUnavailableError("the server is away")


@pytest.fixture
def shared(clock: ManualClock) -> Counted:
    return Counted(clock)


class Provider:
    """Calls that end when the test says how."""

    def __init__(self, pool: PermitPool) -> None:
        self.pool = pool
        self.running: list[asyncio.Future[None]] = []

    def call(self, within_s: float = 100) -> asyncio.Task[None]:
        return asyncio.create_task(self._call(within_s))

    async def _call(self, within_s: float) -> None:
        async with self.pool.slot(within_s):
            end = asyncio.get_running_loop().create_future()
            self.running.append(end)
            try:
                await end
            finally:
                self.running.remove(end)

    def finish(self, count: int | None = None, error: Exception | None = None) -> None:
        for end in self.running[:count]:
            if error is None:
                end.set_result(None)
            else:
                end.set_exception(error)


async def settle() -> None:
    """Let everything run that needs no time."""
    for _ in range(40):
        await asyncio.sleep(0)


@pytest.fixture
async def provider(shared: Counted, clock: ManualClock):
    pool = PermitPool(shared, LlmSettings(), clock)
    provider = Provider(pool)
    yield provider
    provider.finish()
    await settle()
    await pool.close()


async def test_fifty_calls_are_in_flight_and_the_next_waits_for_a_slot(
    provider: Provider, shared: Counted
) -> None:
    calls = [provider.call() for _ in range(60)]
    await settle()
    assert len(provider.running) == provider.pool.in_flight == 50
    assert shared.asked["acquire"] <= 7
    provider.finish(5)
    await settle()
    assert len(provider.running) == 50
    provider.finish()
    await settle()
    provider.finish()
    await asyncio.gather(*calls)


async def test_slots_of_a_block_are_used_again_without_asking(provider: Provider, shared: Counted) -> None:
    for _ in range(40):
        call = provider.call()
        await settle()
        provider.finish()
        await call
    assert shared.asked == {"acquire": 1}


async def test_a_worn_block_is_reported_and_an_idle_pool_asks_nothing(
    provider: Provider, shared: Counted, clock: ManualClock
) -> None:
    call = provider.call()
    await settle()
    provider.finish()
    await call
    clock.advance(BLOCK_S)
    await settle()
    assert shared.asked == {"acquire": 1, "success": 1}
    for _ in range(10):
        clock.advance(100)
        await settle()
    assert shared.asked == {"acquire": 1, "success": 1}


async def test_a_long_call_keeps_its_permit(provider: Provider, shared: Counted, clock: ManualClock) -> None:
    settings = LlmSettings(max_concurrency=1)
    provider.pool = PermitPool(shared, settings, clock)
    other = Provider(PermitPool(shared, settings, clock))
    call = provider.call()
    await settle()
    for _ in range(40):
        clock.advance(BLOCK_S)
        await settle()
    assert shared.asked["success"] == 0  # nothing has succeeded yet
    waiting = other.call()
    await settle()
    assert other.running == []
    provider.finish()
    await call
    clock.advance(BLOCK_S)
    await settle()
    clock.advance(1)
    await settle()
    assert len(other.running) == 1
    other.finish()
    await waiting
    await provider.pool.close()
    await other.pool.close()


async def test_a_rate_limit_lowers_the_limit_at_once_and_it_recovers_within_two_minutes(
    provider: Provider, shared: Counted, clock: ManualClock
) -> None:
    calls = [provider.call(10_000) for _ in range(51)]
    await settle()
    provider.finish(1, RateLimitedError("slowly"))
    await settle()
    provider.finish()
    await settle()
    assert shared.asked["rate_limited"] == 1
    done = 0
    in_flight = []
    for _ in range(240):  # each call takes half a second
        calls += [provider.call(10_000) for _ in range(60 - len([c for c in calls if not c.done()]))]
        await settle()
        in_flight.append(len(provider.running))
        done += len(provider.running)
        provider.finish()
        clock.advance(0.5)
        await settle()
    assert max(in_flight[:6]) <= 11
    assert min(in_flight[-4:]) >= 45
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in results if isinstance(one, Exception)] == [RateLimitedError]


async def test_a_burst_of_rate_limits_lowers_the_limit_once(
    provider: Provider, shared: Counted, clock: ManualClock
) -> None:
    calls = [provider.call() for _ in range(50)]
    await settle()
    provider.finish(None, RateLimitedError("slowly"))
    await settle()
    again = [provider.call() for _ in range(20)]
    await settle()
    assert len(provider.running) == 10
    for call in again:
        call.cancel()
    await asyncio.gather(*calls, *again, return_exceptions=True)


async def test_a_short_retry_after_is_waited_for_and_a_long_one_is_not(
    provider: Provider, clock: ManualClock
) -> None:
    first = provider.call()
    await settle()
    provider.finish(1, RateLimitedError("slowly", retry_after=3))
    with pytest.raises(RateLimitedError):
        await first
    second = provider.call()
    await settle()
    assert provider.running == []
    clock.advance(3)
    await settle()
    provider.finish(1, RateLimitedError("slowly", retry_after=40))
    with pytest.raises(RateLimitedError):
        await second
    with pytest.raises(RateLimitedError, match="allows no call for 40 s") as failed:
        await provider.call()
    assert (failed.value.retry_after, failed.value.credential) == (40, "llm")


async def test_a_wait_that_is_longer_than_the_time_of_the_handler(provider: Provider) -> None:
    calls = [provider.call() for _ in range(50)]
    await settle()
    with pytest.raises(RateLimitedError, match="in the time that the handler has"):
        await provider.call(within_s=0.5)
    provider.finish()
    await asyncio.gather(*calls)


@pytest.mark.parametrize("error", [CredentialsError("no such key"), QuotaError("the month is used up")])
async def test_a_refusal_stops_all_calls_until_a_probe_gets_through(
    provider: Provider, shared: Counted, clock: ManualClock, error
) -> None:
    first = provider.call()
    await settle()
    provider.finish(1, error)
    with pytest.raises(type(error)):
        await first
    asked = shared.asked["acquire"]
    clock.advance(10)
    for _ in range(3):
        with pytest.raises(type(error), match=str(error)) as failed:
            await provider.call()
        assert (failed.value.retry_after, failed.value.credential) == (20, "llm")
    assert shared.asked["acquire"] == asked + 1
    clock.advance(20)
    calls = [provider.call() for _ in range(3)]
    await settle()
    assert len(provider.running) == 1
    provider.finish()
    await settle()
    assert len(provider.running) == 2
    provider.finish()
    await asyncio.gather(*calls)


async def test_another_process_is_told_of_a_refusal(
    provider: Provider, shared: Counted, clock: ManualClock
) -> None:
    first = provider.call()
    await settle()
    provider.finish(1, QuotaError("used up"))
    with pytest.raises(QuotaError):
        await first
    other = PermitPool(shared, LlmSettings(), clock)
    with pytest.raises(CredentialsError, match="the credential 'llm' is refused"):
        async with other.slot(10):
            pytest.fail("no call may be made")


async def test_three_failures_in_a_row_stop_all_calls_for_a_while(
    provider: Provider, clock: ManualClock
) -> None:
    for outcome in (TransientError("a"), TransientError("b"), None, TransientError("c"), TransientError("d")):
        call = provider.call()
        await settle()
        provider.finish(1, outcome)
        await asyncio.gather(call, return_exceptions=True)
    call = provider.call()
    await settle()
    assert len(provider.running) == 1
    provider.finish(1, TransientError("e"))
    with pytest.raises(TransientError, match="e"):
        await call
    with pytest.raises(RateLimitedError, match="the last calls have failed") as failed:
        await provider.call()
    assert failed.value.retry_after == 30
    clock.advance(30)
    call = provider.call()
    await settle()
    provider.finish()
    await call


@pytest.mark.parametrize("error", [BadAnswerError("half"), InvalidWorkError("too long")])
async def test_failures_of_one_call_do_not_stop_others(provider: Provider, shared: Counted, error) -> None:
    for _ in range(5):
        call = provider.call()
        await settle()
        provider.finish(1, error)
        await asyncio.gather(call, return_exceptions=True)
    assert shared.asked == {"acquire": 1}


async def test_calls_go_on_up_to_a_local_limit_while_the_shared_state_is_away(
    provider: Provider, shared: Counted, clock: ManualClock
) -> None:
    shared.is_away = True
    calls = [provider.call() for _ in range(15)]
    await settle()
    assert len(provider.running) == 10
    provider.finish(5)
    await settle()
    assert len(provider.running) == 10
    shared.is_away = False
    clock.advance(BLOCK_S)
    await settle()
    provider.finish()
    await asyncio.gather(*calls)
    more = [provider.call() for _ in range(50)]
    await settle()
    assert len(provider.running) == 50
    provider.finish()
    await asyncio.gather(*more)


async def test_a_cancelled_call_gives_its_slot_back(provider: Provider, shared: Counted) -> None:
    for _ in range(120):
        call = provider.call()
        await settle()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert provider.pool.in_flight == 0
    assert shared.asked == {"acquire": 1}


async def test_close_gives_all_permits_back(shared: Counted, clock: ManualClock) -> None:
    pool = PermitPool(shared, LlmSettings(max_concurrency=1), clock)
    for _ in range(3):
        async with pool.slot(10):
            pass
        await pool.close()
    assert shared.asked == {"acquire": 3, "success": 3}


async def test_a_call_that_is_woken_too_late_asks_again_and_lets_others_run(clock: ManualClock) -> None:
    gate: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
    denial = Grant(now=clock.now(), retry_at=clock.now() + 4000, obstacle=SignalKind.RATE_LIMITED)

    class OneSlot(Counted):
        async def acquire(self, key, n, lease_ms, rules):
            self.asked["acquire"] += 1
            return await gate if self.asked["acquire"] == 2 else denial

    shared = OneSlot(clock)
    provider = Provider(PermitPool(shared, LlmSettings(), clock))
    calls = [provider.call()]
    await settle()
    provider.pool._denial = None  # as if the limit had changed
    calls.append(provider.call())
    await settle()
    gate.set_result(Grant(now=clock.now(), granted=1, permit="only"))
    calls.append(provider.call())  # takes the slot before the first call, which is woken for it
    await settle()
    assert len(provider.running) == 1
    assert shared.asked["acquire"] == 3
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await provider.pool.close()
