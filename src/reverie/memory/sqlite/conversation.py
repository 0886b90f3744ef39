"""What the store keeps of conversations besides items: queries, answers, and what to extract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.memory.extraction import Extraction
from reverie.memory.queries import QUERIES_KEPT, NotedQuery
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.effect import Extracted, NoteAnswer, NoteQuery
    from reverie.memory.interface import Tenant
    from reverie.memory.sqlite.effects import EffectStep

__all__ = [
    "extracted",
    "note_answer",
    "note_query",
    "read_extraction",
    "read_queries",
    "read_unread",
    "read_unread_turns",
    "write_extraction",
]

SQL = load_queries(__package__ or "", "conversation.sql")


def extracted(step: EffectStep, effect: Extracted) -> None:
    """Write when items were read for facts."""
    step.run(SQL["extracted"], ids=_to_json(effect.memory_ids))


def note_query(step: EffectStep, effect: NoteQuery) -> None:
    """Write a query, and forget the oldest beyond the limit."""
    step.run(
        SQL["note_query"],
        id=effect.query_id,
        session_id=effect.session_id,
        query=effect.query,
        found=_to_json(effect.found),
    )
    step.run(SQL["forget_queries"], kept=QUERIES_KEPT)


def note_answer(step: EffectStep, effect: NoteAnswer) -> None:
    """Write the answer to a query; an answer to a query that was forgotten is not kept."""
    step.run(
        SQL["note_answer"],
        id=effect.query_id,
        session_id=effect.session_id,
        answer=effect.answer,
        used=_to_json(effect.used),
    )


def read_queries(connection: apsw.Connection, tenant: Tenant) -> list[NotedQuery]:
    """See `KeepsQueries.queries`."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["queries"], tenant).fetchall()
    return [
        NotedQuery(
            id=query_id,
            query=query,
            session_id=session_id,
            found=_decode_ids(found),
            asked_at=asked_at,
            answer=answer,
            used=_decode_ids(used),
        )
        for query_id, query, session_id, found, asked_at, answer, used in rows
    ]


def read_extraction(connection: apsw.Connection, tenant: Tenant) -> Extraction:
    """See `KeepsCubes.extraction`."""
    kept = connection.execute(SQL["extraction"], tenant).get
    return Extraction() if kept is None else msgspec.json.decode(kept, type=Extraction)


def write_extraction(connection: apsw.Connection, tenant: Tenant, extraction: Extraction) -> None:
    """See `KeepsCubes.set_extraction`."""
    connection.execute(SQL["set_extraction"], (*tenant, _to_json(extraction)))


def read_unread_turns(
    connection: apsw.Connection, tenant: Tenant, after: int, limit: int
) -> list[tuple[int, str, str]]:
    """Turns that no run has read for facts: number, id and text."""
    rows: list[Any] = connection.execute(SQL["unread_turns"], (*tenant, after, limit)).fetchall()
    return rows


def read_unread(connection: apsw.Connection, tenant: Tenant, memory_ids: Sequence[str]) -> list[str]:
    """See `KeepsUnread.unread`."""
    rows = connection.execute(SQL["unread"], (*tenant, _to_json(memory_ids)))
    return [str(memory_id) for (memory_id,) in rows]


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_decode_ids = msgspec.json.Decoder(tuple[str, ...]).decode
