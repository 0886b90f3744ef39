"""The requests that a handler may send to its worker, as plain values.

A handler on the event loop or on a thread asks directly. A handler in another process sends the same values
over its connection, and gets the answer there. `Desk` answers all requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, get_args
from urllib.parse import quote

import msgspec

from reverie.base.clock import from_epoch_ms
from reverie.dispatch.housekeeping import HouseRequest, ListSomeTenants, answer_house
from reverie.dispatch.options import HandlerOptions
from reverie.dispatch.upkeep import UpkeepRequest, answer_upkeep
from reverie.errors import ReverieError
from reverie.memory.buffers import BufferClaim, BufferKey, BufferState, buffers_of
from reverie.memory.extraction import Extraction, KeepsCubes, merged
from reverie.memory.interface import KeepsIndex, PageQuery
from reverie.memory.item import MemoryItem
from reverie.memory.kept_searches import KeepsSearches
from reverie.memory.queries import KeepsQueries, KeepsUnread, NotedQuery
from reverie.memory.query import Found, SearchQuery
from reverie.memory.sessions import KeepsSessions
from reverie.message import SYSTEM_USER, Key
from reverie.models.interface import ChatMessage, Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim
    from reverie.base.clock import Clock
    from reverie.memory.interface import MemoryStore, Tenant
    from reverie.models.gateway import Gateway
    from reverie.models.interface import Models

__all__ = [
    "BufferStates",
    "ClaimBuffer",
    "Complete",
    "CountTokens",
    "Desk",
    "Embed",
    "ForeignTenantError",
    "HasLanguageModel",
    "IndexItems",
    "ListTenants",
    "LoadMemos",
    "ReadChanges",
    "ReadExtraction",
    "ReadItems",
    "ReadOptions",
    "ReadQueries",
    "ReadSessionItems",
    "ReadTier",
    "ReadUnread",
    "ReleaseBuffer",
    "Request",
    "SaveMemo",
    "Search",
    "SetAside",
]


MOST_READ = 1000
"""How many memories of a tier a handler is given at most."""


class ForeignTenantError(ReverieError):
    """A handler has asked for memories of a tenant that none of its messages belongs to."""

    def __init__(self, user_id: str, mem_cube_id: str) -> None:
        """Name the tenant."""
        self.user_id, self.mem_cube_id = user_id, mem_cube_id
        super().__init__(f"the tenant {user_id}/{mem_cube_id} is not one of this run's own")


class LoadMemos(msgspec.Struct, frozen=True, tag=True):
    """Load the memos of a message, by step."""

    answer: ClassVar[Any] = dict[str, str]
    key: Key


class SaveMemo(msgspec.Struct, frozen=True, tag=True):
    """Save the result of one step as a memo; the answer is False if the claim is lost."""

    answer: ClassVar[Any] = bool
    key: Key
    step: str
    value: str


class Search(msgspec.Struct, frozen=True, tag=True):
    """Find the memories of one tenant that fit best."""

    answer: ClassVar[Any] = Found
    query: SearchQuery


class ReadItems(msgspec.Struct, frozen=True, tag=True):
    """Read memories of one tenant, by id."""

    answer: ClassVar[Any] = list[MemoryItem]
    user_id: str
    mem_cube_id: str
    memory_ids: tuple[str, ...]


class ReadTier(msgspec.Struct, frozen=True, tag=True):
    """Read the memories of one tenant in a tier, at most a thousand."""

    answer: ClassVar[Any] = list[MemoryItem]
    user_id: str
    mem_cube_id: str
    tier: str


class ReadOptions(msgspec.Struct, frozen=True, tag=True):
    """Read the settings that handlers heed, and the time."""

    answer: ClassVar[Any] = HandlerOptions


class ReadExtraction(msgspec.Struct, frozen=True, tag=True):
    """Read what to extract for the cube of one tenant."""

    answer: ClassVar[Any] = Extraction
    user_id: str
    mem_cube_id: str


class ReadChanges(msgspec.Struct, frozen=True, tag=True):
    """Ask how often the memories of one tenant were changed."""

    answer: ClassVar[Any] = int
    user_id: str
    mem_cube_id: str


class ReadQueries(msgspec.Struct, frozen=True, tag=True):
    """Read the last queries of one tenant, the newest first."""

    answer: ClassVar[Any] = list[NotedQuery]
    user_id: str
    mem_cube_id: str


class ReadUnread(msgspec.Struct, frozen=True, tag=True):
    """Ask which memories of one tenant no run has read for facts; the answer are their ids."""

    answer: ClassVar[Any] = list[str]
    user_id: str
    mem_cube_id: str
    memory_ids: tuple[str, ...]


class IndexItems(msgspec.Struct, frozen=True, tag=True):
    """Bring the index of items of one tenant up to date; the answer is how many needed it."""

    answer: ClassVar[Any] = int
    user_id: str
    mem_cube_id: str
    memory_ids: tuple[str, ...]


class ListTenants(msgspec.Struct, frozen=True, tag=True):
    """List tenants that have memories, starting after `after`. Only for messages of `_system`."""

    answer: ClassVar[Any] = list[tuple[str, str]]
    after: tuple[str, str] | None
    limit: int


class BufferStates(msgspec.Struct, frozen=True, tag=True):
    """Ask how full buffers are."""

    answer: ClassVar[Any] = list[BufferState]
    keys: tuple[BufferKey, ...]


class ClaimBuffer(msgspec.Struct, frozen=True, tag=True):
    """Take rows of a buffer for a message, whose tenant has the buffer."""

    answer: ClassVar[Any] = BufferClaim
    key: Key
    blob_type: str
    max_tokens: int
    blob_ids: tuple[str, ...] = ()


class ReleaseBuffer(msgspec.Struct, frozen=True, tag=True):
    """Give rows of a buffer back; `failed` is the reason if the run has failed on them."""

    answer: ClassVar[Any] = None
    buffer: BufferKey
    token: str
    failed: str | None = None


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Ask the embedder for one vector for each text."""

    answer: ClassVar[Any] = list[list[float]]
    texts: tuple[str, ...]


