"""A search: its question, its filters, its answer, and the reasons for each hit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from reverie.memory.item import MemoryItem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.effect import Source

__all__ = ["Filters", "Found", "Hit", "SearchQuery"]


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an item must be to be found at all. Fields that are empty allow everything."""

    kinds: tuple[str, ...] = ()
    without_kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """The item has at least one of these."""
    tiers: tuple[str, ...] = ()
    """Empty: all but the archive."""
    device_id: str | None = None
    agent_id: str | None = None
    since: int | None = None
    """The item began to hold at this moment or later, in epoch milliseconds."""
    until: int | None = None
    """The item began to hold before this moment."""
    as_of: int | None = None
    """What held at this moment, superseded or not; None: what is not superseded, whenever it held."""

    def allow(self, item: MemoryItem) -> bool:
        """Whether an item passes. Without `tiers`, items of all tiers do, unlike in a search."""
        return (
            (not self.kinds or item.kind in self.kinds)
            and item.kind not in self.without_kinds
            and (not self.tags or not set(self.tags).isdisjoint(item.tags))
            and (not self.tiers or item.tier in self.tiers)
            and self.device_id in {None, item.device_id}
            and self.agent_id in {None, item.agent_id}
            and (self.since is None or item.held_at >= self.since)
            and (self.until is None or item.held_at < self.until)
            and (self.as_of is None or item.held_at <= self.as_of < (item.valid_to or item.held_at + 2**62))
        )


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The text to search for, and the user whose memories are searched."""

    text: str
    user_id: str
    mem_cube_ids: tuple[str, ...] = ()
    """The cubes to search; empty means all cubes of the user."""
    limit: int = 10
    filters: Filters = Filters()
    session_id: str | None = None
    """The present conversation: its items are raised, the others are still found."""
    reference_time: int | None = None
    """What "yesterday" and "last week" refer to, in epoch milliseconds; None: now."""
    threshold: float | None = None
    """Hits with a lower score are dropped; None drops nothing."""
    max_tokens: int | None = None
    """About how many tokens all texts of the answer may have together; None: any number.

    Hits and preferences come first, then their neighbours and the items that links lead to.
    """
    diversity: Literal["mmr", "sim", "no"] = "mmr"
    """mmr: similar hits give way to different ones. sim: only texts that are nearly equal are left out."""
    rerank: bool = True
    """Whether the reranker of the settings, if there is one, orders the first hits."""
    preferences: int = 0
    """How many preferences to find beside the other hits; 0: preferences are found as all kinds are."""
    neighbours: int = 0
    """How many turns before and after each hit come with it."""
    hops: int = 0
    """How many links away from a hit items come with it."""
    explain: bool = False


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that matches a query."""

    score: float
    """From 0 to 1, comparable between searches: 0.45 is a fair threshold."""
    item: MemoryItem
    neighbours: tuple[MemoryItem, ...] = ()
    """The turns around it in its conversation, if the query asks for them, oldest first."""
    linked: tuple[MemoryItem, ...] = ()
    """The items that links lead to, if the query asks for them, nearest first."""
    signals: dict[str, float] | None = None
    """With `explain`: what each signal added to the score; `text_rank`, `vector_rank` are places from 1."""

    @property
    def text(self) -> str:
        """The text of the memory."""
        return self.item.text

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the memory."""
        return self.item.sources


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a search. It can be used like the list of its hits, best first."""

    hits: list[Hit] = []
    preferences: list[Hit] = []
    degraded: tuple[str, ...] = ()
    """Why the search is not as good as it could be, one sentence each; empty: it is."""
    dropped: int = 0
    """How many hits were below the threshold."""
    cut: int = 0
    """How many hits and preferences were left out because of `max_tokens`."""
    enhanced: bool = False
    """Whether the hits are those of an enhanced search that was kept (`api_mix_search`)."""
    words_left_out: int = 0
    """How many words of the query were not searched for, because the query has very many.

    Of very long queries this is estimated.
    """
    timings_ms: dict[str, float] | None = None
    """With `explain`: how long each stage took."""
    explanation: dict[str, Any] | None = None
    """With `explain`: the words, names and times that were understood in the query."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: int) -> Hit:
        return self.hits[index]
