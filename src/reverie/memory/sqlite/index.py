"""Writing the index of items: their cards, words and vectors, inside a transaction.

`memory_cards` has one row for each indexed item. `memory_postings` and `memory_bits` are filled from it, and
always agree with it: every change of the index goes through this module.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.memory.sqlite.bits import Bits
from reverie.memory.sqlite.rows import decode_json, to_json
from reverie.memory.words import STOP_WORDS, TOKENIZER, index_words
from reverie.storage.many_rows import write_rows
from reverie.storage.queries import load_queries
from reverie.turn import DEFAULT_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import apsw

    from reverie.memory.interface import Tenant
    from reverie.memory.prepare import Indexable, Prepared
    from reverie.memory.vectors import Vector

__all__ = ["Entry", "Fresh", "Index", "Makers", "identity", "shelf_of", "tenant_of", "tenants_of"]

SQL = load_queries(__package__ or "", "index.sql")
Place = tuple[int, int]
"""The number of a session, and a place in it."""


class Makers(NamedTuple):
    """The numbers of the tokenizer and the embedder that entries of the index are made by."""

    tokenizer: int
    embedder: int | None
    """None: without an embedder nothing has a vector."""
    embedder_name: str | None = None

    @classmethod
    def known(cls, connection: apsw.Connection, embedder_name: str | None) -> Makers:
        """The numbers of the present tokenizer and of an embedder; new ones are added."""

        def number(name: str) -> int:
            found: int | None = connection.execute(SQL["model"], (name,)).get
            made: int = found if found is not None else connection.execute(SQL["new_model"], (name,)).get
            return made

        return cls(number(TOKENIZER), None if embedder_name is None else number(embedder_name), embedder_name)


def identity(makers: Makers) -> str:
    """The tokenizer and the embedder, as the file names those that its items are to be indexed by."""
    return f"{makers.tokenizer}/{makers.embedder}"


class Entry(NamedTuple):
    """An item, as the index needs it."""

    seq: int
    tenant: int
    past: bool
    """Whether the item is superseded or archived."""
    session_id: str | None
    kind: str
    held_at: int
    importance: float
    texts: Indexable

    @property
    def shelf(self) -> int:
        """The shelf of the item."""
        return shelf_of(self.tenant, past=self.past)


class Fresh(NamedTuple):
    """An item that is to be indexed, and what was prepared for it."""

    entry: Entry
    prepared: Prepared | None
    place: Place | None = None
    """Its session and place, if it had them before."""

    def words(self) -> list[str]:
        """The words of the item."""
        text = self.entry.texts.for_words
        words = self.prepared.words.get(text) if self.prepared is not None else None
        return index_words(text) if words is None else words


def shelf_of(tenant: int, *, past: bool) -> int:
    """The number of one half of a tenant's index."""
    return 2 * tenant + past


def tenant_of(connection: apsw.Connection, user_id: str, cube: str) -> int:
    """The number of a tenant; a new tenant gets one."""
    found: int | None = connection.execute(SQL["find_tenant"], (user_id, cube)).get
    return found if found is not None else connection.execute(SQL["new_tenant"], (user_id, cube)).get


def tenants_of(connection: apsw.Connection, tenants: Collection[Tenant]) -> dict[Tenant, int]:
    """Tenant → its number; new tenants get one."""
    rows: str = connection.execute(SQL["find_tenants"], (to_json(list(tenants)),)).get
    numbers = {(user_id, cube): number for user_id, cube, number in decode_json(rows)}
    for tenant in tenants:
        if tenant not in numbers:
            numbers[tenant] = connection.execute(SQL["new_tenant"], tenant).get
    return numbers


