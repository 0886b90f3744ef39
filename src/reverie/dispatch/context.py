"""What a handler is given beside its messages."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim
    from reverie.base.clock import Clock
    from reverie.message import Key, Message

__all__ = ["Context", "Desk"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a worker keeps at hand for the handlers that it runs."""

    queue: Queue
    loop: asyncio.AbstractEventLoop
    clock: Clock
    cancelled: set[Key] = field(default_factory=set)
    """Running messages that someone wants cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The second argument of a handler that asks for one."""

    worker: str
    """The name of the worker that runs this."""
    timeout_s: float
    """How many seconds one call may take."""
    claims: tuple[Claim, ...] = ()
    desk: Desk | None = None
    is_async: bool = False

    @property
    def cancelled(self) -> bool:
        """Whether all messages of this call are to be cancelled: a long handler looks, and ends early."""
        if self.desk is None or not self.claims:
            return False
        return all(claim.key in self.desk.cancelled for claim in self.claims)

    def memo(self, step: str, function: Callable[[], Any], message: Message | None = None) -> Any:
        """The answer of `function`, kept under the name `step`: a later run of the message gets it there.

        For what costs money or should not be done twice. The answer comes as JSON holds it, in the first run
        too. In an async handler `memo` is awaited, and the function may be async. A batch handler says for
        which message.
        """
        if self.desk is None:
            raise ReverieError("ctx.memo needs the worker's own process: a cpu handler cannot use it")
        claim = self._claim(message)
        if self.is_async:
            return self._memo(self.desk, claim, step, function)
        kept = self._wait(self.desk, _recall(self.desk, claim, step))
        if kept is None:
            answer = function()
            kept = msgspec.json.encode(answer).decode()
            self._wait(self.desk, self.desk.queue.save_memo(claim, step, kept))
        return msgspec.json.decode(kept)

    @staticmethod
    def _wait(desk: Desk, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, desk.loop).result()

    def _claim(self, message: Message | None) -> Claim:
        for claim in self.claims:
            if message is None and len(self.claims) == 1:
                return claim
            if message is not None and claim.key == message.key:
                return claim
        raise ReverieError("ctx.memo: say for which message of this batch, with message=")

    @staticmethod
    async def _memo(desk: Desk, claim: Claim, step: str, function: Callable[[], Any]) -> Any:
        kept = await _recall(desk, claim, step)
        if kept is None:
            answer = function()
            if inspect.isawaitable(answer):
                answer = await answer
            kept = msgspec.json.encode(answer).decode()
            await desk.queue.save_memo(claim, step, kept)
        return msgspec.json.decode(kept)


async def _recall(desk: Desk, claim: Claim, step: str) -> str | None:
    """What this run or an earlier one has kept under this name."""
    return (await desk.queue.load_memos(claim)).get(step)
