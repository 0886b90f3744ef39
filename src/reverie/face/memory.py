"""`scheduler.memory`: adds, finds, changes and deletes memories, in an async and a blocking form."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from reverie.base.bridge import Bridge, blocking, submitting
from reverie.base.clock import to_epoch_ms
from reverie.capture.intake import add_message
from reverie.effect import Delete, Move, Revise, check_effect
from reverie.errors import (
    AmbiguousIdError,
    InvalidMessageError,
    InvalidSelectionError,
    MemoryDeletedError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.face.unwritten import unwritten_item
from reverie.memory.interface import KeepsIndex, PageQuery
from reverie.memory.query import Filters, SearchQuery
from reverie.memory.tenants import tenants_of
from reverie.memory.transfer import LATEST
from reverie.message import Message, check_ids, check_info, check_text, new_item_id
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Submitted
    from reverie.effect import Effect
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.interface import IndexProgress, MemoryPage
    from reverie.memory.item import LinkedItem, MemoryItem, Revision
    from reverie.memory.query import Found
    from reverie.turn import Turn

__all__ = ["AsyncMemory", "Memory"]

MOST_HITS = 1000
"""The most hits of one search."""
LONGEST_NOTE = 8000
"""How many characters of a query its note has."""
DIVERSITIES = ("mmr", "sim", "no")
MOST_USERS = 1000
"""Among how many users an id without a user is looked for."""
TRIES = 5
"""How often a change of a memory is tried that others change at the same time."""


class AsyncMemory:
    """Adds, finds, changes and deletes memories, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler
        self.default_cube: str | None = None
        """The cube that `add` and `search` use where none is named; None: the user's own, and all."""

    async def add(
        self,
        text: str | Sequence[Turn],
        *,
        user_id: str,
        mem_cube_id: str = "",
        item_id: str | None = None,
        session_id: str | None = None,
        task_id: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Submitted:
        """Submit something to remember. When this returns, it is kept; soon after, a search finds it.

        Turn `i` becomes the memory with the id `{item_id}.{i}`. Of `info`, `device_id`, `agent_id`, `domain`
        and `custom_tags` (a list) become fields of the memories.
        """
        message = add_message(
            text,
            user_id=user_id,
            mem_cube_id=mem_cube_id or self.default_cube or "",
            item_id=item_id or new_item_id(),
            session_id=session_id,
            task_id=task_id,
            info=info,
        )
        return (await self._scheduler.submit_messages([message]))[0]

    async def search(
        self,
        query: str,
        *,
        user_id: str,
        mem_cube_ids: Sequence[str] = (),
        limit: int = 10,
        session_id: str | None = None,
        kinds: Sequence[str] = (),
        without_kinds: Sequence[str] = (),
        tags: Sequence[str] = (),
        tiers: Sequence[str] = (),
        device_id: str | None = None,
        agent_id: str | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        as_of: datetime | int | None = None,
        reference_time: datetime | int | None = None,
        threshold: float | None = None,
        max_tokens: int | None = None,
        diversity: Literal["mmr", "sim", "no"] = "mmr",
        rerank: bool = True,
        preferences: int = 0,
        neighbours: int = 0,
        hops: int = 0,
        explain: bool = False,
        note: bool = True,
    ) -> Found:
        """Find the memories of a user that match a query best, best first.

        `kinds`, `without_kinds`, `tags`, `tiers`, `device_id`, `agent_id`, `since`, `until` and `as_of` are
        strict: what does not fit is not found. `session_id` only raises the present conversation. Times are
        datetimes or epoch milliseconds. Nothing is dropped for its score unless there is a `threshold`; 0.45
        is a fair one. Of a query with very many words the rarest are searched for; `words_left_out` of the
        answer counts the others. `degraded` of the answer says why it may be incomplete. `ReadTimeoutError`
        if the search takes longer than `memory.search_timeout_s`. docs/search.md explains all options.

        With `note`, a running scheduler is told of the query by a `query` message: it counts accesses, and
        working memory follows the last queries. The queries of a caller who may only read are not noted.
        """
        runtime = self._scheduler.runtime
        check_ids(runtime.limits, user_id=user_id, session_id=session_id)
        if not mem_cube_ids and self.default_cube is not None:
            mem_cube_ids = (self.default_cube,)
        for cube in mem_cube_ids:
            check_ids(runtime.limits, mem_cube_id=cube)
        if len(query) > runtime.limits.max_content_bytes:
            allowed = runtime.limits.max_content_bytes
            raise InvalidMessageError(
                "query", query, f"may have at most {allowed} characters (limits.max_content_bytes)"
            )
        asked = SearchQuery(
            text=query,
            user_id=user_id,
            mem_cube_ids=tuple(mem_cube_ids),
            limit=limit,
            filters=Filters(
                kinds=_texts("kinds", kinds),
                without_kinds=_texts("without_kinds", without_kinds),
                tags=_texts("tags", tags),
                tiers=_texts("tiers", tiers),
                device_id=_text("device_id", device_id),
                agent_id=_text("agent_id", agent_id),
                since=_epoch("since", since),
                until=_epoch("until", until),
                as_of=_epoch("as_of", as_of),
            ),
            session_id=session_id,
            reference_time=_epoch("reference_time", reference_time),
            threshold=threshold,
            max_tokens=max_tokens,
            diversity=diversity,
            rerank=rerank,
            preferences=preferences,
            neighbours=neighbours,
            hops=hops,
            explain=explain,
        )
        _check_query(asked)
        if not runtime.opened:
            await runtime.open()
        found = await runtime.reads.search(asked)
        if note:
            self.note_query(query, found, user_id=user_id, mem_cube_ids=mem_cube_ids, session_id=session_id)
        return found

    def note_query(
        self,
        query: str,
        found: Found,
        *,
        user_id: str,
        mem_cube_ids: Sequence[str] = (),
        session_id: str | None = None,
    ) -> None:
        """Tell a running scheduler of a query and what was found for it, soon and if the queue has room.

        There is one `query` message for each cube in which something was found. If nothing was, there is one
        for the first cube that was searched. The queries of a caller who may only read are not noted.
        """
        if current_principal.get().role <= Role.READ_ONLY:
            return
        by_cube: dict[str, list[str]] = {}
        for hit in (*found.hits, *found.preferences):
            by_cube.setdefault(hit.item.mem_cube_id, []).append(hit.item.id)
        if not by_cube:
            by_cube[mem_cube_ids[0] if mem_cube_ids else user_id] = []
        if self._scheduler.runtime.started:
            self._scheduler.runtime.query_notes.note(
                [
                    Message(
                        user_id=user_id,
                        mem_cube_id=cube,
                        label="query",
                        session_id=session_id,
                        content=msgspec.json.encode({"query": query[:LONGEST_NOTE], "found": ids}).decode(),
                    )
                    for cube, ids in by_cube.items()
                ]
            )

    async def get(self, memory_id: str, *, user_id: str, follow: bool = True) -> MemoryItem | None:
        """Read one memory of a user; None if it is unknown.

        The id of a superseded memory leads to its successor, unless `follow` is false. The id of a message
        that was accepted and is not settled yet leads to what the message says, with the status `resolving`.
        `MemoryDeletedError` if the memory, or the one that it leads to, was deleted.
        """
        check_ids(self._scheduler.runtime.limits, user_id=user_id, memory_id=memory_id)
        await self._scheduler.open()
        reads = self._scheduler.runtime.reads
        item = await self._written(user_id, memory_id, follow=follow)
        if item is None:
            waiting = await unwritten_item(self._scheduler.runtime.backend.views, user_id, memory_id)
            if waiting is not None:
                return waiting if reads.sees(waiting) else None
            item = await self._written(user_id, memory_id, follow=follow)  # its message may have been settled
        return item

    async def _written(self, user_id: str, memory_id: str, *, follow: bool) -> MemoryItem | None:
        """A memory of the store, or the one that its id leads to; `MemoryDeletedError` if it was deleted."""
        reads = self._scheduler.runtime.reads
        item = await reads.get(user_id, memory_id)
        seen = {memory_id}
        while (
            follow and item is not None and item.superseded_by is not None and item.superseded_by not in seen
        ):
            memory_id = item.superseded_by
            seen.add(memory_id)
            item = await reads.get(user_id, memory_id)
        if item is None and await reads.is_deleted(user_id, memory_id):
            raise MemoryDeletedError(memory_id)
        return item

    async def owner_of(self, memory_id: str, user_id: str | None = None) -> str:
        """The user that an id belongs to: the one that is given, else the one of the caller's who has it.

        `UnknownMemoryError` if none has it, `AmbiguousIdError` if several have.
        """
        principal = current_principal.get()
        if user_id is not None:
            principal.check_touch(user_id)
            return user_id
        users = sorted(principal.users) if principal.users is not None else await self._all_users(memory_id)
        owners = [user for user in users if await self._has(memory_id, user)]
        if len(owners) > 1:
            raise AmbiguousIdError(memory_id)
        if not owners:
            raise UnknownMemoryError(memory_id)
        return owners[0]

    async def _all_users(self, memory_id: str) -> list[str]:
        """All users who may have an id: those with memories, and those who have just submitted its message.

        An error if these are too many to look at each.
        """
        await self._scheduler.open()
        item_id = memory_id.rpartition(".")[0]
        users = dict.fromkeys(self._scheduler.runtime.intake.recent_users(item_id))
        async for user_id, _ in tenants_of(self._scheduler.runtime.reads):
            users[user_id] = None
            if len(users) > MOST_USERS:
                raise InvalidSelectionError(
                    f"there are more than {MOST_USERS} users: say whose, with user_id"
                )
        return list(users)

    async def _has(self, memory_id: str, user_id: str) -> bool:
        try:
            return await self.get(memory_id, user_id=user_id, follow=False) is not None
        except MemoryDeletedError:
            return True

    async def update(
        self,
        memory_id: str,
        *,
        user_id: str,
        text: str | None = None,
        kind: str | None = None,
        title: str | None = None,
        tags: Sequence[str] | None = None,
        info: dict[str, Any] | None = None,
        importance: float | None = None,
        valid_from: datetime | int | None = None,
        valid_to: datetime | int | None = None,
        version: int | None = None,
    ) -> MemoryItem:
        """Change a memory in place; fields that are None stay as they are. It holds when this returns.

        What it was stays in its history. With `version`, `VersionConflictError` if the memory has another
        version by now; `UnknownMemoryError` or `MemoryDeletedError` if there is none.
        """
        if text is not None and not text.strip():
            raise InvalidMessageError("text", text, "has nothing to remember: use delete to remove a memory")
        if importance is not None and not 0 <= importance <= 1:
            raise InvalidMessageError("importance", importance, "must be from 0 to 1")
        limits = self._scheduler.runtime.limits
        for name, given in (("text", text), ("title", title)):
            if given is not None:
                check_text(name, given, limits)
        if info is not None:
            check_info(info, limits)
        own_tags = None if tags is None else _texts("tags", tags)
        held = _epoch("valid_from", valid_from), _epoch("valid_to", valid_to)

        def change(item: MemoryItem) -> Effect:
            return Revise(
                memory_id=item.id,
                version=item.version if version is None else version,
                text=text,
                kind=kind,
                title=title,
                tags=own_tags,
                info=info,
                importance=importance,
                valid_from=held[0],
                valid_to=held[1],
            )

        item = await self._change(user_id, memory_id, change, once=version is not None)
        changed = await self._scheduler.runtime.reads.get(user_id, item.id)
        return item if changed is None else changed

    async def move(self, memory_id: str, tier: str, *, user_id: str) -> MemoryItem:
        """Move a memory to another tier, such as `archive`. It holds when this returns."""
        item = await self._change(
            user_id, memory_id, lambda item: Move(memory_id=item.id, version=item.version, tier=tier)
        )
        moved = await self._scheduler.runtime.reads.get(user_id, item.id)
        return item if moved is None else moved

    async def delete(self, memory_id: str, *, user_id: str) -> None:
        """Delete a memory: its text leaves the file, and its id is never used again.

        Memories that were merged into it or from it, or derived from nothing else, are deleted, too.
        Deleting a deleted memory does nothing; `UnknownMemoryError` if the id was never used.
        """
        try:
            await self._change(
                user_id,
                memory_id,
                lambda item: Delete(memory_id=item.id, version=item.version, with_members=True),
                follow=False,
            )
        except MemoryDeletedError:
            return

    async def _change(
        self,
        user_id: str,
        memory_id: str,
        effect_of: Callable[[MemoryItem], Effect],
        *,
        follow: bool = True,
        once: bool = False,
    ) -> MemoryItem:
        """Apply one effect to a memory as it is now; again, unless `once`, if others change it meanwhile."""
        runtime = self._scheduler.runtime
        for attempt in range(TRIES):
            item = await self.get(memory_id, user_id=user_id, follow=follow)
            if item is None:
                raise UnknownMemoryError(memory_id)
            effect = effect_of(item)
            if item.status == "resolving" and not isinstance(effect, Delete):
                raise InvalidSelectionError(f"the memory {memory_id!r} is not written yet: try again soon")
            check_effect(effect, runtime.limits)
            if not attempt:  # before the change: no change may be missing in the log
                action = "memory.delete" if isinstance(effect, Delete) else "memory.update"
                await runtime.audit.note(action, [item.id], user_id)
            tenant = (user_id, item.mem_cube_id)
            notices = await runtime.notices.intend(tenant, effect)
            try:
                await runtime.store.change(tenant, [effect])
            except VersionConflictError:
                await runtime.notices.withdraw(notices)
                if once or attempt == TRIES - 1:
                    raise
            else:
                return item
        raise AssertionError("the last try returns or raises")

    async def history(self, memory_id: str, *, user_id: str) -> list[Revision]:
        """A memory as it was before each of its changes, oldest first."""
        await self.get(memory_id, user_id=user_id, follow=False)
        return await self._scheduler.runtime.reads.history(user_id, memory_id)

    async def links(self, memory_id: str, *, user_id: str) -> list[LinkedItem]:
        """The memories that a memory is linked to, in both directions."""
        await self.get(memory_id, user_id=user_id, follow=False)
        return await self._scheduler.runtime.reads.links(user_id, memory_id)

    async def page(
        self,
        *,
        user_id: str,
        mem_cube_id: str | None = None,
        kinds: Sequence[str] = (),
        tiers: Sequence[str] = (),
        session_id: str | None = None,
        with_superseded: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> MemoryPage:
        """One page of a user's memories, in the order in which they were learned.

        `after` is the `next` of the page before. Superseded memories are left out unless asked for.
        """
        check_ids(self._scheduler.runtime.limits, user_id=user_id)
        if not 1 <= limit <= MOST_HITS:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_HITS}")
        await self._scheduler.open()
        return await self._scheduler.runtime.reads.page(
            PageQuery(
                user_id=user_id,
                mem_cube_id=mem_cube_id,
                kinds=_texts("kinds", kinds),
                tiers=_texts("tiers", tiers),
                session_id=session_id,
                with_superseded=with_superseded,
                newest_first=newest_first,
                after=after,
                limit=limit,
            )
        )

    async def indexed(
        self, on_progress: Callable[[IndexProgress], None] = lambda _: None
    ) -> IndexProgress | None:
        """Wait until everything is indexed, and help with it.

        `left` of the answer has to wait for the embedder. None if the store keeps no index of its own.
        """
        await self._scheduler.open()
        runtime = self._scheduler.runtime
        if not isinstance(runtime.store, KeepsIndex):
            return None
        return await runtime.indexer.run(on_progress)


class Memory:
    """Like `AsyncMemory`, for code that blocks."""

    def __init__(self, inner: AsyncMemory, bridge: Bridge, direct: Callable[[], AsyncMemory | None]) -> None:
        self._inner = inner
        self._bridge = bridge
        self._direct = direct

    add = submitting(AsyncMemory.add)
    search = blocking(AsyncMemory.search)
    get = blocking(AsyncMemory.get)
    owner_of = blocking(AsyncMemory.owner_of)
    update = blocking(AsyncMemory.update)
    move = blocking(AsyncMemory.move)
    delete = blocking(AsyncMemory.delete)
    history = blocking(AsyncMemory.history)
    links = blocking(AsyncMemory.links)
    page = blocking(AsyncMemory.page)
    indexed = blocking(AsyncMemory.indexed)


def _check_query(query: SearchQuery) -> None:
    """Refuse numbers and words of a query that mean nothing."""
    for name, least, most in (
        ("limit", 1, MOST_HITS),
        ("preferences", 0, MOST_HITS),
        ("neighbours", 0, 100),
        ("hops", 0, 5),
        ("threshold", 0, 1),
    ):
        number = getattr(query, name)
        if number is not None and not least <= number <= most:
            raise InvalidSelectionError(f"{name}={number}: must be {least} to {most}")
    if query.max_tokens is not None and query.max_tokens < 1:
        raise InvalidSelectionError(f"max_tokens={query.max_tokens}: must be 1 or more")
    if query.diversity not in DIVERSITIES:
        raise InvalidSelectionError(f"diversity={query.diversity!r}: must be one of {', '.join(DIVERSITIES)}")


def _epoch(name: str, moment: datetime | int | None) -> int | None:
    """A moment in epoch milliseconds; one without a zone is UTC."""
    found: object = to_epoch_ms(moment) if isinstance(moment, datetime) else moment
    if found is None or (type(found) is int and abs(found) <= LATEST):
        return found
    raise InvalidSelectionError(f"{name}={moment!r}: must be a datetime, or milliseconds since 1970")


def _texts(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """The texts of a list. A text alone is refused, because its letters would be taken for the list."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidSelectionError(f"{name}={values!r}: must be a list of texts")
    return tuple(_text(name, value) or "" for value in values)


def _text(name: str, value: str | None) -> str | None:
    try:
        return value if value is None else value.encode().decode()
    except UnicodeEncodeError as error:
        raise InvalidSelectionError(f"{name}={value!r}: is not valid Unicode text") from error
