"""The stages of a search, the same for every store.

A store brings an `IndexReader` (`index_reader.py`), which reads words, vectors and items. The stages here
choose candidates from these, rank them, and put the answer together.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.memory.choice import diversify, drop_duplicates
from reverie.memory.index_reader import DamagedVectorsError
from reverie.memory.query import Filters, Found, Hit
from reverie.memory.ranking import (
    TEXT_ONLY,
    Candidate,
    Population,
    Question,
    bm25,
    join_sources,
    population_of_text,
    rank,
    text_ceiling,
    weights_of,
)
from reverie.memory.times import interval_of
from reverie.memory.vectors import cosines, similarities
from reverie.memory.words import query_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from reverie.memory.index_reader import Card, IndexReader, Shelf
    from reverie.memory.query import SearchQuery
    from reverie.memory.ranking import Ranked, Weights
    from reverie.memory.settings import MemorySettings
    from reverie.memory.vectors import Vector

__all__ = ["LONGEST_QUESTION", "Search", "Understood"]

TEXT_CANDIDATES = 100
"""How many items with the best words are ranked; more if more than half as many hits are wanted."""
VECTOR_CANDIDATES = 100
"""How many items with the nearest vectors are ranked, in the same way."""
SAMPLE = 150
"""How many items tell what cosines are usual on the shelves."""
BEST = 30
"""How many of the best candidates bring the turns around them along."""
NEIGHBOURHOOD = (-2, -1, 1, 2)
MOST_DIVERSIFIED = 50
"""A search for more hits than this is not diversified: comparing all pairs would take too long."""
COUNT_TO = 500
"""In how many texts a word must be to count as common: words that are in more are not told apart."""
MANY_ITEMS = 500
"""With more items than this, common words of a query are left out if it has others."""
COMMON = 4
"""A word is common if one of this many items has it."""
LONGEST_QUESTION = 2000
"""How many characters of a query are read for names, times and the vector."""
PREFERENCE = "preference"
ARCHIVE = "archive"
TURN = "turn"
"""The kind of items that other items come from."""
FEW_LEFT_OUT = 50
"""If more items than this are of kinds to leave out, they are filtered before candidates are chosen."""
MOST_LINKED = 10
"""How many linked items come with a hit at most."""


class Understood(NamedTuple):
    """A query with what was found out about it before the index is read."""

    query: SearchQuery
    now: int
    vector: Vector | None = None
    embedder: str | None = None
    names: frozenset[str] = frozenset()
    """The speakers that the query names."""
    degraded: tuple[str, ...] = ()
    pool: int = 0
    """How many hits a reranker chooses from; 0: there is none."""


class Search:
    """One search while it goes on."""

    def __init__(self, reader: IndexReader, asked: Understood, settings: MemorySettings) -> None:
        self._reader = reader
        self._asked = asked
        self._query = asked.query
        self._settings = settings
        self._interval = interval_of(asked.query.text[:LONGEST_QUESTION], self._reference)
        self._degraded = list(asked.degraded)
        self._timings: dict[str, float] = {}
        self.vectors_are_damaged = False

    def run(self) -> Found:
        """The hits, more than asked for if a reranker or a limit of tokens has yet to choose among them."""
        query = self._query
        filters = query.filters
        if query.preferences:
            without = (*filters.without_kinds, PREFERENCE)
            hits, words_left_out, words = self._find(msgspec.structs.replace(filters, without_kinds=without))
            only = msgspec.structs.replace(filters, kinds=(PREFERENCE,))
            preferences, *_ = self._find(only, limit=query.preferences)
        else:
            hits, words_left_out, words = self._find(filters)
            preferences = []
        hits = self._with_archive(hits)
        return Found(
            hits=hits,
            preferences=preferences,
            degraded=tuple(dict.fromkeys(self._degraded)),
            words_left_out=words_left_out,
            timings_ms={name: round(took, 3) for name, took in self._timings.items()}
            if query.explain
            else None,
            explanation={
                "words": words,
                "names": sorted(self._asked.names),
                "interval": self._interval,
                "embedder": self._asked.embedder if self._asked.vector else None,
            }
            if query.explain
            else None,
        )

    def _with_archive(self, hits: list[Hit]) -> list[Hit]:
        """The hits, and those of the archive if fewer than asked for are found without it."""
        query, filters = self._query, self._query.filters
        good = sum(hit.score >= (query.threshold or 0) for hit in hits)
        if good >= query.limit or filters.tiers or filters.as_of is not None:
            return hits
        shelves = self._reader.shelves(query.user_id, query.mem_cube_ids, past=True)
        if not self._reader.has_archive([shelf.tenant for shelf in shelves]):
            return hits
        without = (*filters.without_kinds, PREFERENCE) if query.preferences else filters.without_kinds
        archived, *_ = self._find(
            msgspec.structs.replace(filters, tiers=(ARCHIVE,), without_kinds=without),
        )
        return sorted((*hits, *archived), key=lambda hit: -hit.score)

    @property
    def _reference(self) -> int:
        given = self._query.reference_time
        return self._asked.now if given is None else given

    def _find(self, filters: Filters, limit: int | None = None) -> tuple[list[Hit], int, list[str]]:
        """The hits for these filters, how many words were left out, and the words searched for."""
        query, reader = self._query, self._reader
        limit = limit or max(query.limit, self._asked.pool)
        needs_past = filters.as_of is not None or ARCHIVE in filters.tiers
        with self._timed("filters"):
            shelves = reader.shelves(query.user_id, query.mem_cube_ids, past=needs_past)
            tenants = list(dict.fromkeys(shelf.tenant for shelf in shelves))
            allowed = reader.allowed(tenants, filters) if self._narrows(filters, tenants) else None
        with self._timed("words"):
            words, words_left_out = self._words(shelves)
            scores, population, ceiling = self._by_words(shelves, words, allowed)
        with self._timed("vectors"):
            near, usual = self._by_vector(shelves, allowed, max(VECTOR_CANDIDATES, 2 * limit))
        with self._timed("candidates"):
            best = nlargest(max(TEXT_CANDIDATES, 2 * limit), scores, key=scores.__getitem__)
            chosen = reader.cards({*best, *near})
            if self._uses_vectors and reader.has_lost_vectors(best[:BEST]):
                self._note_damage("some are missing")
            similar, population = self._cosines(chosen, usual, population)
            if len(chosen) < population.items:
                chosen += self._around_best(chosen, scores, similar, population, allowed)
            if filters.without_kinds:
                chosen = [card for card in chosen if card.kind not in filters.without_kinds]
            candidates = [_candidate(card, scores, similar) for card in chosen]
            waiting, population = self._not_indexed(filters, words, scores, population, ceiling)
            candidates += waiting
        with self._timed("ranking"):
            question = Question(
                names=self._asked.names,
                sessions=self._sessions(tenants),
                interval=self._interval,
                now=self._reference,
                text_ceiling=ceiling,
            )
            ranked = rank(candidates, population, question, self._weights, limit=max(4 * limit, 40))
            cards = {card.seq: card for card in chosen}
            if any((card := cards.get(one.seq)) is not None and card.kind != TURN for one in ranked):
                ranked = join_sources(ranked, reader.derived([one.seq for one in ranked]))
            ranked = self._diverse(ranked, limit, cards)
        with self._timed("items"):
            nearest = sorted(similar, key=similar.__getitem__, reverse=True) if query.explain else []
            hits = self._hits(ranked, best, nearest)
        return hits, words_left_out, words

    @property
    def _uses_vectors(self) -> bool:
        return self._asked.vector is not None and not self.vectors_are_damaged

    @property
    def _weights(self) -> Weights:
        return weights_of(self._asked.embedder or "") if self._uses_vectors else TEXT_ONLY

    def _narrows(self, filters: Filters, tenants: Sequence[int]) -> bool:
        """Whether filters must be applied before candidates are chosen, because few of these may pass."""
        if msgspec.structs.replace(filters, without_kinds=()) != Filters():
            return True
        kinds = filters.without_kinds
        return bool(kinds) and self._reader.count_kinds(tenants, kinds, FEW_LEFT_OUT + 1) > FEW_LEFT_OUT

    def _words(self, shelves: Sequence[Shelf]) -> tuple[list[str], int]:
        """The words to search for, and how many that may be in the index are left out."""
        words, later = query_words(self._query.text, self._settings.max_query_words_counted)
        most = self._settings.max_query_words
        if len(words) <= most:
            return words, later
        counts = self._reader.count_words(shelves, words, COUNT_TO)
        known = sorted((word for word in words if counts[word]), key=counts.__getitem__)
        return known[:most], len(known[most:]) + later

    def _by_words(
        self, shelves: Sequence[Shelf], words: Sequence[str], allowed: Collection[int] | None
    ) -> tuple[dict[int, float], Population, float]:
        """The text score of each item that has one of the words, and what is usual on the shelves."""
        items = sum(shelf.items for shelf in shelves)
        average = sum(shelf.words for shelf in shelves) / items if items else 0.0
        telling = self._telling(shelves, words, items)
        postings = {word: self._reader.postings(shelves, word) for word in telling}
        ceiling = text_ceiling({word: len(found) for word, found in postings.items()}, items)
        scores = bm25(postings, items, average)
        mean, deviation = population_of_text(scores.values(), items)
        if allowed is not None:
            scores = {seq: score for seq, score in scores.items() if seq in allowed}
        population = Population(items=items, text_mean=mean, text_deviation=deviation, average_length=average)
        return scores, population, ceiling

    def _telling(self, shelves: Sequence[Shelf], words: Sequence[str], items: int) -> Sequence[str]:
        """The words without those that are in many of many items: they cost most, and tell least."""
        if items <= MANY_ITEMS:
            return words
        most = items // COMMON
        counts = self._reader.count_words(shelves, words, most)
        rare = [word for word in words if counts[word] < most]
        return rare or words

    def _by_vector(
        self, shelves: Sequence[Shelf], allowed: Collection[int] | None, limit: int
    ) -> tuple[list[int], list[bytes]]:
        """The items nearest to the query, and vectors that show what is usual."""
        vector = self._asked.vector
        if vector is None:
            return [], []
        try:
            near, usual, with_vector = self._reader.nearest(shelves, vector.bits, limit, SAMPLE, allowed)
        except DamagedVectorsError as error:
            self._note_damage(str(error))
            return [], []
        if with_vector < sum(shelf.items for shelf in shelves):
            self._degraded.append("some memories have no vector yet, and are found by their words alone")
        return near, usual

    def _cosines(
        self, cards: Sequence[Card], usual: Sequence[bytes], population: Population
    ) -> tuple[dict[int, float], Population]:
        """The cosine of each card that has a vector, and the population with what is usual of them."""
        if not self._uses_vectors:
            return {}, population
        found = self._compare([card for card in cards if card.vector is not None])
        sample = self._cosines_of(usual)
        if sample:
            mean = sum(sample) / len(sample)
            variance = sum((cosine - mean) ** 2 for cosine in sample) / len(sample)
            population = msgspec.structs.replace(
                population, cosine_mean=mean, cosine_deviation=max(variance**0.5, 1e-6)
            )
        return found, population

    def _compare(self, cards: Sequence[Card]) -> dict[int, float]:
        similar = self._cosines_of([card.vector or b"" for card in cards])
        return {card.seq: cosine for card, cosine in zip(cards, similar, strict=False)}

    def _cosines_of(self, vectors: Sequence[bytes]) -> list[float]:
        """The cosine of the query and each vector; nothing if the vectors are damaged."""
        assert self._asked.vector is not None
        try:
            return cosines(self._asked.vector, vectors)
        except ValueError as error:
            self._note_damage(str(error))
            return []

    def _note_damage(self, reason: str) -> None:
        self.vectors_are_damaged = True
        self._degraded.append(f"the vectors are damaged and will be rebuilt, so only words count: {reason}")

    def _around_best(
        self,
        chosen: Sequence[Card],
        scores: Mapping[int, float],
        similar: dict[int, float],
        population: Population,
        allowed: Collection[int] | None,
    ) -> list[Card]:
        """The turns around the best candidates that are no candidates yet: they may hold the answer."""
        by_text = self._weights.text / (population.text_deviation or 1)
        by_vector = self._weights.vector / (population.cosine_deviation or 1)
        mean = population.cosine_mean

        def goodness(card: Card) -> float:
            return by_text * scores.get(card.seq, 0.0) + by_vector * similar.get(card.seq, mean)

        known = {(card.session, card.place) for card in chosen}
        places = {
            (card.session, card.place + step)
            for card in nlargest(BEST, chosen, key=goodness)
            if card.session is not None and card.place is not None
            for step in NEIGHBOURHOOD
        }
        found = [
            card for card in self._reader.cards_at(places - known) if allowed is None or card.seq in allowed
        ]
        new = [card for card in found if card.seq not in similar and card.vector is not None]
        if new and self._uses_vectors:
            similar.update(self._compare(new))
        return found

    def _not_indexed(
        self,
        filters: Filters,
        words: Sequence[str],
        scores: Mapping[int, float],
        population: Population,
        ceiling: float,
    ) -> tuple[list[Candidate], Population]:
        """Items of an earlier version that the indexer has not reached yet, by their words alone.

        They count in the population: without them, nothing that is indexed may have a word of the query.
        """
        found = self._reader.unindexed(self._query, filters, words)
        found = [one for one in found if one[0] not in scores]
        if not found:
            return [], population
        self._degraded.append("some memories are not indexed yet, and are found by their words alone")
        wanted = set(words)
        length = population.average_length or 10.0
        share = (ceiling or float(len(words))) / max(1, len(words))
        candidates = [
            Candidate(
                seq=seq,
                text_score=share * len(wanted.intersection(own)) * (2 * length) / (length + len(own)),
            )
            for seq, own in found
        ]
        items = population.items + len(found)
        all_scores = [*scores.values(), *(candidate.text_score for candidate in candidates)]
        mean, deviation = population_of_text(all_scores, items)
        return candidates, msgspec.structs.replace(
            population, items=items, text_mean=mean, text_deviation=deviation
        )

    def _sessions(self, tenants: Sequence[int]) -> set[int]:
        given = self._query.session_id
        return set() if given is None else self._reader.session_numbers(tenants, given)

    def _diverse(self, ranked: list[Ranked], limit: int, cards: Mapping[int, Card]) -> list[Ranked]:
        """The best hits, without those that are too similar to better ones."""
        query = self._query
        if query.diversity == "no" or limit > MOST_DIVERSIFIED or len(ranked) <= 1:
            return ranked[:limit]
        choose = diversify if query.diversity == "mmr" else drop_duplicates
        return choose(ranked, self._similarity(ranked, cards), limit)

    def _similarity(self, ranked: Sequence[Ranked], cards: Mapping[int, Card]) -> Callable[[int, int], float]:
        """A function that says how similar two hits are, by their vectors or else by their words."""
        seqs = [hit.seq for hit in ranked]
        vectors = [card.vector for seq in seqs if (card := cards.get(seq)) is not None and card.vector]
        if len(vectors) == len(seqs) and len({len(vector) for vector in vectors}) == 1:
            row = {seq: number for number, seq in enumerate(seqs)}
            matrix = similarities(vectors)
            return lambda one, other: matrix[row[one]][row[other]]
        words = self._reader.words_of(seqs)

        def by_words(one: int, other: int) -> float:
            first, second = words.get(one, set()), words.get(other, set())
            return len(first & second) / max(1, len(first | second))

        return by_words

    def _hits(self, ranked: Sequence[Ranked], by_words: Sequence[int], by_vector: Sequence[int]) -> list[Hit]:
        query, reader = self._query, self._reader
        items = reader.items([one.seq for one in ranked])
        text_ranks = {seq: place for place, seq in enumerate(by_words, 1)} if query.explain else {}
        vector_ranks = {seq: place for place, seq in enumerate(by_vector, 1)} if query.explain else {}
        hits = []
        for one in ranked:
            item = items.get(one.seq)
            if item is None:
                continue
            signals = None
            if query.explain:
                signals = {name: round(value, 4) for name, value in one.signals.items()}
                signals |= {"fused": round(one.fused, 4)}
                if one.seq in text_ranks:
                    signals["text_rank"] = text_ranks[one.seq]
                if one.seq in vector_ranks:
                    signals["vector_rank"] = vector_ranks[one.seq]
            hits.append(
                Hit(
                    score=round(one.score, 4),
                    item=item,
                    signals=signals,
                    neighbours=tuple(reader.around(item, query.neighbours)) if query.neighbours else (),
                    linked=tuple(reader.linked(item, query.hops, MOST_LINKED)) if query.hops else (),
                )
            )
        return hits

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took = (time.perf_counter() - began) * 1000
        self._timings[stage] = self._timings.get(stage, 0.0) + took


def _candidate(card: Card, scores: Mapping[int, float], similar: Mapping[int, float]) -> Candidate:
    return Candidate(
        seq=card.seq,
        text_score=scores.get(card.seq, 0.0),
        cosine=similar.get(card.seq),
        session=card.session,
        place=card.place,
        speaker=card.speaker,
        held_at=card.held_at,
        importance=card.importance,
        access_count=card.uses,
        length=card.length,
        is_question=card.asks,
    )
