"""The memory store on SQLite: items, their text index, and the inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from reverie.effect import Source
from reverie.memory.interface import Applied, Hit, MemoryItem
from reverie.memory.words import index_words, match_expression
from reverie.message import Message
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.base.clock import Clock
    from reverie.effect import Effect
    from reverie.memory.interface import Application, SearchQuery
    from reverie.storage.sqlite import Database

__all__ = ["SqliteMemoryStore", "apply_effects"]

SQL = load_queries(__package__ or "", "store.sql")


def apply_effects(connection: apsw.Connection, message: Message, effects: Sequence[Effect], now: int) -> None:
    """Write the effects of one message, inside whatever transaction the connection is in."""
    for effect in effects:
        rows = connection.execute(
            SQL["insert_item"],
            {
                "user_id": message.user_id,
                "id": effect.memory_id,
                "project_id": message.mem_cube_id,
                "server_session_id": effect.session_id or message.session_id,
                "kind": effect.kind,
                "tier": effect.tier,
                "text": effect.text,
                "tags": _json(effect.tags),
                "info": None if effect.info is None else _json(effect.info),
                "sources": _json(effect.sources),
                "now": now,
            },
        ).fetchall()
        if rows:
            words = {"seq": rows[0][0], "words": index_words(effect.text)}
            connection.execute(SQL["insert_words"], words)
        else:
            known = connection.execute(
                SQL["text_of"], {"user_id": message.user_id, "id": effect.memory_id}
            ).get
            if known != effect.text:
                raise ValueError(f"the memory id {effect.memory_id!r} is taken by another text")


class SqliteMemoryStore:
    """See `reverie.memory.interface.MemoryStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def open(self) -> None:
        """See `MemoryStore.open`."""
        self._database.open()
        self._database.migrate("memory", "reverie.memory.sqlite")

    async def close(self) -> None:
        """See `MemoryStore.close`."""
        self._database.close()

    async def apply(self, batch: Sequence[Application]) -> list[Applied]:
        """See `EffectStore.apply`."""

        def job(connection: apsw.Connection) -> list[Applied]:
            return [self._apply_one(connection, application) for application in batch]

        return await self._database.write(job)

    async def search(self, query: SearchQuery) -> list[Hit]:
        """See `MemoryStore.search`."""
        expression = match_expression(query.text)
        if not expression:
            return []
        bindings = {
            "expression": expression,
            "user_id": query.user_id,
            "cubes": _json(query.mem_cube_ids) if query.mem_cube_ids else None,
            "limit": query.limit,
        }

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL["search"], bindings).fetchall()

        rows = await self._database.read(job)
        best = rows[0][0] if rows else 1.0
        return [Hit(score=row[0] / best, item=_item(row)) for row in rows]

    async def get(self, user_id: str, memory_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL["get"], {"user_id": user_id, "id": memory_id}).fetchall()

        rows = await self._database.read(job)
        return _item(rows[0]) if rows else None

    def _apply_one(self, connection: apsw.Connection, application: Application) -> Applied:
        key = application.message.key
        identity = {"user_id": key.user_id, "item_id": key.item_id}
        now = self._clock.now()
        try:
            with connection:  # a savepoint
                entry = {
                    "fingerprint": application.message.fingerprint(),
                    "closed": application.close,
                    "losses": application.message.losses,
                    "requeues": application.message.requeues,
                    "follow_ups": _json(application.follow_ups),
                    "now": now,
                }
                if connection.execute(SQL["enter_inbox"], identity | entry).fetchall():
                    apply_effects(connection, application.message, application.effects, now)
                    state = "closed" if application.close else "applied"
                    return Applied(key=key, state=state, follow_ups=application.follow_ups)  # type: ignore[arg-type]
        except (apsw.ConstraintError, apsw.MismatchError, ValueError, TypeError, RecursionError) as error:
            return Applied(key=key, state="rejected", error=repr(error))
        rows: list[tuple[Any, ...]] = connection.execute(SQL["read_inbox"], identity).fetchall()
        ((closed, follow_ups),) = rows
        if closed:
            return Applied(key=key, state="closed")
        return Applied(key=key, state="already", follow_ups=_decode_messages(follow_ups))


def _item(row: tuple[Any, ...]) -> MemoryItem:
    _, item_id, user_id, cube, text, kind, tier, session, tags, info, sources, created, updated = row
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
    )


_decode_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
