"""The memory store on SQLite: items, their index, and the inbox."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.base.threads import ThreadPool
from reverie.effect import Remember, Revise
from reverie.errors import ReverieError
from reverie.memory.finding import finish_search, understand
from reverie.memory.interface import Applied, IndexProgress, MemoryPage
from reverie.memory.item import LinkedItem, Revision
from reverie.memory.prepare import Indexable, Prepared, TextEmbedder
from reverie.memory.query import Found
from reverie.memory.search import Search
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import conversation, indexing, searches
from reverie.memory.sqlite.buffers import Buffers
from reverie.memory.sqlite.effects import EffectWriter
from reverie.memory.sqlite.housekeeping import Housekeeping
from reverie.memory.sqlite.inbox import Inbox
from reverie.memory.sqlite.index import Makers
from reverie.memory.sqlite.ledger import SqliteLedger
from reverie.memory.sqlite.rows import item_of, load_statements, to_json
from reverie.memory.sqlite.search import SqliteIndexReader
from reverie.memory.sqlite.sessions import SqliteSessions
from reverie.memory.sqlite.upkeep import SqliteUpkeep
from reverie.message import Message
from reverie.models.interface import Models
from reverie.storage.sqlite import ReadLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import apsw

    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.base.clock import Clock
    from reverie.effect import Effect
    from reverie.memory.buffers import BufferClaim, BufferKey, BufferRow, BufferState
    from reverie.memory.extraction import Extraction
    from reverie.memory.interface import Application, ForgetTurn, InboxEntry, PageQuery, Tenant
    from reverie.memory.item import MemoryItem
    from reverie.memory.kept_searches import KeptHits
    from reverie.memory.queries import NotedQuery
    from reverie.memory.query import SearchQuery
    from reverie.memory.search import Understood
    from reverie.message import Lane
    from reverie.storage.sqlite import Database

__all__ = ["SqliteMemoryStore"]

log = get_logger(__name__)

SQL = load_statements("store.sql")
ANY_CUBE = "(:project_id IS NULL OR i.project_id = :project_id)"
PREPARERS = 2
"""How many threads prepare effects."""
EMBEDDING_SHARE = 0.4
"""The share of `memory.search_timeout_s` that the vector of a query may take."""
LAST = 2**62
BEHIND = "the index is being brought up to date: not all memories are found by all signals"


class SqliteMemoryStore:
    """See `reverie.memory.interface.MemoryStore`."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        settings: MemorySettings | None = None,
        models: Models | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings or MemorySettings()
        self._models = models or Models()
        self._embedder = TextEmbedder(self._models)
        self._preparers = ThreadPool(PREPARERS, "reverie-prepare")
        self._inbox = Inbox(self._settings.inbox_retention_s)
        self._buffers = Buffers(database, clock)
        ledger = SqliteLedger(database)
        self.write_spent, self.spent_on, self.usage = ledger.write_spent, ledger.spent_on, ledger.usage
        """See `reverie.models.usage.Ledger`."""
        house = Housekeeping(database)
        self.expired, self.some_tenants, self.cubes = house.expired, house.some_tenants, house.cubes
        self.counts, self.counted = house.counts, house.counted
        self.counted_together = house.counted_together
        """See `reverie.memory.housekeeping.KeepsHouse`."""
        upkeep = SqliteUpkeep(database, lambda: self._makers.embedder)
        self.changed, self.similar, self.coldest = upkeep.changed, upkeep.similar, upkeep.coldest
        self.tier_counts, self.judged, self.passes = upkeep.tier_counts, upkeep.judged, upkeep.passes
        self.upkeep_until = upkeep.upkeep_until
        self.count_fresh, self.grown = upkeep.count_fresh, upkeep.grown
        """See `reverie.memory.upkeep.KeepsUpkeep`."""
        sessions = SqliteSessions(database)
        self.note_sessions, self.session, self.sessions = sessions.note, sessions.session, sessions.page
        self.time_out_sessions, self.slow_ends = sessions.time_out, sessions.slow_ends
        self.forget_session, self.project_cube = sessions.forget, sessions.project_cube
        self.known_project, self.project_keys = sessions.known_project, sessions.project_keys
        self.session_items, self.set_aside = sessions.items, sessions.set_aside
        """See `reverie.memory.sessions.KeepsSessions`."""
        self._makers = Makers(0, None)
        self._has_old_index = False
        self.forget_turn: ForgetTurn | None = None
        """See `SharesDatabase.forget_turn`."""
        self._writer = self._new_writer()
        self._holder = secrets.token_hex(8)
        self._holds_work = False
        self._late: set[int] = set()
        """Items whose vectors the embedder has not given yet."""
        self.on_unindexed: Callable[[], None] = lambda: None
        """Called, on any thread, when an item is left to the indexer."""

    async def open(self) -> None:
        """See `MemoryStore.open`."""
        self._database.open()
        self._database.migrate("memory", "reverie.memory.sqlite")
        await self._database.write(self._begin, urgent=True)
        self._writer = self._new_writer()

    async def close(self) -> None:
        """See `MemoryStore.close`."""
        with suppress(ReverieError):  # the file may be damaged, and the lease ends by itself
            await self._leave_work()
        self._preparers.close()
        self._database.close()

    def _begin(self, connection: apsw.Connection) -> None:
        self._makers = Makers.known(connection, self._models.embedder_name)
        indexing.begin(connection, self._makers)
        indexing.finish(connection)  # in a new file the old index is empty
        self._has_old_index = indexing.has_old_index(connection)

    def _new_writer(self) -> EffectWriter:
        limits = {"working": self._settings.working_limit, "long_term": self._settings.long_term_limit}
        return EffectWriter(
            self._makers,
            limits,
            on_unindexed=lambda: self.on_unindexed(),  # noqa: PLW0108  it is set later
            forget_turn=self.forget_turn,
        )

    # -- effects ----------------------------------------------------------------------------------------

    def effects_within(self, database: Database) -> ApplyEffects | None:
        """See `SharesDatabase.effects_within`."""
        return self._write_effects if database is self._database else None

    def _write_effects(
        self,
        connection: apsw.Connection,
        messages: Sequence[tuple[Message, Sequence[Effect], Any]],
        now: int,
    ) -> None:
        self._writer.write(connection, messages, now)

    async def prepare(self, effects: Sequence[Effect]) -> Prepared:
        """See `EffectStore.prepare`: the words and vectors of new items."""
        texts = [Indexable.of(effect) for effect in effects if isinstance(effect, Remember)]
        return await self._prepare(texts)

    async def _prepare(self, texts: Sequence[Indexable]) -> Prepared:
        if not texts:
            return Prepared()
        words = asyncio.wrap_future(self._preparers.submit(partial(Prepared.words_of, texts)))
        vectors = await self._embedder.embed([text.for_vector for text in texts])
        return Prepared(await words, vectors, self._models.embedder_name)

    async def apply(self, batch: Sequence[Application]) -> list[Applied]:
        """See `EffectStore.apply`."""

        def job(connection: apsw.Connection) -> list[Applied]:
            answers: list[Applied] = []
            stopped: set[Lane] = set()
            for application in batch:
                message = application.message
                if message.lane in stopped:
                    answers.append(Applied(key=message.key, state="conflict"))
                    continue
                now = self._clock.now()
                effects = (message, application.effects, application.prepared)
                write = partial(self._writer.write, connection, [effects], now)
                answers.append(self._inbox.apply(connection, application, write, now))
                if answers[-1].state == "conflict":
                    stopped.add(message.lane)
            return answers

        return await self._database.write(job)

    async def change(self, tenant: Tenant, effects: Sequence[Effect]) -> None:
        """See `MemoryStore.change`."""
        message = Message(user_id=tenant[0], mem_cube_id=tenant[1], label="change")
        revised = {effect.memory_id: effect for effect in effects if isinstance(effect, Revise)}
        texts = [Indexable.of(effect) for effect in effects if isinstance(effect, Remember)]
        if revised:
            texts += [
                Indexable.after(item, revised[item.id]) for item in await self.items(tenant, list(revised))
            ]
        prepared = await self._prepare(texts)

        def job(connection: apsw.Connection) -> None:
            self._writer.write(connection, [(message, effects, prepared)], self._clock.now())
            failpoint("inside_change")

        await self._database.write(job)

    async def old_entries(self, limit: int) -> list[InboxEntry]:
        """See `KeepsInbox.old_entries`."""
        return await self._database.read(
            lambda connection: self._inbox.old_entries(connection, self._clock.now(), limit)
        )

    async def prune_inbox(self, gone: Sequence[InboxEntry], needed: Mapping[InboxEntry, int]) -> None:
        """See `KeepsInbox.prune_inbox`."""
        now = self._clock.now()
        await self._database.write(
            lambda connection: self._inbox.prune(connection, gone, needed, now), durable=False
        )

    # -- reading ----------------------------------------------------------------------------------------

    async def search(self, query: SearchQuery) -> Found:
        """See `MemoryStore.search`."""
        limit = ReadLimit(self._settings.search_timeout_s, "memory.search_timeout_s")

        kinds = () if query.preferences or query.explain else query.filters.kinds

        def names(connection: apsw.Connection) -> list[str] | None:
            """The speakers whom the query may name; None if there is nothing of the wanted kinds."""
            reader = self._reader(connection)
            if (
                kinds
                and not reader.has_kinds(query.user_id, query.mem_cube_ids, kinds)
                and indexing.read_state(connection).is_complete(self._makers)
            ):
                return None
            return reader.names(query.user_id, query.mem_cube_ids)

        def job(connection: apsw.Connection, asked: Understood) -> tuple[Found, bool]:
            with connection:  # one transaction: no change shows half of itself
                state = indexing.read_state(connection)
                if not state.is_complete(self._makers):
                    asked = asked._replace(degraded=(*asked.degraded, BEHIND))
                reader = self._reader(connection, has_old_index=state.has_old_index)
                search = Search(reader, asked, self._settings)
                found = search.run()
            return found, search.vectors_are_damaged

        known = await self._database.read(names, limit, purpose="search")
        if known is None:
            return Found()
        within_s = self._settings.search_timeout_s * EMBEDDING_SHARE
        asked = await understand(query, self._models, known, self._clock.now(), within_s=within_s)
        found, is_damaged = await self._database.read(partial(job, asked=asked), limit, purpose="search")
        if is_damaged:
            log.warning("memory.vectors_damaged", reasons=found.degraded)
            await self.rebuild()
        return await finish_search(query, found, self._models)

    def _reader(self, connection: apsw.Connection, *, has_old_index: bool = False) -> SqliteIndexReader:
        return SqliteIndexReader(connection, self._makers.embedder, has_old_index=has_old_index)

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        rows = await self._rows("get", user_id=user_id, id=memory_id)
        return item_of(rows[0]) if rows else None

    async def is_deleted(self, user_id: str, memory_id: str) -> bool:
        """See `MemoryStore.is_deleted`."""
        return bool((await self._rows("is_deleted", user_id=user_id, id=memory_id))[0][0])

    async def items(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[MemoryItem]:
        """See `MemoryStore.items`."""
        user_id, cube = tenant
        rows = await self._rows("items", user_id=user_id, project_id=cube, ids=to_json(list(memory_ids)))
        return [item_of(row) for row in rows]

    async def page(self, query: PageQuery) -> MemoryPage:
        """See `MemoryStore.page`."""
        statement = SQL["page"]
        if query.mem_cube_id is not None:
            statement = statement.replace(ANY_CUBE, "i.project_id = :project_id")
        created_at, seq = query.place or (-LAST, -LAST)
        if query.newest_first:
            statement = statement.replace(") > (", ") < (")
            statement = statement.replace(
                "created_at_epoch, i.seq LIMIT", "created_at_epoch DESC, i.seq DESC LIMIT"
            )
            created_at, seq = query.place or (LAST, LAST)
        bindings = {
            "user_id": query.user_id,
            "project_id": query.mem_cube_id,
            "created_at": created_at,
            "seq": seq,
            "kinds": to_json(query.kinds) if query.kinds else None,
            "tiers": to_json(query.tiers) if query.tiers else None,
            "session_id": query.session_id,
            "with_superseded": query.with_superseded,
            "limit": query.limit + 1,
        }
        rows = await self._database.read(
            lambda connection: connection.execute(statement, bindings).fetchall()
        )
        items = [(seq, item_of(tuple(row))) for seq, *row in rows[: query.limit]]
        last = items[-1] if len(rows) > query.limit else None
        return MemoryPage(
            items=[item for _, item in items],
            next=None if last is None else f"{last[1].created_at}-{last[0]}",
        )

    async def links(self, user_id: str, memory_id: str) -> list[LinkedItem]:
        """See `MemoryStore.links`."""
        rows = await self._rows("links", user_id=user_id, id=memory_id)
        return [
            LinkedItem(relation=relation, outgoing=bool(outgoing), item=item_of(tuple(row)))
            for relation, outgoing, *row in rows
        ]

    async def history(self, user_id: str, memory_id: str) -> list[Revision]:
        """See `MemoryStore.history`."""
        rows = await self._rows("history", user_id=user_id, id=memory_id)
        return [
            Revision(version=version, text=text, kind=kind, tier=tier, change=change, changed_at=changed_at)
            for version, text, kind, tier, change, changed_at in rows
        ]

    async def neighbours(self, item: MemoryItem, reach: int) -> list[MemoryItem]:
        """See `MemoryStore.neighbours`."""
        return await self._database.read(lambda connection: self._reader(connection).around(item, reach))

    async def tenants(self, after: Tenant | None, limit: int) -> list[Tenant]:
        """See `MemoryStore.tenants`."""
        user_id, cube = after or ("", "")
        rows = await self._rows("tenants", user_id=user_id, project_id=cube, limit=limit)
        return [(row[0], row[1]) for row in rows]

    async def queries(self, tenant: Tenant) -> list[NotedQuery]:
        """See `KeepsQueries.queries`."""
        return await self._database.read(lambda connection: conversation.read_queries(connection, tenant))

    async def changes(self, tenant: Tenant) -> int:
        """See `KeepsSearches.changes`."""
        return await self._database.read(lambda connection: searches.read_changes(connection, tenant))

    async def kept_searches(
        self, user_id: str, mem_cube_ids: Sequence[str], query: str
    ) -> dict[str, KeptHits]:
        """See `KeepsSearches.kept_searches`."""
        return await self._database.read(
            lambda connection: searches.read_kept(connection, user_id, mem_cube_ids, query), purpose="search"
        )

    async def extraction(self, tenant: Tenant) -> Extraction:
        """See `KeepsCubes.extraction`."""
        return await self._database.read(lambda connection: conversation.read_extraction(connection, tenant))

    async def set_extraction(self, tenant: Tenant, extraction: Extraction) -> None:
        """See `KeepsCubes.set_extraction`."""
        await self._database.write(
            lambda connection: conversation.write_extraction(connection, tenant, extraction)
        )

    async def unread_turns(self, tenant: Tenant, after: int, limit: int) -> list[tuple[int, str, str]]:
        """See `KeepsUnread.unread_turns`."""
        return await self._database.read(
            lambda connection: conversation.read_unread_turns(connection, tenant, after, limit)
        )

    async def unread(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[str]:
        """See `KeepsUnread.unread`."""
        return await self._database.read(
            lambda connection: conversation.read_unread(connection, tenant, memory_ids)
        )

    async def _rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall()
        )

    # -- the index --------------------------------------------------------------------------------------

    async def index_progress(self) -> IndexProgress:
        """See `KeepsIndex.index_progress`."""
        return await self._database.read(lambda connection: indexing.progress(connection, self._makers))

    async def index_next(self, limit: int) -> int | None:
        """See `KeepsIndex.index_next`."""
        batch = await self._database.read(
            lambda connection: indexing.next_batch(connection, self._makers, limit, self._late)
        )
        if batch is None:
            await self._leave_work()
            if not self._has_old_index:
                return 0
            removed = await self._database.write(indexing.finish, durable=False)
            self._has_old_index = await self._database.read(indexing.has_old_index)
            return 1 if removed else 0
        now = self._clock.now()
        if not await self._database.write(
            lambda connection: indexing.take_work(connection, self._holder, now), durable=False
        ):
            return None
        self._holds_work = True
        prepared = await self._prepare(batch.texts)
        late = await self._database.write(
            lambda connection: indexing.write_batch(connection, self._makers, batch, prepared)
        )
        self._late = self._late | late if late else self._late
        return (
            max(1, len(batch.rows) - len(late)) if batch.cursor is not None else len(batch.rows) - len(late)
        )

    async def index_items(self, tenant: Tenant, memory_ids: Sequence[str]) -> int:
        """See `KeepsIndex.index_items`."""
        batch = await self._database.read(
            lambda connection: indexing.named_batch(connection, self._makers, tenant, memory_ids)
        )
        if batch.rows:
            prepared = await self._prepare(batch.texts)
            await self._database.write(
                lambda connection: indexing.write_batch(connection, self._makers, batch, prepared)
            )
        return len(batch.rows)

    async def _leave_work(self) -> None:
        if self._holds_work:
            self._holds_work = False
            await self._database.write(
                lambda connection: indexing.leave_work(connection, self._holder), durable=False
            )

    def try_late_again(self) -> None:
        """See `KeepsIndex.try_late_again`."""
        self._late = set()

    async def rebuild(self) -> None:
        """See `KeepsIndex.rebuild`."""
        await self._database.write(indexing.ask_for_rebuild)
        self.on_unindexed()

    # -- the buffer zone --------------------------------------------------------------------------------

    async def buffer_states(self, keys: Sequence[BufferKey]) -> list[BufferState]:
        """See `KeepsBuffers.buffer_states`."""
        return await self._buffers.states(keys)

    async def claim_buffer(
        self,
        key: BufferKey,
        holder: str,
        *,
        lease_ms: int,
        max_tokens: int,
        blob_ids: Sequence[str] = (),
        most: int = 0,
    ) -> BufferClaim:
        """See `KeepsBuffers.claim_buffer`."""
        return await self._buffers.claim(
            key, holder, lease_ms=lease_ms, max_tokens=max_tokens, blob_ids=blob_ids, most=most
        )

    async def release_buffer(self, claim: BufferClaim, *, failed: str | None = None, most: int = 0) -> None:
        """See `KeepsBuffers.release_buffer`."""
        await self._buffers.release(claim, failed=failed, most=most)

    async def full_buffers(self, *, tokens: int, before: int, limit: int) -> list[BufferState]:
        """See `KeepsBuffers.full_buffers`."""
        return await self._buffers.full(tokens=tokens, before=before, limit=limit)

    async def failed_buffers(self, limit: int) -> list[BufferState]:
        """See `KeepsBuffers.failed_buffers`."""
        return await self._buffers.failed(limit)

    async def buffer_rows(
        self, key: BufferKey, status: str | None = None, limit: int = 100
    ) -> list[BufferRow]:
        """See `KeepsBuffers.buffer_rows`."""
        return await self._buffers.rows(key, status, limit)

    async def retry_failed_rows(self, key: BufferKey) -> int:
        """See `KeepsBuffers.retry_failed_rows`."""
        return await self._buffers.retry_failed(key)

    async def prune_buffers(self, before: int, limit: int) -> int:
        """See `KeepsBuffers.prune_buffers`."""
        return await self._buffers.prune(before, limit)
