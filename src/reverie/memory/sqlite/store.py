"""The memory store on SQLite: items, their text index, and the inbox."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import apsw
import msgspec

from reverie.base.threads import ThreadPool
from reverie.effect import Source
from reverie.errors import VersionConflictError
from reverie.memory.interface import Applied, Hit, Hits, InboxEntry, MemoryItem
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite.effects import apply_effects, prepare_words, to_json
from reverie.memory.words import query_phrases
from reverie.message import Key, Message
from reverie.storage.queries import load_queries
from reverie.storage.sqlite import ReadLimit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.sqlite.step import ApplyEffects
    from reverie.base.clock import Clock
    from reverie.effect import Effect
    from reverie.memory.interface import Application, SearchQuery, Tenant
    from reverie.message import Lane
    from reverie.storage.sqlite import Database

__all__ = ["SqliteMemoryStore"]

ITEM_COLUMNS = (
    "i.id, i.user_id, i.project_id, i.text, i.kind, i.tier, i.server_session_id, i.tags, i.info, i.sources, "
    "i.created_at_epoch, i.updated_at_epoch, i.version, i.superseded_by, i.access_count, i.accessed_at_epoch"
)
"""The columns that `_item` reads, in this order; statements name them `item_columns`."""
SQL = {
    name: text.replace("item_columns", ITEM_COLUMNS)
    for name, text in load_queries(__package__ or "", "store.sql").items()
}
PREPARERS = 2
"""How many threads prepare effects."""
CLOCK_DIFFERENCE_MS = 24 * 3600 * 1000
"""How much the clock of a queue may be ahead of this machine's clock; default a day."""
COUNT_TO = 500
"""In how many texts a word must be to count as common: words that are in more are not told apart."""


