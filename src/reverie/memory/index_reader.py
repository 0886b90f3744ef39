"""What a search reads of a store's index: the interface between the stages of a search and a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Filters, SearchQuery

__all__ = ["Card", "DamagedVectorsError", "IndexReader", "Shelf"]


class DamagedVectorsError(Exception):
    """The vectors of an index cannot be read."""


class Shelf(NamedTuple):
    """One half of a tenant's index."""

    shelf: int
    tenant: int
    items: int
    words: int


class Card(NamedTuple):
    """What ranking needs to know of an item."""

    seq: int
    session: int | None
    place: int | None
    speaker: str | None
    kind: str
    held_at: int
    importance: float
    uses: int
    asks: bool
    length: int
    vector: bytes | None
    """The vector of the present embedder; None if there is none yet."""


class IndexReader(Protocol):
    """Reads the index of one store, within one search."""

    def shelves(self, user_id: str, cubes: Sequence[str], *, past: bool) -> list[Shelf]:
        """The shelves of a user's cubes (of all, if none are named); with `past`, also those of the past."""
        ...

    def session_numbers(self, tenants: Sequence[int], session_id: str) -> set[int]:
        """The numbers of the conversations with this id: each tenant may have one."""
        ...

    def has_archive(self, tenants: Sequence[int]) -> bool:
        """Whether one of these tenants has archived items."""
        ...

    def allowed(self, tenants: Sequence[int], filters: Filters) -> set[int]:
        """The items that pass the filters."""
        ...

    def count_kinds(self, tenants: Sequence[int], kinds: Sequence[str], most: int) -> int:
        """How many items of these kinds there are, counted up to `most`."""
        ...

    def count_words(self, shelves: Sequence[Shelf], words: Sequence[str], most: int) -> dict[str, int]:
        """In how many items each word is, counted up to `most` on each shelf."""
        ...

    def postings(self, shelves: Sequence[Shelf], word: str) -> list[tuple[int, int, int]]:
        """The items that have a word: seq, how often, and how many words the item has."""
        ...

    def nearest(
        self,
        shelves: Sequence[Shelf],
        bits: bytes,
        limit: int,
        sample: int,
        allowed: Collection[int] | None,
    ) -> tuple[list[int], list[bytes], int]:
        """The items whose bits are nearest, nearest first, and the vectors of about `sample` items.

        These are spread over all items of the shelves. The third part of the answer is how many items of the
        shelves have a vector. `DamagedVectorsError` if vectors cannot be read.
        """
        ...

    def has_lost_vectors(self, seqs: Sequence[int]) -> bool:
        """Whether one of these items has a vector, and `nearest` cannot find the item by it."""
        ...

    def cards(self, seqs: Collection[int]) -> list[Card]:
        """The cards of items."""
        ...

    def cards_at(self, places: Collection[tuple[int, int]]) -> list[Card]:
        """The cards of the items at places of conversations: (session, place)."""
        ...

    def words_of(self, seqs: Collection[int]) -> dict[int, set[str]]:
        """The distinct words of items."""
        ...

    def derived(self, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """Which of these items comes from which other of them: pairs of an item and its source."""
        ...

    def items(self, seqs: Sequence[int]) -> dict[int, MemoryItem]:
        """The items, by seq."""
        ...

    def around(self, item: MemoryItem, reach: int) -> list[MemoryItem]:
        """The items up to `reach` places before and after an item in its conversation, in order."""
        ...

    def linked(self, item: MemoryItem, hops: int, most: int) -> list[MemoryItem]:
        """The living items that links lead to, nearest first."""
        ...

    def unindexed(
        self, query: SearchQuery, filters: Filters, words: Sequence[str]
    ) -> list[tuple[int, list[str]]]:
        """Items that match and are not in this index yet, with their words; see the indexer."""
        ...
