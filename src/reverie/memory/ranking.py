"""Order the candidates of a search, and give each a score that can be compared between searches.

Text scores and cosines are made comparable by what is usual among all items of the tenant (z-scores), added
up, and corrected by what the place of an item in its conversation says. `docs/search.md` has what each signal
is worth. Everything here is arithmetic: a store brings the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from heapq import nlargest
from math import exp, exp2, log, sqrt
from operator import add
from typing import TYPE_CHECKING

import msgspec

from reverie.memory.words import word_weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "ENCODER",
    "STATIC",
    "TEXT_ONLY",
    "Calibration",
    "Candidate",
    "Population",
    "Question",
    "Ranked",
    "Weights",
    "bm25",
    "join_sources",
    "population_of_text",
    "rank",
    "text_ceiling",
    "weights_of",
]

K1 = 0.9
"""BM25: how soon a word that is repeated in a text stops adding to its score."""
B = 0.4
"""BM25: how much long texts are held back."""
HALF_LIFE_MS = 180 * 24 * 3600 * 1000
"""After this time an item has half of the penalty of age."""
MOST_NEARBY = 0.4
"""The most that a neighbour's share of the words counts: a turn beside the answer is not the answer."""
MANY_ITEMS = 500
"""From this many items on, more items do not lower scores."""
SMALL_TENANT = 20
"""With this many items the usual cosine of the embedder counts as much as the mean of the tenant."""
FARTHEST = 1.5
"""How many deviations a vector lowers an item at most. Among items that are nearly the same, a different one
would be lost, although it has the very word of the query."""
LEAST_DEVIATION = 1e-6
"""A smaller standard deviation comes from rounding: the signal tells no items apart."""


class Candidate(msgspec.Struct, gc=False):
    """An item that may answer the question, and the numbers that its place in the order is made of."""

    seq: int
    text_score: float = 0.0
    """BM25; 0 if the text has no word of the question."""
    cosine: float | None = None
    """None: the item has no vector yet."""
    session: int | None = None
    """The number of its conversation."""
    place: int | None = None
    """The position in the session: the places before and after are neighbours."""
    speaker: str | None = None
    held_at: int = 0
    """Epoch milliseconds."""
    importance: float = 0.5
    access_count: int = 0
    length: int | None = None
    """How many words the index has of the item; None: unknown."""
    is_question: bool = False
    """Whether the text ends with a question mark."""


class Population(msgspec.Struct, frozen=True):
    """What is usual among all items of the tenant."""

    items: int = 0
    text_mean: float = 0.0
    """Over all items: those without a word of the question have the score 0."""
    text_deviation: float = 0.0
    cosine_mean: float = 0.0
    cosine_deviation: float = 0.0
    average_length: float = 0.0


class Question(msgspec.Struct, frozen=True):
    """What is known about the question."""

    names: Collection[str] = ()
    """The speakers that it names, see `names_in`."""
    sessions: Collection[int] = ()
    """The numbers of the present conversation, one in each cube: its items are raised."""
    interval: tuple[int, int] | None = None
    """The time that it speaks of, from and to in epoch milliseconds."""
    now: int | None = None
    """The moment that ages are counted from, in epoch milliseconds; None: age does not matter."""
    text_ceiling: float = 0.0
    """See `text_ceiling`."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A logistic function that turns the signals of a hit into its score."""

    constant: float
    share: float
    """Per share of the question's words, weighted by their rarity, that the hit has."""
    nearby: float
    """Per share of the words that a neighbour of the hit has."""
    few_items: float
    """Per power of e by which the tenant has fewer items than `MANY_ITEMS`: each is likelier the answer."""
    closeness: float = 0.0
    """Per cosine above the mean, as a part of what is possible."""
    usual_cosine: float | None = None
    """The mean cosine of a question and an item that have nothing in common; counts in small tenants.

    None: unknown, and only the mean of the tenant counts.
    """


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """How much each signal counts, in standard deviations."""

    text: float
    vector: float
    nearer: float = 0.5
    """The part of its score that the better one of the two neighbours lends."""
    farther: float = 0.2
    """The part that the other neighbour lends."""
    two_away: float = 0.25
    """The part that the better one of the turns two places away lends."""
    speaker: float = 0.8
    session_prior: float = 0.2
    """Times the mean of the three best scores of the item's session."""
    length: float = 0.3
    """Times the logarithm of the length compared with the average, at most 1 and at least -2."""
    is_question: float = 0.6
    """Taken from texts that ask: an answer is elsewhere."""
    interval: float = 1.0
    present_session: float = 0.3
    age: float = 0.1
    """Taken from very old items; after the half-life of 180 days it is half of this."""
    importance: float = 0.4
    """From the least to the most important."""
    access: float = 0.03
    """Times the logarithm of how often the item was used, at most 3."""
    calibration: Calibration