class SqliteMemoryStore:
    """See `reverie.memory.interface.MemoryStore`."""

    def __init__(self, database: Database, clock: Clock, settings: MemorySettings | None = None) -> None:
        self._database = database
        self._clock = clock
        self._settings = settings or MemorySettings()
        self._preparers = ThreadPool(PREPARERS, "reverie-prepare")

    async def open(self) -> None:
        """See `MemoryStore.open`."""
        self._database.open()
        self._database.migrate("memory", "reverie.memory.sqlite")

    async def close(self) -> None:
        """See `MemoryStore.close`."""
        self._preparers.close()
        self._database.close()

    def effects_within(self, database: Database) -> ApplyEffects | None:
        """See `SharesDatabase.effects_within`."""
        return apply_effects if database is self._database else None

    async def prepare(self, effects: Sequence[Effect]) -> dict[str, str]:
        """See `EffectStore.prepare`: the index words of new texts."""
        return await asyncio.wrap_future(self._preparers.submit(partial(prepare_words, effects)))

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
                answers.append(self._apply_one(connection, application))
                if answers[-1].state == "conflict":
                    stopped.add(message.lane)
            return answers

        return await self._database.write(job)

    async def old_entries(self, limit: int) -> list[InboxEntry]:
        """See `KeepsInbox.old_entries`."""
        before = self._clock.now() - round(self._settings.inbox_retention_s * 1000) - CLOCK_DIFFERENCE_MS
        rows = await self._rows(
            "old_entries", before=before, limit=limit, clock_difference=CLOCK_DIFFERENCE_MS
        )
        return [
            InboxEntry(key=Key(user_id, item_id), accepted_by=accepted_by, used_at=used_at)
            for user_id, item_id, accepted_by, used_at in rows
        ]

    async def prune_inbox(self, gone: Sequence[InboxEntry], needed: Mapping[InboxEntry, int]) -> None:
        """See `KeepsInbox.prune_inbox`."""
        now = self._clock.now()

        def job(connection: apsw.Connection) -> None:
            connection.executemany(SQL["drop_entry"], [(*entry.key, entry.used_at) for entry in gone])
            connection.executemany(
                SQL["keep_entry"],
                [(*entry.key, entry.used_at, submitted_at, now) for entry, submitted_at in needed.items()],
            )

        await self._database.write(job, durable=False)

    async def search(self, query: SearchQuery) -> Hits:
        """See `MemoryStore.search`."""

        def job(connection: apsw.Connection) -> Hits:
            phrases, left_out = self._rarest(connection, query.text)
            bindings = {
                "expression": " OR ".join(phrases),
                "user_id": query.user_id,
                "cubes": to_json(query.mem_cube_ids) if query.mem_cube_ids else None,
                "limit": query.limit,
            }
            rows: list[tuple[Any, ...]] = []
            if phrases:
                rows = connection.execute(SQL["search"], bindings).fetchall()
            best = rows[0][0] if rows else 1.0
            hits = Hits(Hit(score=row[0] / best, item=_item(row)) for row in rows)
            hits.words_left_out = left_out
            return hits

        limit = ReadLimit(self._settings.search_timeout_s, "memory.search_timeout_s")
        return await self._database.read(job, limit, searching=True)

    def _rarest(self, connection: apsw.Connection, text: str) -> tuple[list[str], int]:
        """The phrases to search for, and how many that may be in the index are left out."""
        phrases, later = query_phrases(text, self._settings.max_query_words_counted)
        most = self._settings.max_query_words
        if len(phrases) <= most:
            return phrases, later
        bindings = {"phrases": to_json(phrases), "count_to": COUNT_TO, "limit": most}
        rows: list[tuple[Any, ...]] = connection.execute(SQL["rarest"], bindings).fetchall()
        known = rows[0][1] if rows else 0
        return [phrase for phrase, _ in rows], known - len(rows) + later

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        rows = await self._rows("get", user_id=user_id, id=memory_id)
        return _item(rows[0]) if rows else None

    async def items(self, tenant: Tenant, memory_ids: Sequence[str]) -> list[MemoryItem]:
        """See `MemoryStore.items`."""
        user_id, cube = tenant
        rows = await self._rows("items", user_id=user_id, project_id=cube, ids=to_json(list(memory_ids)))
        return [_item(row) for row in rows]

    async def tenants(self, after: Tenant | None, limit: int) -> list[Tenant]:
        """See `MemoryStore.tenants`."""
        user_id, cube = after or ("", "")
        return [
            (row[0], row[1])
            for row in await self._rows("tenants", user_id=user_id, project_id=cube, limit=limit)
        ]

    async def _rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL[statement], bindings).fetchall()

        return await self._database.read(job)

    def _apply_one(self, connection: apsw.Connection, application: Application) -> Applied:
        message = application.message
        key, now = message.key, self._clock.now()
        late_s = (now - (application.lease_until or now)) / 1000
        if late_s > self._settings.inbox_retention_s:
            reason = f"its lease ended {late_s:.0f} s ago, which is longer than memory.inbox_retention_s"
            return Applied(key=key, state="stale", error=reason)
        identity = {
            "user_id": key.user_id,
            "item_id": key.item_id,
            "submitted_at": application.submitted_at,
            "now": now,
        }
        entry = {
            "fingerprint": message.fingerprint(),
            "closed": application.close,
            "losses": message.losses,
            "requeues": message.requeues,
            "follow_ups": to_json(application.follow_ups),
            "clock_difference": CLOCK_DIFFERENCE_MS,
        }
        try:
            with connection:  # a savepoint
                if connection.execute(SQL["enter_inbox"], identity | entry).fetchall():
                    apply_effects(connection, message, application.effects, application.prepared, now)
                    state: Literal["closed", "applied"] = "closed" if application.close else "applied"
                    return Applied(key=key, state=state, follow_ups=application.follow_ups)
        except VersionConflictError as error:
            return Applied(key=key, state="conflict", error=str(error))
        except (apsw.ConstraintError, apsw.MismatchError, ValueError, TypeError, RecursionError) as error:
            return Applied(key=key, state="rejected", error=repr(error))
        return _answer_of_row(connection, key, identity)


def _answer_of_row(connection: apsw.Connection, key: Key, identity: dict[str, Any]) -> Applied:
    """The answer to an application that finds a row in the inbox which wins."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["use_inbox"], identity).fetchall()
    ((closed, follow_ups, is_later),) = rows
    if is_later or closed:
        reason = "the id was accepted again after this run" if is_later else None
        return Applied(key=key, state="closed", error=reason)
    return Applied(key=key, state="already", follow_ups=_decode_messages(follow_ups))


def _item(row: tuple[Any, ...]) -> MemoryItem:
    (
        _, item_id, user_id, cube, text, kind, tier, session, tags, info, sources,
        created, updated, version, superseded_by, access_count, accessed_at,
    ) = row  # fmt: skip
    return MemoryItem(
        id=item_id,
        user_id=user_id,
        mem_cube_id=cube,
        text=text,
        kind=kind,
        tier=tier,
        session_id=session,
        tags=tuple(msgspec.json.decode(tags)),
        info=None if info is None else msgspec.json.decode(info),
        sources=_decode_sources(sources),
        created_at=created,
        updated_at=updated,
        version=version,
        superseded_by=superseded_by,
        access_count=access_count,
        accessed_at=accessed_at,
    )


_decode_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