class CountTokens(msgspec.Struct, frozen=True, tag=True):
    """Count the tokens of each text."""

    answer: ClassVar[Any] = list[int]
    texts: tuple[str, ...]


class Complete(msgspec.Struct, frozen=True, tag=True):
    """Ask the language model to answer a prompt."""

    answer: ClassVar[Any] = Completion
    prompt: tuple[ChatMessage, ...]
    key: Key
    """The message whose tenant pays."""
    schema: dict[str, Any] | None = None
    within_s: float = 300.0
    """The seconds that the handler has."""


class HasLanguageModel(msgspec.Struct, frozen=True, tag=True):
    """Ask whether a language model is set up."""

    answer: ClassVar[Any] = bool


class SetAside(msgspec.Struct, frozen=True, tag=True):
    """Set tokens aside in the budget that a label of a user has for the present hour."""

    answer: ClassVar[Any] = bool
    key: Key
    tokens: int
    limit: int


class ReadSessionItems(msgspec.Struct, frozen=True, tag=True):
    """Read the last items of the session of a message, oldest first."""

    answer: ClassVar[Any] = list[MemoryItem]
    key: Key
    limit: int


Request = (
    LoadMemos
    | SaveMemo
    | Search
    | ReadItems
    | ReadTier
    | ReadOptions
    | ReadExtraction
    | ReadChanges
    | ReadQueries
    | ReadUnread
    | IndexItems
    | ListTenants
    | BufferStates
    | ClaimBuffer
    | ReleaseBuffer
    | Embed
    | CountTokens
    | Complete
    | HasLanguageModel
    | SetAside
    | ReadSessionItems
    | HouseRequest
    | UpkeepRequest
)
"""All requests. A new request is added here, and in the table of `Desk`."""


