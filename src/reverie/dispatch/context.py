"""What a handler is given beside its messages: memory to read, models to ask, memos, whether it is cancelled.

It is the same wherever the handler runs. On the event loop its calls are awaited, on a thread and in another
process they block.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from reverie.backends.moves import OF_MEMORY
from reverie.dispatch.requests import Complete, Embed, ListTenants, LoadMemos, ReadItems, SaveMemo, Search
from reverie.errors import ReverieError
from reverie.memory.interface import SearchQuery
from reverie.models.interface import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from reverie.backends.moves import Claim
    from reverie.base.clock import Clock
    from reverie.dispatch.requests import Desk, Request
    from reverie.message import Key, Message

__all__ = ["Context", "LocalLine", "MemoryReader", "ModelPort"]


class Line(Protocol):
    """How a run reaches its worker: directly, or over the connection of its process."""

    async def ask(self, request: Request, claims: Collection[Claim]) -> Any:
        """The worker's answer to a request."""
        ...

    def ask_and_wait(self, request: Request, claims: Collection[Claim]) -> Any:
        """The same for a thread that blocks."""
        ...

    def is_cancelled(self, key: Key) -> bool:
        """Whether someone wants a running message cancelled."""
        ...


class LocalLine:
    """The line of handlers that run in the worker's own process."""

    def __init__(self, desk: Desk, clock: Clock, cancelled: Collection[Key] = frozenset()) -> None:
        """`cancelled` has the running messages that someone wants cancelled. Made on the worker's loop."""
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.ask = desk.ask
        self.is_cancelled = cancelled.__contains__

    def ask_and_wait(self, request: Request, claims: Collection[Claim]) -> Any:
        """See `Line.ask_and_wait`."""
        return asyncio.run_coroutine_threadsafe(self.ask(request, claims), self.loop).result()


@dataclass(slots=True)
class _Reads:
    """Whether a call has read memory: what it keeps after that depends on what it has read."""

    any: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The second argument of a handler that asks for one."""

    worker: str
    """The name of the worker that runs this."""
    timeout_s: float
    """How many seconds one call may take."""
    claims: tuple[Claim, ...] = ()
    line: Line | None = None
    is_async: bool = False
    """Whether the handler runs on an event loop: then its calls are awaited."""
    _reads: _Reads = field(default_factory=_Reads)

    @property
    def cancelled(self) -> bool:
        """Whether all messages of this call are to be cancelled: a long handler looks, and ends early."""
        line = self.line
        if line is None or not self.claims:
            return False
        return all(line.is_cancelled(claim.key) for claim in self.claims)

    @property
    def memory(self) -> MemoryReader:
        """The memories of the message's tenant. A batch of several tenants uses `memory_of`."""
        tenants = {(claim.message.user_id, claim.message.mem_cube_id) for claim in self.claims}
        if len(tenants) != 1:
            raise ReverieError("ctx.memory: this batch has several tenants; use ctx.memory_of(message)")
        return MemoryReader(self, *tenants.pop())

    def memory_of(self, message: Message) -> MemoryReader:
        """The memories of the tenant of one message of this call."""
        return MemoryReader(self, message.user_id, message.mem_cube_id)

    @property
    def models(self) -> ModelPort:
        """The embedder and the language model of this installation."""
        return ModelPort(self)

    def memo(self, step: str, function: Callable[[], Any], message: Message | None = None) -> Any:
        """The answer of `function`, kept under the name `step`: a later run of the message gets it there.

        For what costs money or should not be done twice. The answer comes as JSON holds it, in the first run
        too. In an async handler `memo` is awaited, and the function may be async. A batch handler says for
        which message. What is kept after a read of memory is forgotten if the message meets a conflict.
        """
        key = self._key(message)
        return self._memo_async(key, step, function) if self.is_async else self._memo(key, step, function)

    def ask(self, request: Request) -> Any:
        """The worker's answer; to be awaited in an async handler."""
        if self.line is None:
            raise ReverieError("this handler runs without a worker: it has no memory, models or memos")
        if self.is_async:
            return self.line.ask(request, self.claims)
        return self.line.ask_and_wait(request, self.claims)

    def note_read(self) -> None:
        """From now on, what this call keeps depends on what it has read of memory."""
        self._reads.any = True

    def _memo(self, key: Key, step: str, function: Callable[[], Any]) -> Any:
        kept = self._kept(self.ask(LoadMemos(key)), step)
        if kept is None:
            kept = msgspec.json.encode(function()).decode()
            self.ask(SaveMemo(key, self._name(step), kept))
        return msgspec.json.decode(kept)

    async def _memo_async(self, key: Key, step: str, function: Callable[[], Any]) -> Any:
        kept = self._kept(await self.ask(LoadMemos(key)), step)
        if kept is None:
            answer = function()
            if inspect.isawaitable(answer):
                answer = await answer
            kept = msgspec.json.encode(answer).decode()
            await self.ask(SaveMemo(key, self._name(step), kept))
        return msgspec.json.decode(kept)

    def _kept(self, memos: dict[str, str], step: str) -> str | None:
        """The result that a run has kept under this name; one that depends on a read counts as a read."""
        if step in memos:
            return memos[step]
        kept = memos.get(OF_MEMORY + step)
        if kept is not None:
            self.note_read()
        return kept

    def _name(self, step: str) -> str:
        return OF_MEMORY + step if self._reads.any else step

    def for_call(self, claims: tuple[Claim, ...], *, is_async: bool) -> Context:
        """The context of one call, which has read nothing yet."""
        return replace(self, claims=claims, is_async=is_async, _reads=_Reads())

    def _key(self, message: Message | None) -> Key:
        if message is None and len(self.claims) == 1:
            return self.claims[0].key
        for claim in self.claims:
            if message is not None and claim.key == message.key:
                return claim.key
        raise ReverieError("ctx.memo: say for which message of this batch, with message=")


class MemoryReader:
    """Reads the memories of one tenant. In an async handler each call is awaited."""

    def __init__(self, context: Context, user_id: str, mem_cube_id: str) -> None:
        self._context = context
        self._user_id = user_id
        self._cube = mem_cube_id

    def search(self, text: str, *, limit: int = 10) -> Any:
        """The memories that fit best, best first: a list of `Hit`."""
        query = SearchQuery(text=text, user_id=self._user_id, mem_cube_ids=(self._cube,), limit=limit)
        return self._ask(Search(query))

    def items(self, memory_ids: Sequence[str]) -> Any:
        """Those of these memories that there are, in the order of the ids: a list of `MemoryItem`."""
        return self._ask(ReadItems(self._user_id, self._cube, tuple(memory_ids)))

    def tenants(self, after: tuple[str, str] | None = None, limit: int = 100) -> Any:
        """Tenants that have memories, in order, after one of them. Only for messages of `_system`."""
        return self._ask(ListTenants(after, limit))

    def _ask(self, request: Request) -> Any:
        self._context.note_read()
        return self._context.ask(request)


class ModelPort:
    """Asks models. In an async handler each call is awaited."""

    def __init__(self, context: Context) -> None:
        self._ask = context.ask

    def embed(self, texts: Sequence[str]) -> Any:
        """One vector for each text, in their order."""
        return self._ask(Embed(tuple(texts)))

    def complete(self, prompt: str | Sequence[ChatMessage], *, schema: dict[str, Any] | None = None) -> Any:
        """The answer of the language model, a `Completion`; with a JSON schema, its text is JSON."""
        messages = (ChatMessage("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
        return self._ask(Complete(messages, schema))
