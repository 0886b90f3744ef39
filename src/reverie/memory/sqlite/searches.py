"""Enhanced searches that are kept for the next search with the same query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.memory.kept_searches import MOST_KEPT
from reverie.memory.sqlite.rows import to_json
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.effect import KeepSearch
    from reverie.memory.interface import Tenant
    from reverie.memory.kept_searches import KeptHits
    from reverie.memory.sqlite.effects import EffectStep

__all__ = ["keep_search", "read_changes", "read_kept"]

SQL = load_queries(__package__ or "", "searches.sql")


def keep_search(step: EffectStep, effect: KeepSearch) -> None:
    """Write what a search has found, unless a memory of the tenant was changed meanwhile."""
    step.run(SQL["keep"], query=effect.query, changes=effect.changes, hits=to_json(effect.hits))
    step.run(SQL["forget"], kept=MOST_KEPT)


def read_changes(connection: apsw.Connection, tenant: Tenant) -> int:
    """See `KeepsSearches.changes`."""
    found: int | None = connection.execute(SQL["changes"], tenant).get
    return found or 0


def read_kept(
    connection: apsw.Connection, user_id: str, mem_cube_ids: Sequence[str], query: str
) -> dict[str, KeptHits]:
    """See `KeepsSearches.kept_searches`."""
    cubes = to_json(list(mem_cube_ids)) if mem_cube_ids else None
    bindings = {"user_id": user_id, "cubes": cubes, "query": query}
    rows = connection.execute(SQL["kept"], bindings).fetchall()
    return {str(cube): _decode_hits(str(hits)) for cube, hits in rows}


_decode_hits = msgspec.json.Decoder(tuple[tuple[str, float], ...]).decode