class Index:
    """Writes entries in one transaction."""

    def __init__(
        self,
        connection: apsw.Connection,
        makers: Makers,
        on_unindexed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_unindexed` is called when an item is left to the indexer."""
        self._on_unindexed = on_unindexed
        self._connection = connection
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._makers = makers
        self._bits = Bits(connection)
        self._wanted: bool | None = None

    @property
    def _is_wanted(self) -> bool:
        """Whether the file is to be indexed by these models: a store that opened it later may have others."""
        if self._wanted is None:
            self._wanted = self._execute(SQL["models"]).get in {None, identity(self._makers)}
        return self._wanted

    def put(self, entry: Entry, prepared: Prepared | None, place: Place | None = None) -> None:
        """Index an item that has no card. `place` is its session and place if it had them before."""
        self.put_all([Fresh(entry, prepared, place)])

    def put_all(self, fresh: Sequence[Fresh]) -> None:
        """Index items that have no cards, with few statements for each table."""
        if not fresh:
            return
        vectors = [self._vector(one) for one in fresh]
        cards, postings = [], []
        blocks, places = self._add_bits(fresh, vectors), self._take_places(fresh)
        words: Counter[int] = Counter()
        for one, vector, block, place in zip(fresh, vectors, blocks, places, strict=True):
            (seq, _, _, _, kind, held_at, importance, texts), shelf = one.entry, one.entry.shelf
            times = Counter(one.words())
            length = times.total()
            words[shelf] += length
            postings += [(shelf, word, seq, count, length) for word, count in times.items()]
            by = (None, None) if vector is None else (self._makers.embedder, vector.numbers)
            cards.append(
                (
                    seq, shelf, *(place or (None, None)), texts.speaker, kind, held_at, importance,
                    texts.asks, length, " ".join(times), self._makers.tokenizer, *by, block,
                )
            )  # fmt: skip
        write_rows(self._connection, SQL, "put_cards", cards)
        postings.sort()  # in the order of the table
        write_rows(self._connection, SQL, "put_postings", postings)
        items = Counter(one.entry.shelf for one in fresh)
        counts = [(shelf, count, words[shelf]) for shelf, count in items.items()]
        self._execute(SQL["count_shelves"], (to_json(counts),))
        self._know_names(fresh)
        incomplete = vectors.count(None) > 0 and self._makers.embedder is not None
        if incomplete or not self._is_wanted:
            pairs = zip(fresh, vectors, strict=True)
            self.leave([one.entry.seq for one, vector in pairs if vector is None or not self._is_wanted])

    def _add_bits(self, fresh: Sequence[Fresh], vectors: Sequence[Vector | None]) -> list[int | None]:
        """Write the bits of vectors; the answer is the block of each item."""
        embedder = self._makers.embedder
        bits = [
            (one.entry.shelf, one.entry.seq, vector.bits)
            for one, vector in zip(fresh, vectors, strict=True)
            if vector is not None
        ]
        if not bits or embedder is None:
            return [None] * len(fresh)
        blocks = iter(self._bits.add_all(embedder, bits))
        return [None if vector is None else next(blocks) for vector in vectors]

    def _know_names(self, fresh: Sequence[Fresh]) -> None:
        """Note the speakers of items."""
        names = {(one.entry.tenant, one.entry.texts.speaker) for one in fresh}
        if known := [name for name in names if name[1] is not None]:
            self._execute(SQL["know_names"], (to_json(known),))

    def _take_places(self, fresh: Sequence[Fresh]) -> list[Place | None]:
        """The session and place of each item; an item without a place takes the next one of its session."""
        sessions = [
            (one.entry.tenant, one.entry.session_id)
            if one.place is None and one.entry.session_id not in {None, DEFAULT_SESSION}
            else None
            for one in fresh
        ]
        needed = Counter(session for session in sessions if session is not None)
        if not needed:
            return [one.place for one in fresh]
        asked = to_json([(*session, count) for session, count in needed.items()])
        self._execute(SQL["take_places"], (asked,))
        rows: str = self._execute(SQL["places_taken"], (asked,)).get
        taken: dict[tuple[int, str], Place] = {
            (tenant, session_id): (session, last - needed[tenant, session_id])
            for tenant, session_id, session, last in decode_json(rows)
        }
        places = []
        for one, key in zip(fresh, sessions, strict=True):
            if key is None:
                places.append(one.place)
            else:
                session, before = taken[key]
                taken[key] = (session, before + 1)
                places.append(taken[key])
        return places

    def remove(self, seq: int) -> Place | None:
        """Remove an item from the index; the answer is its session and place, if it has a card with these."""
        rows = self._card(seq)
        if not rows:
            return None
        ((shelf, session, place, embedder, block, length, words),) = rows
        self._executemany(SQL["drop_posting"], [(shelf, word, seq) for word in words.split()])
        if block is not None:
            self._bits.remove(shelf, embedder, block, seq)
        self._execute(SQL["drop_card"], (seq,))
        self._execute(SQL["count_shelf"], (shelf, -1, -length))
        return None if session is None else (session, place)

    def move(self, seq: int, *, past: bool) -> None:
        """Move an item to the other shelf of its tenant, if it is not there yet."""
        rows = self._card(seq)
        if not rows or rows[0][0] % 2 == past:
            return
        ((shelf, _, _, embedder, block, length, words),) = rows
        other = shelf ^ 1
        self._executemany(SQL["move_posting"], [(shelf, word, seq, other) for word in words.split()])
        if block is not None:
            bits = self._bits.remove(shelf, embedder, block, seq)
            block = None if bits is None else self._bits.add(other, embedder, seq, bits)
        self._execute(SQL["move_card"], (seq, other, block))
        self._execute(SQL["count_shelf"], (shelf, -1, -length))
        self._execute(SQL["count_shelf"], (other, 1, length))

    def note(self, seq: int, kind: str, held_at: int, importance: float) -> None:
        """Keep the card of an item up to date whose texts have not changed."""
        self._execute(SQL["note_card"], (seq, kind, held_at, importance))

    def leave(self, seqs: Sequence[int]) -> None:
        """Leave items to the indexer."""
        if seqs:
            self._execute(SQL["leave_to_indexer"], (to_json(seqs),))
            self._on_unindexed()

    def set_vector(self, seq: int, vector: Vector) -> None:
        """Give an indexed item the vector of the present embedder."""
        rows, present = self._card(seq), self._makers.embedder
        if rows and present is not None:
            shelf, _, _, embedder, block, *_ = rows[0]
            if block is not None:
                self._bits.remove(shelf, embedder, block, seq)
            block = self._bits.add(shelf, present, seq, vector.bits)
            self._execute(SQL["set_vector"], (seq, present, vector.numbers, block))

    def forget_name(self, tenant: int, speaker: str) -> None:
        """Forget a speaker of whom nothing is left.

        The words of a name are among those of its items, unless they are common words, such as Will: then all
        items of the tenant are looked at.
        """
        words = [word for word in index_words(speaker) if word not in STOP_WORDS]
        shelves = (shelf_of(tenant, past=False), shelf_of(tenant, past=True))
        if words:
            speaks = self._execute(SQL["still_speaks"], (*shelves, words[0], speaker)).get
        else:
            speaks = self._execute(SQL["still_speaks_at_all"], (tenant, speaker)).get
        if not speaks:
            self._execute(SQL["forget_name"], (tenant, speaker))

    def drop_vector(self, seq: int) -> None:
        """Forget the vector of an item, because it may be damaged."""
        rows = self._card(seq)
        if rows and rows[0][3] is not None:
            shelf, _, _, embedder, block, *_ = rows[0]
            if block is not None:
                self._bits.remove(shelf, embedder, block, seq)
            self._execute(SQL["set_vector"], (seq, None, None, None))

    def count(self, tenant: int, tier: str, change: int) -> int:
        """Change the number of a tenant's items in a tier; the answer is the new number."""
        counted: int = self._execute(SQL["count_tier"], (tenant, tier, change)).get
        return counted

    def count_all(self, counts: Mapping[tuple[int, str], int]) -> None:
        """Add to the numbers of tenants' items in tiers."""
        self._execute(SQL["count_tiers"], (to_json([(*key, count) for key, count in counts.items()]),))

    def counts_of(self, tenants: Collection[int]) -> dict[tuple[int, str], int]:
        """(Tenant, tier) → number of items, for these tenants."""
        rows: str = self._execute(SQL["tiers"], (to_json(list(tenants)),)).get
        return {(tenant, tier): items for tenant, tier, items in decode_json(rows)}

    def _card(self, seq: int) -> Sequence[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._execute(SQL["card"], (seq,)).fetchall()
        return rows

    def _vector(self, fresh: Fresh) -> Vector | None:
        prepared = fresh.prepared
        if prepared is None or prepared.embedder is None or prepared.embedder != self._makers.embedder_name:
            return None
        return prepared.vectors.get(fresh.entry.texts.for_vector)
