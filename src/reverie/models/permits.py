"""Permits for calls of the language model, from the limiter and the breaker that all workers share.

A process holds permits in blocks of up to `BLOCK` calls. A slot of a block is used again by the next call, so
that a call rarely asks the shared state. Every `BLOCK_S` seconds a block is reported: a busy one then gets a
new permit, an idle one ends. A process that calls nothing holds no block and asks nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from reverie.backends.breaker_state import Grant, LimiterRules, Rules, Signal, SignalKind
from reverie.base.logs import get_logger
from reverie.errors import ReverieError
from reverie.failures import ERRORS, FailureKind, RateLimitedError, WorkError
from reverie.models.interface import BadAnswerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from typing import Any

    from reverie.backends.interface import SharedState
    from reverie.base.clock import Clock
    from reverie.models.settings import LlmSettings

__all__ = ["PermitPool"]

log = get_logger(__name__)

BLOCK = 10
"""The most calls of one block."""
BLOCK_S = 3.0
"""Seconds after which a block is reported."""
LEASE_MS = 60_000
"""How long the permit of a process that died is held; a living process renews its permits long before."""
PATIENCE_S = 5.0
"""The longest pause that a call waits for. For a longer one, its message is handed back at once."""
LOOK_AGAIN_MS = 1_000
"""How often a call that waits for the local limit looks again, if no other call ends."""
SIGNALS = {
    FailureKind.RATE_LIMITED: SignalKind.RATE_LIMITED,
    FailureKind.QUOTA: SignalKind.QUOTA,
    FailureKind.CREDENTIALS: SignalKind.QUOTA,
    FailureKind.TRANSIENT: SignalKind.FAILURE,
}
"""Class of failure → the signal for the shared state. Other failures say nothing about the provider."""


class _Block:
    """Calls that may be made under one permit."""

    def __init__(self, permit: str, slots: int, *, is_probe: bool = False) -> None:
        self.permit = permit
        """Empty if the shared state could not be asked."""
        self.slots = slots
        self.is_probe = is_probe
        self.in_use = 0
        self.done = 0
        """Calls that have succeeded since the permit was granted."""
        self.is_over = False
        """Whether no more calls may use the block."""
        self.woken = asyncio.Event()
        """Wakes the task that reports the block."""

    @property
    def has_room(self) -> bool:
        return self.in_use < self.slots and not self.is_over

    def end(self) -> str:
        """Let no more calls use the block; the answer is the permit that is to be given back."""
        permit, self.permit, self.is_over = self.permit, "", True
        self.woken.set()
        return permit

    @property
    def verdict(self) -> Signal:
        """What the calls of the block say about the provider."""
        return Signal(SignalKind.SUCCESS if self.done else SignalKind.RELEASE)


class PermitPool:
    """Lets calls through as far as the shared limiter and breaker allow."""

    def __init__(self, shared: SharedState, settings: LlmSettings, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._credential = settings.credential
        self._local_limit = settings.limited_concurrency
        self.key = f"model:{quote(settings.credential, safe='')}"
        """The key of the shared state."""
        self._rules = Rules(
            limiter=LimiterRules(
                max_concurrency=settings.max_concurrency,
                first_limit=settings.limited_concurrency,
                quiet_ms=round(settings.quiet_s * 1000),
            )
        )
        self._blocks: list[_Block] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: asyncio.Task[Grant] | None = None
        self._waiters: dict[asyncio.Event, None] = {}
        """The calls that wait, the longest first."""
        self._denial: Grant | None = None
        """The last answer of the shared state, if it granted nothing …"""
        self._denied_until = 0
        """… and the moment until which that answer holds, on this process's clock."""
        self._has_succeeded = False
        """Whether a call has succeeded since the last failure."""
        self._refusal: tuple[FailureKind, str] = (FailureKind.CREDENTIALS, "")
        """The kind and the text of the last refusal that this process has seen."""
        self._alone = False

    @property
    def in_flight(self) -> int:
        """Calls that are under way in this process."""
        return sum(block.in_use for block in self._blocks)

    @asynccontextmanager
    async def slot(self, within_s: float) -> AsyncIterator[None]:
        """Make one call inside of this context; waits at most `within_s` for the permit.

        Errors that leave the context are reported to the shared state, if they concern other calls.
        """
        block = await self._take(within_s)
        try:
            yield
        except WorkError as error:
            await self._failed(block, error)
            raise
        else:
            block.done += 1
            self._has_succeeded = True
        finally:
            block.in_use -= 1
            if block.is_probe and not block.is_over:
                await self._end(block)
            elif block.is_over and not block.in_use and block in self._blocks:
                self._blocks.remove(block)
            self._wake(1)

    async def close(self) -> None:
        """Give all permits back. The pool can be used again, on any event loop."""
        for block in list(self._blocks):
            await self._end(block)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._blocks.clear()

    async def _take(self, within_s: float) -> _Block:
        """A slot of a block, as soon as there is one."""
        until = self._clock.now() + round(within_s * 1000)
        woken = asyncio.Event()
        self._waiters[woken] = None
        try:
            while True:
                for block in self._blocks:
                    if block.has_room:
                        block.in_use += 1
                        return block
                woken.clear()
                grant = await self._ask()
                if not grant.granted:
                    self._check(grant, until)
                    await self._clock.wait(woken, self._clock.now() + grant.wait_ms)
        finally:
            del self._waiters[woken]

    async def _ask(self) -> Grant:
        """Ask for a block for the calls that wait. Calls that ask at the same time share the answer."""
        now = self._clock.now()
        if self._denial is not None and now < self._denied_until:
            return msgspec.structs.replace(self._denial, now=now, retry_at=self._denied_until)
        if self._asking is None or self._asking.done():  # an old answer says nothing about the slots of now
            self._asking = asyncio.create_task(self._new_block())
        return await asyncio.shield(self._asking)

    async def _new_block(self) -> Grant:
        grant = await self._acquire(min(BLOCK, max(1, len(self._waiters), self.in_flight)))
        self._denial, self._denied_until = None, 0
        if not grant.granted:
            self._denial, self._denied_until = grant, self._clock.now() + grant.wait_ms
        else:
            block = _Block(grant.permit, grant.granted, is_probe=grant.is_probe)
            self._blocks.append(block)
            if not block.is_probe:
                self._begin(self._wear(block))
            self._wake(grant.granted)
        return grant

    async def _acquire(self, wanted: int) -> Grant:
        """The answer of the shared state; if it cannot be asked, calls go on up to the local limit."""
        try:
            grant = await self._shared.acquire(self.key, wanted, LEASE_MS, self._rules)
        except ReverieError as error:
            if not self._alone:
                log.warning("llm.limiter_alone", limit=self._local_limit, error=str(error))
            self._alone = True
            now = self._clock.now()
            granted = min(wanted, self._local_limit - sum(block.slots for block in self._blocks))
            if granted > 0:
                return Grant(now=now, granted=granted)
            return Grant(now=now, retry_at=now + LOOK_AGAIN_MS, obstacle=SignalKind.RATE_LIMITED)
        self._alone = False
        return grant

    def _check(self, grant: Grant, until: int) -> None:
        """Raise the error of a pause that is too long to wait for."""
        wait_s = grant.wait_ms / 1000
        if grant.obstacle is SignalKind.QUOTA and grant.wait_ms > LOOK_AGAIN_MS:
            kind, reason = self._refusal
            text = (
                f"no call is made for {wait_s:.0f} s, because the credential {self._credential!r} is refused"
            )
            error = ERRORS[kind](f"{text}: {reason}" if reason else text)
        elif grant.obstacle is SignalKind.FAILURE and wait_s > PATIENCE_S:
            # The message was not tried: it uses no attempt, however long the provider is away.
            reason = f"no call is made for {wait_s:.0f} s, because the last calls have failed"
            error = RateLimitedError(reason)
        elif wait_s > PATIENCE_S:
            error = RateLimitedError(f"the provider allows no call for {wait_s:.0f} s")
        elif self._clock.now() + grant.wait_ms > until:
            error = RateLimitedError("no call was allowed in the time that the handler has")
        else:
            return
        error.retry_after, error.credential = wait_s, self._credential
        raise error

    async def _wear(self, block: _Block) -> None:
        """Report a block every `BLOCK_S` seconds, and end it when it is idle."""
        while True:
            await self._clock.wait(block.woken, self._clock.now() + round(BLOCK_S * 1000))
            block.woken.clear()
            if block.is_over:
                return
            if not block.in_use:
                await self._end(block)
                return
            await self._renew(block)

    async def _renew(self, block: _Block) -> None:
        """Report a busy block, and get a permit for the calls that are under way.

        The new permit has no idle slots, because other processes may need them more.
        """
        permit, signal = block.permit, block.verdict
        block.permit, block.done, block.slots = "", 0, 0
        if permit:
            await self._report(permit, signal)
        grant = await self._acquire(max(1, block.in_use))
        if block.is_over or grant.is_probe:
            block.end()
            if grant.permit:
                await self._report(grant.permit, Signal(SignalKind.RELEASE))
            return
        block.permit, block.slots = grant.permit, grant.granted
        self._wake_all()

    async def _failed(self, block: _Block, error: WorkError) -> None:
        """Report a call that has failed, if that concerns other calls."""
        kind = None if isinstance(error, BadAnswerError) else SIGNALS.get(error.kind)
        if kind is None:
            block.done += 1  # the provider has answered
            return
        if kind is SignalKind.QUOTA:
            self._refusal = (error.kind, str(error))
        after_s = error.retry_after
        signal = Signal(kind, None if after_s is None else round(after_s * 1000))
        if kind is SignalKind.FAILURE and self._has_succeeded:  # only failures in a row open the breaker
            self._has_succeeded = False
            await self._report("", Signal(SignalKind.SUCCESS))
        # The limiter halves its limit only for a permit that it knows. The breaker waits for its probe.
        with_permit = block.is_probe or kind is SignalKind.RATE_LIMITED
        must_stop = await self._report(block.end() if with_permit else "", signal)
        if must_stop or kind is SignalKind.RATE_LIMITED:
            for other in [one for one in self._blocks if not one.is_over]:
                await self._end(other)
        self._wake_all()

    async def _end(self, block: _Block) -> None:
        """Report a block and let no more calls use it."""
        permit = block.end()
        if not block.in_use and block in self._blocks:
            self._blocks.remove(block)
        if permit:
            await self._report(permit, block.verdict)
        self._wake_all()

    async def _report(self, permit: str, signal: Signal) -> bool:
        """Report to the shared state; the answer says whether no call may be made for a while."""
        try:
            grant = await self._shared.report(self.key, permit, signal, self._rules)
        except ReverieError as error:
            log.warning("llm.not_reported", signal=str(signal.kind), error=str(error))
            return False
        return grant.wait_ms > 0

    def _wake(self, calls: int) -> None:
        """Let the calls that have waited longest look again."""
        asleep = (woken for woken in self._waiters if not woken.is_set())
        for woken in list(islice(asleep, calls)):
            woken.set()

    def _wake_all(self) -> None:
        """Let all calls that wait ask again, because the shared state has changed."""
        self._denial = None
        self._wake(len(self._waiters))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
