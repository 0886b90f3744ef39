"""Reading the index in SQLite, for the stages in `memory/search.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from reverie.memory.index_reader import Card, DamagedVectorsError, Shelf
from reverie.memory.sqlite.bits import nearest_of
from reverie.memory.sqlite.rows import item_of, load_statements, to_json
from reverie.memory.words import index_words, plain_words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Filters, SearchQuery

__all__ = ["SqliteIndexReader"]

SQL = load_statements("search.sql")
_PASSES_FILTERS = SQL.pop("passes_filters")
SQL = {name: text.replace("passes_filters", _PASSES_FILTERS) for name, text in SQL.items()}
MOST_OLD_ITEMS = 200
"""How many items that are not indexed yet a search looks at."""
MOST_NAMES = 500
"""How many names of speakers a query is searched for."""


class SqliteIndexReader:
    """See `reverie.memory.index_reader.IndexReader`."""

    def __init__(self, connection: apsw.Connection, embedder: int | None, *, has_old_index: bool) -> None:
        """`embedder` is the number of the present embedder, whose vectors are read."""
        self._connection = connection
        self._embedder = embedder
        self._has_old_index = has_old_index
        self._shelves: set[int] = set()

    def names(self, user_id: str, cubes: Sequence[str]) -> list[str]:
        """The speakers in a user's conversations."""
        bindings = {"user_id": user_id, "cubes": _list_or_null(cubes), "limit": MOST_NAMES}
        return [name for (name,) in self._rows("names", **bindings)]

    def has_kinds(self, user_id: str, cubes: Sequence[str], kinds: Sequence[str]) -> bool:
        """Whether a user has items of these kinds; items that were not adopted yet do not count."""
        bindings = {"user_id": user_id, "cubes": _list_or_null(cubes), "kinds": to_json(kinds)}
        return bool(self._rows("has_kinds", **bindings)[0][0])

    def shelves(self, user_id: str, cubes: Sequence[str], *, past: bool) -> list[Shelf]:
        """See `IndexReader.shelves`."""
        rows = self._rows("shelves", user_id=user_id, cubes=_list_or_null(cubes), past=past)
        found = [Shelf(*row) for row in rows]
        self._shelves = {shelf.shelf for shelf in found}
        return found

    def session_numbers(self, tenants: Sequence[int], session_id: str) -> set[int]:
        """See `IndexReader.session_numbers`."""
        rows = self._rows("session_numbers", tenants=to_json(tenants), session_id=session_id)
        return {session for (session,) in rows}

    def has_archive(self, tenants: Sequence[int]) -> bool:
        """See `IndexReader.has_archive`."""
        return bool(self._rows("has_archive", tenants=to_json(list(tenants)))[0][0])

    def allowed(self, tenants: Sequence[int], filters: Filters) -> set[int]:
        """See `IndexReader.allowed`."""
        rows = self._rows(
            "allowed_in_tiers" if filters.tiers else "allowed",
            tenants=to_json(tenants),
            **_bindings_of(filters),
        )
        return {seq for (seq,) in rows}

    def count_kinds(self, tenants: Sequence[int], kinds: Sequence[str], most: int) -> int:
        """See `IndexReader.count_kinds`."""
        rows = self._rows("count_kinds", tenants=to_json(tenants), kinds=to_json(kinds), most=most)
        count: int = rows[0][0]
        return count

    def count_words(self, shelves: Sequence[Shelf], words: Sequence[str], most: int) -> dict[str, int]:
        """See `IndexReader.count_words`."""
        counts = dict.fromkeys(words, 0)
        for shelf in shelves:
            rows: list[Any] = self._connection.execute(
                SQL["count_words"], (shelf.shelf, to_json(words), most)
            ).fetchall()
            for word, count in rows:
                counts[word] += count
        return counts

    def postings(self, shelves: Sequence[Shelf], word: str) -> list[tuple[int, int, int]]:
        """See `IndexReader.postings`."""
        found: list[tuple[Any, ...]] = []
        for shelf in shelves:
            found += self._connection.execute(SQL["postings"], (shelf.shelf, word)).fetchall()
        return found

    def nearest(
        self,
        shelves: Sequence[Shelf],
        bits: bytes,
        limit: int,
        sample: int,
        allowed: Collection[int] | None,
    ) -> tuple[list[int], list[bytes], int]:
        """See `IndexReader.nearest`."""
        try:
            blocks = [
                block
                for shelf in shelves
                for block in self._connection.execute(SQL["blocks"], (shelf.shelf, self._embedder))
            ]
            near, sampled, items = nearest_of(blocks, bits, limit, sample, allowed)
        except (apsw.SQLError, ValueError) as error:
            raise DamagedVectorsError(str(error)) from error
        rows = self._rows("vectors", seqs=to_json(sampled), embedder=self._embedder)
        return near, [vector for (vector,) in rows], items

    def has_lost_vectors(self, seqs: Sequence[int]) -> bool:
        """See `IndexReader.has_lost_vectors`."""
        rows = self._rows("has_lost_vectors", seqs=to_json(seqs), embedder=self._embedder)
        return bool(rows[0][0])

    def cards(self, seqs: Collection[int]) -> list[Card]:
        """See `IndexReader.cards`."""
        rows = self._rows("cards", seqs=to_json(sorted(seqs)), embedder=self._embedder)
        return [Card(*row) for row in rows]

    def cards_at(self, places: Collection[tuple[int, int]]) -> list[Card]:
        """See `IndexReader.cards_at`."""
        if not places:
            return []
        rows = self._rows("cards_at", places=to_json(sorted(places)), embedder=self._embedder)
        return [Card(*row) for *row, shelf in rows if shelf in self._shelves]

    def words_of(self, seqs: Collection[int]) -> dict[int, set[str]]:
        """See `IndexReader.words_of`."""
        return {seq: set(words.split()) for seq, words in self._rows("words_of", seqs=to_json(list(seqs)))}

    def derived(self, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """See `IndexReader.derived`."""
        return [(item, source) for item, source in self._rows("derived", seqs=to_json(list(seqs)))]

    def items(self, seqs: Sequence[int]) -> dict[int, MemoryItem]:
        """See `IndexReader.items`."""
        return {seq: item_of(tuple(row)) for seq, *row in self._rows("items", seqs=to_json(list(seqs)))}

    def around(self, item: MemoryItem, reach: int) -> list[MemoryItem]:
        """See `IndexReader.around`."""
        rows = self._rows("around", user_id=item.user_id, id=item.id, reach=reach)
        return [item_of(row) for row in rows]

    def linked(self, item: MemoryItem, hops: int, most: int) -> list[MemoryItem]:
        """See `IndexReader.linked`."""
        rows = self._rows("linked", user_id=item.user_id, id=item.id, hops=hops, limit=most)
        return [item_of(row) for row in rows]

    def unindexed(
        self, query: SearchQuery, filters: Filters, words: Sequence[str]
    ) -> list[tuple[int, list[str]]]:
        """See `IndexReader.unindexed`: what the text index of an earlier version finds."""
        phrases = plain_words(query.text, len(words)) if self._has_old_index else []
        if not phrases:
            return []
        bindings: dict[str, Any] = {
            "user_id": query.user_id,
            "cubes": _list_or_null(query.mem_cube_ids),
            "expression": " OR ".join(f'"{phrase}"' for phrase in phrases),
            "limit": MOST_OLD_ITEMS,
        }
        rows = self._rows("old_index_hits", **bindings, **_bindings_of(filters))
        found = [(seq, index_words(text)) for seq, text in rows]
        return [(seq, own) for seq, own in found if not set(words).isdisjoint(own)]

    def _rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(SQL[statement], bindings).fetchall()


def _list_or_null(values: Sequence[str]) -> str | None:
    return to_json(values) if values else None


def _bindings_of(filters: Filters) -> dict[str, Any]:
    """What the part `passes_filters` of a statement is bound to."""
    return {
        "kinds": _list_or_null(filters.kinds),
        "without_kinds": to_json(filters.without_kinds),
        "tiers": _list_or_null(filters.tiers),
        "tags": _list_or_null(filters.tags),
        "device_id": filters.device_id,
        "agent_id": filters.agent_id,
        "since": filters.since,
        "until": filters.until,
        "as_of": filters.as_of,
    }