class Desk:
    """Answers the requests of the handlers of one worker."""

    def __init__(
        self,
        *,
        queue: Queue,
        store: MemoryStore,
        models: Models,
        gateway: Gateway,
        clock: Clock,
        options: HandlerOptions,
        extraction_of: Callable[[str], Extraction],
    ) -> None:
        """`extraction_of` tells by the settings what to extract for a cube."""
        self._queue = queue
        self._store = store
        self._models = models
        self._gateway = gateway
        self._clock = clock
        self._options = options
        self._extraction_of = extraction_of
        self._answers: dict[type, Callable[[Any, Collection[Claim]], Coroutine[Any, Any, Any]]] = {
            LoadMemos: self._load_memos,
            SaveMemo: self._save_memo,
            Search: self._search,
            ReadItems: self._read_items,
            ReadTier: self._read_tier,
            ReadOptions: self._read_options,
            ReadExtraction: self._read_extraction,
            ReadChanges: self._read_changes,
            ReadQueries: self._read_queries,
            ReadUnread: self._read_unread,
            IndexItems: self._index_items,
            ListTenants: self._list_tenants,
            BufferStates: self._buffer_states,
            ClaimBuffer: self._claim_buffer,
            ReleaseBuffer: self._release_buffer,
            Embed: self._embed,
            CountTokens: self._count_tokens,
            Complete: self._complete,
            HasLanguageModel: self._has_language_model,
            SetAside: self._set_aside,
            ReadSessionItems: self._session_items,
            **dict.fromkeys(get_args(HouseRequest), self._keep_house),
            **dict.fromkeys(get_args(UpkeepRequest), self._upkeep),
        }

    async def ask(self, request: Request, claims: Collection[Claim]) -> Any:
        """The answer to a request of a run that holds these claims."""
        return await self._answers[type(request)](request, claims)

    async def _load_memos(self, request: LoadMemos, claims: Collection[Claim]) -> dict[str, str]:
        return await self._queue.load_memos(_own(claims, request.key))

    async def _save_memo(self, request: SaveMemo, claims: Collection[Claim]) -> bool:
        return await self._queue.save_memo(_own(claims, request.key), request.step, request.value)

    async def _search(self, request: Search, claims: Collection[Claim]) -> Found:
        for cube in request.query.mem_cube_ids or ("",):
            _check_tenant(claims, request.query.user_id, cube)
        return await self._store.search(request.query)

    async def _read_items(self, request: ReadItems, claims: Collection[Claim]) -> list[MemoryItem]:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        if not request.memory_ids:
            return []
        return await self._store.items((request.user_id, request.mem_cube_id), request.memory_ids)

    async def _read_tier(self, request: ReadTier, claims: Collection[Claim]) -> list[MemoryItem]:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        query = PageQuery(
            user_id=request.user_id, mem_cube_id=request.mem_cube_id, tiers=(request.tier,), limit=MOST_READ
        )
        return (await self._store.page(query)).items

    async def _read_options(self, _: ReadOptions, __: Collection[Claim]) -> HandlerOptions:
        return msgspec.structs.replace(self._options, now=self._clock.now())

    async def _read_extraction(self, request: ReadExtraction, claims: Collection[Claim]) -> Extraction:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        by_settings = self._extraction_of(request.mem_cube_id)
        if not isinstance(self._store, KeepsCubes):
            return by_settings
        tenant = (request.user_id, request.mem_cube_id)
        return merged(by_settings, await self._store.extraction(tenant))

    async def _read_changes(self, request: ReadChanges, claims: Collection[Claim]) -> int:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        if not isinstance(self._store, KeepsSearches):
            return 0
        return await self._store.changes((request.user_id, request.mem_cube_id))

    async def _read_queries(self, request: ReadQueries, claims: Collection[Claim]) -> list[NotedQuery]:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        if not isinstance(self._store, KeepsQueries):
            return []
        return await self._store.queries((request.user_id, request.mem_cube_id))

    async def _read_unread(self, request: ReadUnread, claims: Collection[Claim]) -> list[str]:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        if not isinstance(self._store, KeepsUnread):
            return list(request.memory_ids)
        return await self._store.unread((request.user_id, request.mem_cube_id), request.memory_ids)

    async def _index_items(self, request: IndexItems, claims: Collection[Claim]) -> int:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        if not isinstance(self._store, KeepsIndex):
            return 0
        return await self._store.index_items((request.user_id, request.mem_cube_id), request.memory_ids)

    async def _list_tenants(self, request: ListTenants, claims: Collection[Claim]) -> list[Tenant]:
        _check_system(claims)
        return await self._store.tenants(request.after, request.limit)

    async def _keep_house(self, request: HouseRequest, claims: Collection[Claim]) -> Any:
        if isinstance(request, ListSomeTenants):
            _check_system(claims)
        else:
            _check_tenant(claims, request.user_id, request.mem_cube_id)
        return await answer_house(self._store, request, self._clock.now())

    async def _buffer_states(self, request: BufferStates, claims: Collection[Claim]) -> list[BufferState]:
        for key in request.keys:
            _check_tenant(claims, *key.tenant)
        return await buffers_of(self._store).buffer_states(request.keys)

    async def _claim_buffer(self, request: ClaimBuffer, claims: Collection[Claim]) -> BufferClaim:
        message = _own(claims, request.key).message
        buffers, key = buffers_of(self._store), BufferKey(*message.tenant, request.blob_type)
        if message.requeues:  # somebody wants what has failed to be tried again
            await buffers.retry_failed_rows(key)
        return await buffers.claim_buffer(
            key,
            message.item_id,
            lease_ms=round(self._options.buffer_lease_s * 1000),
            max_tokens=request.max_tokens,
            blob_ids=request.blob_ids,
            most=self._options.buffer_failures,
        )

    async def _release_buffer(self, request: ReleaseBuffer, claims: Collection[Claim]) -> None:
        _check_tenant(claims, *request.buffer.tenant)
        claim = BufferClaim(key=request.buffer, token=request.token)
        most = self._options.buffer_failures
        await buffers_of(self._store).release_buffer(claim, failed=request.failed, most=most)

    async def _embed(self, request: Embed, _: Collection[Claim]) -> list[list[float]]:
        return await self._models.embed(request.texts)

    async def _count_tokens(self, request: CountTokens, _: Collection[Claim]) -> list[int]:
        return await self._models.count_tokens(request.texts)

    async def _complete(self, request: Complete, claims: Collection[Claim]) -> Completion:
        claim = _own(claims, request.key)
        message = claim.message
        # A bad answer of an earlier attempt must not be given again by a provider that knows the key.
        work = (*request.key, str(message.attempts))
        return await self._gateway.complete(
            request.prompt,
            schema=request.schema,
            tenant=(message.user_id, message.mem_cube_id),
            label=message.label,
            key="/".join(quote(part, safe="") for part in work),
            run=claim.claim_id,
            within_s=request.within_s,
        )

    async def _upkeep(self, request: UpkeepRequest, claims: Collection[Claim]) -> Any:
        _check_tenant(claims, *request.tenant)
        return await answer_upkeep(self._store, request)

    async def _has_language_model(self, _: HasLanguageModel, __: Collection[Claim]) -> bool:
        return self._gateway.has_model

    async def _set_aside(self, request: SetAside, claims: Collection[Claim]) -> bool:
        message = _own(claims, request.key).message
        if not isinstance(self._store, KeepsSessions):
            return False
        hour = from_epoch_ms(self._clock.now()).strftime("%Y-%m-%dT%H")
        return await self._store.set_aside(
            message.user_id, message.label, hour, request.tokens, request.limit
        )

    async def _session_items(self, request: ReadSessionItems, claims: Collection[Claim]) -> list[MemoryItem]:
        message = _own(claims, request.key).message
        if not isinstance(self._store, KeepsSessions) or message.session_id is None:
            return []
        return await self._store.session_items(message.user_id, message.session_id, request.limit)


def _own(claims: Collection[Claim], key: Key) -> Claim:
    """The run's claim of a message."""
    for claim in claims:
        if claim.key == key:
            return claim
    raise ReverieError(f"the message {key.item_id!r} of {key.user_id!r} is not one of this run's own")


def _check_system(claims: Collection[Claim]) -> None:
    """Refuse to list tenants for a run that is not the system's own."""
    if not claims or any(claim.message.user_id != SYSTEM_USER for claim in claims):
        raise ReverieError(f"only messages of {SYSTEM_USER} may list tenants")


def _check_tenant(claims: Collection[Claim], user_id: str, cube: str) -> None:
    """Refuse to read memories of a tenant that no claim of the run belongs to."""
    own = {(claim.message.user_id, claim.message.mem_cube_id) for claim in claims}
    if (user_id, cube) not in own:
        raise ForeignTenantError(user_id, cube)