TEXT_ONLY = Weights(
    text=1.0, vector=0.0, calibration=Calibration(constant=-3.0, share=14.0, nearby=7.0, few_items=0.47)
)
"""For tenants without vectors."""
STATIC = Weights(
    text=0.5,
    vector=0.5,
    calibration=Calibration(
        constant=-3.3, share=11.5, nearby=6.5, few_items=0.75, closeness=7.5, usual_cosine=0.06
    ),
)
"""For static word vectors such as wordllama."""
ENCODER = Weights(
    text=0.4,
    vector=0.6,
    session_prior=0.1,
    calibration=Calibration(
        constant=-3.6, share=9.5, nearby=5.5, few_items=0.67, closeness=14.0, usual_cosine=0.73
    ),
)
"""For sentence encoders such as e5-small and better ones."""
USUAL_COSINES: dict[str, float | None] = {
    r"\be5\b": 0.73,
    r"\bbge-\w+-zh\b": 0.27,
    r"\bbge\b": 0.36,
    r"\bminilm\b": 0.09,
    "": None,
}
"""Pattern of an encoder's name → its usual cosine; the first that fits counts."""


@cache
def weights_of(embedder: str) -> Weights:
    """The weights for vectors of an embedder, by its name."""
    if embedder.startswith("wordllama"):
        return STATIC
    plain = embedder.lower().replace("_", "-")
    usual = next(cosine for pattern, cosine in USUAL_COSINES.items() if re.search(pattern, plain))
    calibration = msgspec.structs.replace(ENCODER.calibration, usual_cosine=usual)
    return msgspec.structs.replace(ENCODER, calibration=calibration)


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A candidate in its place."""

    seq: int
    score: float
    """From 0 to 1, never more than the score of the hit before."""
    fused: float
    """The sum of the signals, which decides the order."""
    signals: dict[str, float]
    """What each signal added to `fused`; signals that added nothing are left out."""


def join_sources(ranked: Sequence[Ranked], derived: Iterable[tuple[int, int]]) -> list[Ranked]:
    """Join each fact with the turns it comes from: one hit, in the better place, with the better score.

    `derived` has pairs of a fact and one of its turns. The turns are left out. A turn gives its place to the
    best of the facts that come from it.
    """
    places = {one.seq: place for place, one in enumerate(ranked)}
    pairs = [(fact, turn) for fact, turn in derived if fact in places and turn in places]
    if not pairs:
        return list(ranked)
    pairs.sort(key=lambda pair: (places[pair[0]], places[pair[1]]))
    given: set[int] = set()
    best = dict(places)
    for fact, turn in pairs:
        if turn not in given:
            best[fact] = min(best[fact], places[turn])
            given.add(turn)
    kept = sorted((one for one in ranked if one.seq not in given), key=lambda one: best[one.seq])
    return [
        one
        if best[one.seq] == places[one.seq]
        else msgspec.structs.replace(
            one, score=ranked[best[one.seq]].score, fused=ranked[best[one.seq]].fused
        )
        for one in kept
    ]


def bm25(
    postings: Mapping[str, Sequence[tuple[int, int, int]]], items: int, average_length: float
) -> dict[int, float]:
    """The BM25 score of every item that has a word of the question, by its seq.

    `postings` has, for each word, the seq of each item of the tenant that has it, how often, and how many
    words that item has in all.
    """
    scores: dict[int, float] = {}
    average = max(average_length, 1.0)
    for word, entries in postings.items():
        weight = _rarity(word, len(entries), items) * (K1 + 1)
        base, slope = K1 * (1 - B), K1 * B / average
        for seq, count, length in entries:
            part = weight * count / (count + base + slope * length)
            scores[seq] = scores[seq] + part if seq in scores else part
    return scores


def text_ceiling(counts: Mapping[str, int], items: int) -> float:
    """The BM25 score of a text of average length that has every word of the question once.

    `counts` says in how many items of the tenant each word is; words that are in none belong to it, too.
    """
    return sum(_rarity(word, max(1, count), items) for word, count in counts.items())


def population_of_text(scores: Iterable[float], items: int) -> tuple[float, float]:
    """The mean and the standard deviation of the text scores of all items, most of which have 0."""
    total = squares = 0.0
    for score in scores:
        total += score
        squares += score * score
    if items <= 0:
        return 0.0, 0.0
    mean = total / items
    return mean, sqrt(max(0.0, squares / items - mean * mean))


def _rarity(word: str, count: int, items: int) -> float:
    """The inverse document frequency of a word, which is never negative."""
    return word_weight(word) * log(1 + (max(items, count) - count + 0.5) / (count + 0.5))


def rank(
    candidates: Sequence[Candidate],
    population: Population,
    question: Question,
    weights: Weights,
    limit: int = 100,
) -> list[Ranked]:
    """The best `limit` candidates, best first."""
    text_factor = _per_deviation(weights.text, population.text_deviation)
    vector_factor = _per_deviation(weights.vector, population.cosine_deviation)
    text_mean, cosine_mean = population.text_mean, population.cosine_mean
    text = [(c.text_score - text_mean) * text_factor for c in candidates]
    lowest = -FARTHEST * weights.vector
    vector = [
        0.0 if c.cosine is None else max(lowest, (c.cosine - cosine_mean) * vector_factor) for c in candidates
    ]
    columns = {"text": text, "vector": vector}
    sessions = _places(candidates)
    columns["neighbours"] = _lent(candidates, list(map(add, text, vector)), sessions, weights)
    columns |= _static_signals(candidates, population, question, weights)
    fused = [sum(values, 0.0) for values in zip(*columns.values(), strict=True)]
    if weights.session_prior:
        columns["session_prior"] = _session_prior(candidates, fused, weights.session_prior)
        fused = list(map(add, fused, columns["session_prior"]))
    places = range(len(candidates))
    score = 1.0
    ranked: list[Ranked] = []
    for total, seq, index in nlargest(limit, zip(fused, [c.seq for c in candidates], places, strict=True)):
        near = _text_nearby(candidates, index, sessions)
        score = min(score, _score(candidates[index], near, population, question, weights))
        signals = {name: column[index] for name, column in columns.items() if column[index]}
        ranked.append(Ranked(seq, score, total, signals))
    return ranked


def _per_deviation(weight: float, deviation: float) -> float:
    """What a signal counts for each unit of it; nothing if it is the same for all items, but for rounding."""
    return weight / deviation if deviation >= LEAST_DEVIATION else 0.0


def _places(candidates: Sequence[Candidate]) -> dict[int, dict[int, int]]:
    """Where each candidate is in the list, by session and place."""
    sessions: dict[int, dict[int, int]] = {}
    for index, candidate in enumerate(candidates):
        if candidate.session is not None and candidate.place is not None:
            places = sessions.get(candidate.session)
            if places is None:
                places = sessions[candidate.session] = {}
            places[candidate.place] = index
    return sessions


def _lent(
    candidates: Sequence[Candidate],
    relevance: list[float],
    sessions: dict[int, dict[int, int]],
    weights: Weights,
) -> list[float]:
    """What the neighbours of each candidate lend to it. A neighbour that is no candidate lends nothing."""
    lent = [0.0] * len(candidates)
    known = [*relevance, 0.0]
    nearer, farther, two_away = weights.nearer, weights.farther, weights.two_away
    for places in sessions.values():
        get = places.get
        for place, index in places.items():
            before, after = known[get(place - 1, -1)], known[get(place + 1, -1)]
            two_before, two_after = known[get(place - 2, -1)], known[get(place + 2, -1)]
            lent[index] = (
                (nearer * before + farther * after if before > after else nearer * after + farther * before)
                + two_away * max(two_before, two_after)
            )  # fmt: skip
    return lent


def _static_signals(
    candidates: Sequence[Candidate], population: Population, question: Question, weights: Weights
) -> dict[str, list[float]]:
    """The signals that need neither the words nor the vectors of a candidate."""
    columns: dict[str, list[float]] = {}
    if len(question.names) == 1:
        (name,) = question.names
        columns["speaker"] = [weights.speaker if c.speaker == name else 0.0 for c in candidates]
    if population.average_length > 0:
        usual, length = 1 + population.average_length, weights.length
        by_length: dict[int | None, float] = {
            words: length * min(1.0, max(-2.0, log((1 + words) / usual)))
            for words in {c.length for c in candidates}
            if words is not None
        }
        by_length[None] = 0.0
        columns["length"] = [by_length[c.length] for c in candidates]
    columns["is_question"] = [-weights.is_question if c.is_question else 0.0 for c in candidates]
    if question.interval is not None:
        start, end = question.interval
        columns["interval"] = [weights.interval if start <= c.held_at < end else 0.0 for c in candidates]
    if question.sessions:
        present, sessions = weights.present_session, question.sessions
        columns["present_session"] = [present if c.session in sessions else 0.0 for c in candidates]
    if question.now is not None:
        now, age = question.now, weights.age
        columns["age"] = [
            age * (exp2((c.held_at - now) / HALF_LIFE_MS) - 1) if c.held_at < now else 0.0 for c in candidates
        ]
    if any(c.importance != 0.5 for c in candidates):
        columns["importance"] = [weights.importance * (c.importance - 0.5) for c in candidates]
    if any(c.access_count for c in candidates):
        access = weights.access
        columns["access"] = [access * min(3.0, log(1 + max(0, c.access_count))) for c in candidates]
    return columns


def _session_prior(candidates: Sequence[Candidate], fused: list[float], weight: float) -> list[float]:
    """What each candidate gains because its session has several good ones."""
    scores: dict[int | None, list[float]] = {}
    for candidate, score in zip(candidates, fused, strict=True):
        scores.setdefault(candidate.session, []).append(score)
    prior = {session: weight * sum(nlargest(3, every)) / 3 for session, every in scores.items()}
    prior[None] = 0.0
    return [prior[candidate.session] for candidate in candidates]


def _text_nearby(candidates: Sequence[Candidate], index: int, sessions: dict[int, dict[int, int]]) -> float:
    """The best text score among the neighbours of a candidate."""
    candidate = candidates[index]
    if candidate.session is None or candidate.place is None:
        return 0.0
    places = sessions[candidate.session]
    near = [places.get(candidate.place - 1), places.get(candidate.place + 1)]
    return max((candidates[other].text_score for other in near if other is not None), default=0.0)


def _score(
    candidate: Candidate, near: float, population: Population, question: Question, weights: Weights
) -> float:
    """The calibrated score of a candidate, from 0 to 1."""
    calibration = weights.calibration
    items = max(1, population.items)
    logit = calibration.constant + calibration.few_items * log(
        MANY_ITEMS / max(SMALL_TENANT, min(MANY_ITEMS, items))
    )
    if question.text_ceiling > 0:
        logit += calibration.share * min(1.0, candidate.text_score / question.text_ceiling)
        logit += calibration.nearby * min(MOST_NEARBY, near / question.text_ceiling)
    if candidate.cosine is not None:
        usual, mean = calibration.usual_cosine, population.cosine_mean
        if usual is not None:
            mean = (items * mean + SMALL_TENANT * usual) / (items + SMALL_TENANT)
        logit += calibration.closeness * (candidate.cosine - mean) / (1 - mean) if mean < 1 else 0.0
    return 1 / (1 + exp(-min(50.0, max(-50.0, logit))))
