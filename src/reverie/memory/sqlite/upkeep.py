"""What upkeep reads of a store on SQLite: changes, similar items, cold items, and what was done before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.memory.sqlite.bits import nearest_of
from reverie.memory.sqlite.new_items import IMPORTANCE_MS
from reverie.memory.sqlite.rows import item_of, load_statements, to_json
from reverie.memory.upkeep import ChangedItem, Pass, Similar
from reverie.memory.vectors import bits_of, cosine_rows
from reverie.memory.words import index_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import apsw

    from reverie.memory.interface import Tenant
    from reverie.memory.item import MemoryItem
    from reverie.storage.sqlite import Database

__all__ = ["SqliteUpkeep"]

SQL = load_statements("upkeep.sql")
NEAREST = 50
"""How many of the nearest items are compared with an item."""
RAREST = 6
"""By how many of its rarest words an item is compared with others."""
COUNT_TO = 500
"""In how many items a word is looked up at most."""
COUNTED_AT_ONCE = 10_000
"""How many new items are counted in one transaction."""


class _Card(NamedTuple):
    """What is compared of an item: its own words, without its speaker and its day, and its vector."""

    seq: int
    id: str
    words: frozenset[str]
    vector: bytes | None


class SqliteUpkeep:
    """See `reverie.memory.upkeep.KeepsUpkeep`."""

    def __init__(self, database: Database, embedder: Callable[[], int | None]) -> None:
        """`embedder` tells the number of the present embedder, whose vectors are compared."""
        self._database = database
        self._embedder = embedder

    async def changed(self, tenant: Tenant, since: int, after: int, limit: int) -> list[ChangedItem]:
        """See `KeepsUpkeep.changed`."""
        rows = await self._rows("changed", tenant, since=since, after=after, limit=limit)
        return [ChangedItem(seq, item_of(tuple(row))) for seq, *row in rows]

    async def similar(
        self, tenant: Tenant, memory_ids: Sequence[str], *, least_cosine: float, least_overlap: float
    ) -> list[Similar]:
        """See `KeepsUpkeep.similar`."""

        def job(connection: apsw.Connection) -> list[Similar]:
            with connection:  # one transaction: no item changes its place meanwhile
                finder = _SimilarFinder(connection, tenant, self._embedder())
                found = finder.find(memory_ids, self._database.right_of_way.give)
            return [one for one in found if (one.cosine or 0) >= least_cosine or one.overlap >= least_overlap]

        return await self._database.read(job, purpose="upkeep")

    async def coldest(self, tenant: Tenant, tier: str, before: int, limit: int) -> list[MemoryItem]:
        """See `KeepsUpkeep.coldest`."""
        bindings = {"tier": tier, "before": before, "limit": limit, "importance_ms": IMPORTANCE_MS}
        return [item_of(row) for row in await self._rows("coldest", tenant, **bindings)]

    async def tier_counts(self, tenant: Tenant) -> dict[str, int]:
        """See `KeepsUpkeep.tier_counts`."""
        return dict(await self._rows("tiers", tenant))

    async def judged(self, tenant: Tenant, keys: Sequence[str]) -> list[str]:
        """See `KeepsUpkeep.judged`."""
        return [key for (key,) in await self._rows("judged", tenant, keys=to_json(list(keys)))]

    async def upkeep_until(self, tenant: Tenant, label: str) -> int | None:
        """See `KeepsUpkeep.upkeep_until`."""
        rows = await self._rows("succeeded", tenant, label=label)
        return rows[0][0] if rows else None

    async def passes(self, tenant: Tenant, limit: int) -> list[Pass]:
        """See `KeepsUpkeep.passes`."""
        return [
            Pass(id=pass_id, label=label, began_at=began, undone_at=undone, changes=changes)
            for pass_id, label, began, undone, changes in await self._rows("passes", tenant, limit=limit)
        ]

    async def count_fresh(self, labels: Sequence[str]) -> None:
        """See `KeepsUpkeep.count_fresh`."""

        def is_behind(connection: apsw.Connection) -> bool:
            return bool(connection.execute(SQL["last_seq"]).get != _counted_to(connection))

        def job(connection: apsw.Connection) -> None:
            last: int = connection.execute(SQL["last_seq"]).get
            after = min(_counted_to(connection), last)  # the last items may have been deleted
            last = min(last, after + COUNTED_AT_ONCE)
            connection.execute(
                SQL["count_fresh"], {"labels": to_json(list(labels)), "after": after, "last": last}
            )
            connection.execute(SQL["set_counted_to"], (str(last),))

        while await self._database.read(is_behind):
            await self._database.write(job, durable=False)

    async def grown(self, label: str, *, least: int, few: int, near: int, limit: int) -> list[Tenant]:
        """See `KeepsUpkeep.grown`."""
        bindings = {"label": label, "least": least, "few": min(few, least), "near": near, "limit": limit}
        rows: list[Any] = await self._database.read(
            lambda connection: connection.execute(SQL["grown"], bindings).fetchall()
        )
        return rows

    async def _rows(self, statement: str, tenant: Tenant, **bindings: Any) -> list[tuple[Any, ...]]:
        bindings |= {"user_id": tenant[0], "project_id": tenant[1]}
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall(), purpose="upkeep"
        )


def _counted_to(connection: apsw.Connection) -> int:
    return int(connection.execute(SQL["counted_to"]).get or 0)


class _SimilarFinder:
    """Compares items of one tenant, within one transaction."""

    def __init__(self, connection: apsw.Connection, tenant: Tenant, embedder: int | None) -> None:
        self._connection = connection
        self._bindings = {"user_id": tenant[0], "project_id": tenant[1], "embedder": embedder}
        self._shelf: int | None = connection.execute(SQL["shelf"], self._bindings).get
        self._words: dict[int, frozenset[str]] = {}
        self._blocks: list[Any] = []
        if embedder is not None and self._shelf is not None:
            self._blocks = connection.execute(SQL["blocks"], (self._shelf, embedder)).fetchall()

    def find(self, memory_ids: Sequence[str], between: Callable[[], None]) -> list[Similar]:
        """The items that resemble each of some items; `between` is called before each of these."""
        found: list[Similar] = []
        if self._shelf is not None:
            for card in self._cards("cards", ids=to_json(list(memory_ids))):
                between()
                found += self._of(card)
        return found

    def _of(self, card: _Card) -> Iterator[Similar]:
        near = set(self._by_vector(card)) | set(self._by_words(card))
        others = self._cards("cards_by_seq", seqs=to_json(sorted(near - {card.seq})))
        compared = [other for other in others if other.vector and card.vector]
        cosines: dict[int, float] = {}
        if compared and card.vector is not None:
            values = cosine_rows(card.vector, [other.vector or b"" for other in compared])
            cosines = {other.seq: value for other, value in zip(compared, values, strict=True)}
        for other in others:
            overlap = len(card.words & other.words) / max(1, min(len(card.words), len(other.words)))
            yield Similar(id=card.id, other=other.id, cosine=cosines.get(other.seq), overlap=overlap)

    def _by_vector(self, card: _Card) -> list[int]:
        if card.vector is None or not self._blocks:
            return []
        try:
            return nearest_of(self._blocks, bits_of(card.vector), NEAREST + 1, 1, None)[0]
        except ValueError:  # damaged vectors: the next search finds that out and lets them be rebuilt
            return []

    def _by_words(self, card: _Card) -> list[int]:
        """The items that have most of the rarest words of an item."""
        bindings = {
            "shelf": self._shelf,
            "words": to_json(sorted(card.words)),
            "most": COUNT_TO,
            "limit": RAREST,
        }
        shared: Counter[int] = Counter()
        rarest: list[tuple[Any, ...]] = self._connection.execute(SQL["rarest"], bindings).fetchall()
        for word, _ in rarest:
            rows = self._connection.execute(SQL["with_word"], (self._shelf, word, COUNT_TO))
            shared.update(seq for (seq,) in rows)
        return [seq for seq, _ in shared.most_common(NEAREST + 1)]

    def _cards(self, statement: str, **bindings: Any) -> list[_Card]:
        rows: list[tuple[Any, ...]] = self._connection.execute(
            SQL[statement], self._bindings | bindings
        ).fetchall()
        return [
            _Card(seq, memory_id, self._words_of(seq, text), vector) for seq, memory_id, text, vector in rows
        ]

    def _words_of(self, seq: int, text: str) -> frozenset[str]:
        if seq not in self._words:
            self._words[seq] = frozenset(index_words(text))
        return self._words[seq]
