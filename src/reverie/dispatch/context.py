"""The context that a handler is given beside its messages: memory, models, buffers, memos, cancel requests.

The context is the same wherever the handler runs. An async handler awaits its calls; for other handlers the
calls block.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from reverie.backends.moves import OF_MEMORY
from reverie.dispatch.housekeeping import CountItems, ListCubes, ListSomeTenants, ReadExpired, RefreshIndex
from reverie.dispatch.requests import (
    BufferStates,
    ClaimBuffer,
    Complete,
    CountTokens,
    Embed,
    HasLanguageModel,
    IndexItems,
    ListTenants,
    LoadMemos,
    ReadChanges,
    ReadExtraction,
    ReadItems,
    ReadOptions,
    ReadQueries,
    ReadSessionItems,
    ReadTier,
    ReadUnread,
    ReleaseBuffer,
    SaveMemo,
    Search,
    SetAside,
)
from reverie.dispatch.upkeep import (
    ReadChanged,
    ReadColdest,
    ReadJudged,
    ReadSimilar,
    ReadTierCounts,
    ReadUpkeepUntil,
)
from reverie.errors import ReverieError
from reverie.memory.query import Filters, SearchQuery
from reverie.models.interface import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from reverie.backends.moves import Claim
    from reverie.base.clock import Clock
    from reverie.dispatch.requests import Desk, Request
    from reverie.memory.buffers import BufferClaim, BufferKey
    from reverie.memory.housekeeping import Which
    from reverie.message import Key, Message

__all__ = ["BufferPort", "Context", "LocalLine", "MemoryReader", "ModelPort", "UpkeepReader"]


class Line(Protocol):
    """The way from a run to its worker: direct, or over the connection of its process."""

    async def ask(self, request: Request, claims: Collection[Claim]) -> Any:
        """The worker's answer to a request."""
        ...

    def ask_and_wait(self, request: Request, claims: Collection[Claim]) -> Any:
        """Like `ask`, for a thread, which blocks until the answer is there."""
        ...

    def is_cancelled(self, key: Key) -> bool:
        """Whether the cancellation of a running message was requested."""
        ...


class LocalLine:
    """The line of handlers that run in the worker's own process."""

    def __init__(self, desk: Desk, clock: Clock, cancelled: Collection[Key] = frozenset()) -> None:
        """Create this on the worker's loop. `cancelled` has the running messages with a cancel request."""
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.ask = desk.ask
        self.is_cancelled = cancelled.__contains__

    def ask_and_wait(self, request: Request, claims: Collection[Claim]) -> Any:
        """See `Line.ask_and_wait`."""
        return asyncio.run_coroutine_threadsafe(self.ask(request, claims), self.loop).result()


@dataclass(slots=True)
class _Reads:
    """Whether a call has read memory: memos that it keeps after that depend on what it has read."""

    any: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The second argument of a handler that asks for one."""

    worker: str
    """The name of the worker that runs the handler."""
    timeout_s: float
    """The seconds that one call of the handler may take."""
    claims: tuple[Claim, ...] = ()
    line: Line | None = None
    is_async: bool = False
    """Whether the handler runs on an event loop, and awaits the calls of the context."""
    _reads: _Reads = field(default_factory=_Reads)

    @property
    def cancelled(self) -> bool:
        """Whether all messages of this call are to be cancelled: a long handler can check and end early."""
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
    def upkeep(self) -> UpkeepReader:
        """What upkeep of the message's tenant needs to know of its memories."""
        return UpkeepReader(self.memory)

    @property
    def models(self) -> ModelPort:
        """The embedder and the language model of this installation."""
        return ModelPort(self)

    def options(self) -> Any:
        """The settings that handlers heed, as `HandlerOptions`. An async handler awaits it."""
        return self.ask(ReadOptions())

    @property
    def buffers(self) -> BufferPort:
        """The buffers of the tenants of this call's messages."""
        return BufferPort(self)

    def memo(self, step: str, function: Callable[[], Any], message: Message | None = None) -> Any:
        """The answer of `function`, kept under the name `step`: later runs of the message get it again.

        Use this for steps that cost money or must not be done twice. The answer has passed through JSON, even
        in the first run. An async handler awaits `memo`, and the function may be async. A batch handler names
        the message. Memos that are kept after a read of memory are forgotten if the message meets a conflict.
        """
        key = self.key_of(message, "ctx.memo")
        return self._memo_async(key, step, function) if self.is_async else self._memo(key, step, function)

    def ask(self, request: Request) -> Any:
        """The worker's answer to a request. An async handler awaits it."""
        if self.line is None:
            raise ReverieError("this handler runs without a worker: it has no memory, models or memos")
        if self.is_async:
            return self.line.ask(request, self.claims)
        return self.line.ask_and_wait(request, self.claims)

    def note_read(self) -> None:
        """Note that this call has read memory: its later memos depend on that."""
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

    def key_of(self, message: Message | None, call: str) -> Key:
        """The key of a message of this run; without a message, that of the only one."""
        if message is None and len(self.claims) == 1:
            return self.claims[0].key
        for claim in self.claims:
            if message is not None and claim.key == message.key:
                return claim.key
        raise ReverieError(f"{call}: say for which message of this batch, with message=")


