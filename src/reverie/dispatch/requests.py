"""The requests that a handler may send to its worker, as plain values.

A handler on the event loop or on a thread asks directly. A handler in another process sends the same values
over its connection, and gets the answer there. `Desk` answers all requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from reverie.errors import ReverieError
from reverie.memory.interface import Hit, MemoryItem, SearchQuery
from reverie.message import SYSTEM_USER, Key
from reverie.models.interface import ChatMessage, Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim
    from reverie.memory.interface import Hits, MemoryStore, Tenant
    from reverie.models.interface import Models

__all__ = [
    "Complete",
    "Desk",
    "Embed",
    "ForeignTenantError",
    "ListTenants",
    "LoadMemos",
    "ReadItems",
    "Request",
    "SaveMemo",
    "Search",
]


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

    answer: ClassVar[Any] = list[Hit]
    query: SearchQuery


class ReadItems(msgspec.Struct, frozen=True, tag=True):
    """Read memories of one tenant, by id."""

    answer: ClassVar[Any] = list[MemoryItem]
    user_id: str
    mem_cube_id: str
    memory_ids: tuple[str, ...]


class ListTenants(msgspec.Struct, frozen=True, tag=True):
    """List tenants that have memories, starting after `after`. Only for messages of `_system`."""

    answer: ClassVar[Any] = list[tuple[str, str]]
    after: tuple[str, str] | None
    limit: int


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Ask the embedder for one vector for each text."""

    answer: ClassVar[Any] = list[list[float]]
    texts: tuple[str, ...]


class Complete(msgspec.Struct, frozen=True, tag=True):
    """Ask the language model to answer a prompt."""

    answer: ClassVar[Any] = Completion
    prompt: tuple[ChatMessage, ...]
    schema: dict[str, Any] | None = None


Request = LoadMemos | SaveMemo | Search | ReadItems | ListTenants | Embed | Complete
"""All requests. A new request is added here, and in the table of `Desk`."""


class Desk:
    """Answers the requests of the handlers of one worker."""

    def __init__(self, queue: Queue, store: MemoryStore, models: Models) -> None:
        self._queue = queue
        self._store = store
        self._models = models
        self._answers: dict[type, Callable[[Any, Collection[Claim]], Coroutine[Any, Any, Any]]] = {
            LoadMemos: self._load_memos,
            SaveMemo: self._save_memo,
            Search: self._search,
            ReadItems: self._read_items,
            ListTenants: self._list_tenants,
            Embed: self._embed,
            Complete: self._complete,
        }

    async def ask(self, request: Request, claims: Collection[Claim]) -> Any:
        """The answer to a request of a run that holds these claims."""
        return await self._answers[type(request)](request, claims)

    async def _load_memos(self, request: LoadMemos, claims: Collection[Claim]) -> dict[str, str]:
        return await self._queue.load_memos(_own(claims, request.key))

    async def _save_memo(self, request: SaveMemo, claims: Collection[Claim]) -> bool:
        return await self._queue.save_memo(_own(claims, request.key), request.step, request.value)

    async def _search(self, request: Search, claims: Collection[Claim]) -> Hits:
        for cube in request.query.mem_cube_ids or ("",):
            _check_tenant(claims, request.query.user_id, cube)
        return await self._store.search(request.query)

    async def _read_items(self, request: ReadItems, claims: Collection[Claim]) -> list[MemoryItem]:
        _check_tenant(claims, request.user_id, request.mem_cube_id)
        return await self._store.items((request.user_id, request.mem_cube_id), request.memory_ids)

    async def _list_tenants(self, request: ListTenants, claims: Collection[Claim]) -> list[Tenant]:
        if not claims or any(claim.message.user_id != SYSTEM_USER for claim in claims):
            raise ReverieError(f"only messages of {SYSTEM_USER} may list tenants")
        return await self._store.tenants(request.after, request.limit)

    async def _embed(self, request: Embed, _: Collection[Claim]) -> list[list[float]]:
        return await self._models.embed(request.texts)

    async def _complete(self, request: Complete, _: Collection[Claim]) -> Completion:
        return await self._models.complete(request.prompt, schema=request.schema)


def _own(claims: Collection[Claim], key: Key) -> Claim:
    """The run's claim of a message."""
    for claim in claims:
        if claim.key == key:
            return claim
    raise ReverieError(f"the message {key.item_id!r} of {key.user_id!r} is not one of this run's own")


def _check_tenant(claims: Collection[Claim], user_id: str, cube: str) -> None:
    """Refuse to read memories of a tenant that no claim of the run belongs to."""
    own = {(claim.message.user_id, claim.message.mem_cube_id) for claim in claims}
    if (user_id, cube) not in own:
        raise ForeignTenantError(user_id, cube)