class MemoryReader:
    """Reads the memories of one tenant. In an async handler each call is awaited."""

    def __init__(self, context: Context, user_id: str, mem_cube_id: str) -> None:
        self._context = context
        self._user_id = user_id
        self._cube = mem_cube_id

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        kinds: Sequence[str] = (),
        without_kinds: Sequence[str] = (),
        hops: int = 0,
    ) -> Any:
        """The memories that fit best, best first: a `Found`, which can be used like a list of hits.

        With `hops`, the memories that are up to this many links away come with each hit.
        """
        query = SearchQuery(
            text=text,
            user_id=self._user_id,
            mem_cube_ids=(self._cube,),
            limit=limit,
            filters=Filters(kinds=tuple(kinds), without_kinds=tuple(without_kinds)),
            hops=hops,
        )
        return self._ask(Search(query))

    def items(self, memory_ids: Sequence[str]) -> Any:
        """The memories with these ids that exist, in the order of the ids: a list of `MemoryItem`."""
        return self._ask(ReadItems(self._user_id, self._cube, tuple(memory_ids)))

    def tier(self, tier: str) -> Any:
        """The memories in a tier, at most a thousand, in the order in which they were learned."""
        return self._ask(ReadTier(self._user_id, self._cube, tier))

    def extraction(self) -> Any:
        """What to extract for this cube: an `Extraction`."""
        return self._context.ask(ReadExtraction(self._user_id, self._cube))

    def changes(self) -> Any:
        """How often the memories of the tenant were changed; while this is the same, nothing has changed."""
        return self._ask(ReadChanges(self._user_id, self._cube))

    def queries(self) -> Any:
        """The last queries of the tenant, the newest first: a list of `NotedQuery`."""
        return self._ask(ReadQueries(self._user_id, self._cube))

    def unread(self, memory_ids: Sequence[str]) -> Any:
        """The ids of those memories that no run has read for facts, in any order."""
        return self._ask(ReadUnread(self._user_id, self._cube, tuple(memory_ids)))

    def index(self, memory_ids: Sequence[str]) -> Any:
        """Bring the index of these memories up to date; the answer is how many needed it."""
        return self._context.ask(IndexItems(self._user_id, self._cube, tuple(memory_ids)))

    def session(self, limit: int, *, message: Message | None = None) -> Any:
        """The last items of the message's session, in all cubes of its user, oldest first."""
        return self._ask(ReadSessionItems(self._context.key_of(message, "ctx.memory.session"), limit))

    def tenants(
        self, after: tuple[str, str] | None = None, limit: int = 100, which: Which | None = None
    ) -> Any:
        """Tenants that have memories, in order, starting after `after`. Only for messages of `_system`.

        With `which`, only those for which there is something to do.
        """
        if which is not None:
            return self._ask(ListSomeTenants(which, after, limit))
        return self._ask(ListTenants(after, limit))

    def cubes(self, changed_for: str | None = None) -> Any:
        """The cubes of the user that have memories, in order.

        With `changed_for`, only those that have changed since upkeep of that label has looked at them.
        """
        return self._ask(ListCubes(self._user_id, self._cube, changed_for))

    def expired(self, rules: dict[str, int], limit: int) -> Any:
        """The ids and versions of items whose time is over, by these rules or by their `expires_at`."""
        return self._ask(ReadExpired(self._user_id, self._cube, rules, limit))

    def counts(self) -> Any:
        """How many living items there are: a list of kind, tier and number."""
        return self._ask(CountItems(self._user_id, self._cube))

    def refresh_index(self) -> Any:
        """Ask the indexer for a pass."""
        return self._context.ask(RefreshIndex(self._user_id, self._cube))

    def ask_for_upkeep(self, kind: Callable[..., Request], *arguments: Any) -> Any:
        """The answer to a request of upkeep; see `Context.upkeep`."""
        return self._ask(kind((self._user_id, self._cube), *arguments))

    def _ask(self, request: Request) -> Any:
        self._context.note_read()
        return self._context.ask(request)


class UpkeepReader:
    """Reads what upkeep of one tenant needs to know. In an async handler each call is awaited."""

    def __init__(self, memory: MemoryReader) -> None:
        self._ask = memory.ask_for_upkeep
        self.items = memory.items
        self.unread = memory.unread

    def changed(self, since: int, after: int, limit: int) -> Any:
        """See `KeepsUpkeep.changed`: a list of `ChangedItem`."""
        return self._ask(ReadChanged, since, after, limit)

    def similar(self, memory_ids: Sequence[str], *, least_cosine: float, least_overlap: float) -> Any:
        """See `KeepsUpkeep.similar`: a list of `Similar`."""
        return self._ask(ReadSimilar, tuple(memory_ids), least_cosine, least_overlap)

    def coldest(self, tier: str, before: int, limit: int) -> Any:
        """See `KeepsUpkeep.coldest`: a list of `MemoryItem`."""
        return self._ask(ReadColdest, tier, before, limit)

    def tier_counts(self) -> Any:
        """See `KeepsUpkeep.tier_counts`: a number for each tier."""
        return self._ask(ReadTierCounts)

    def judged(self, keys: Sequence[str]) -> Any:
        """See `KeepsUpkeep.judged`: a list of keys."""
        return self._ask(ReadJudged, tuple(keys))

    def until(self, label: str) -> Any:
        """See `KeepsUpkeep.upkeep_until`: a moment, or None."""
        return self._ask(ReadUpkeepUntil, label)


class BufferPort:
    """Takes rows of buffers, and gives them back. In an async handler each call is awaited.

    What a handler has read in a buffer, it may read differently after a conflict: all calls count as reads.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def states(self, keys: Sequence[BufferKey]) -> Any:
        """How full buffers are, in the order of the keys: a list of `BufferState`."""
        return self._ask(BufferStates(tuple(keys)))

    def claim(
        self,
        blob_type: str = "chat",
        *,
        max_tokens: int,
        blob_ids: Sequence[str] = (),
        message: Message | None = None,
    ) -> Any:
        """Take the oldest rows of a buffer of the message's tenant: a `BufferClaim`.

        A batch handler names the message. The claim belongs to the message: if the message is delivered
        again, its claim takes the same rows over. The rows are marked done by the effect `BufferDone`. With
        `blob_ids`, only rows with these are taken.
        """
        key = self._context.key_of(message, "ctx.buffers.claim")
        return self._ask(ClaimBuffer(key, blob_type, max_tokens, tuple(blob_ids)))

    def release(self, claim: BufferClaim, failed: str | None = None) -> Any:
        """Give the rows of a claim back; `failed` is the reason if the run has failed on them."""
        return self._ask(ReleaseBuffer(claim.key, claim.token, failed))

    def _ask(self, request: Request) -> Any:
        self._context.note_read()
        return self._context.ask(request)


class ModelPort:
    """Asks models. In an async handler each call is awaited."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def embed(self, texts: Sequence[str]) -> Any:
        """One vector for each text, in the same order."""
        return self._context.ask(Embed(tuple(texts)))

    def count_tokens(self, texts: Sequence[str]) -> Any:
        """The number of tokens of each text, by the embedder's tokenizer."""
        return self._context.ask(CountTokens(tuple(texts)))

    def complete(
        self,
        prompt: str | Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        message: Message | None = None,
    ) -> Any:
        """The answer of the language model, a `Completion`; with a JSON schema, its text is JSON.

        The tenant of the message pays. A batch handler names the message.
        """
        messages = (ChatMessage("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
        key = self._context.key_of(message, "ctx.models.complete")
        return self._context.ask(Complete(messages, key, schema, self._context.timeout_s))

    def set_aside(self, tokens: int, limit: int, *, message: Message | None = None) -> Any:
        """Set tokens aside in the budget of the message's label for this hour; False if it has no room.

        A negative number gives tokens back that were not needed. A batch handler names the message.
        """
        key = self._context.key_of(message, "ctx.models.set_aside")
        return self._context.ask(SetAside(key, tokens, limit))

    def has_language_model(self) -> Any:
        """Whether a language model is set up: True or False."""
        return self._context.ask(HasLanguageModel())
