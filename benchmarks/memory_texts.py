"""Turns of invented conversations, the same in every run.

Words are drawn from a vocabulary whose frequencies fall as 1/rank, as they do in English. The common words
are real ones, the rare ones are built of syllables. A turn has 8 to 25 words. A session has 20 turns of two
speakers.
"""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SESSION", "Said", "questions", "turns_of"]

SESSION = 20
"""Turns of one session."""
SHORTEST, LONGEST = 8, 25
WORDS = 20_000
COMMON = (
    "the i to and a you it of that in is was we for my on so have with but this me not be they at are "
    "just do like what all can had about from out go when your up there he she one then get really "
    "some if would how think were our time know been more good will them because day back after him "
    "her want new work too now people over could other make last year week house also very much first "
    "off here home next still never us came two little long down always before school night right "
    "went got family made friend something around take thing ever way again see old every away "
    "through morning job took where book food dog city water tell same love walk car mother father "
    "sister brother money game music summer winter train coffee kitchen garden dinner birthday "
    "weekend office meeting phone story picture movie beach mountain river street market window table "
    "bread cheese apple tomato soup bike boat plane hotel ticket trip doctor health sleep run swim "
    "read write paint cook plan call visit help start finish buy sell lose find learn teach"
)
SYLLABLES = (
    "ba bel bor can car cor dan del den dor el en er fal fen gal gar hal har in ka kel lan len lin lo "
    "ma mar men mi mon na nel nor pa per pol ra ren ri ro sa sel sil so sta ta tan ter ti tor tra va "
    "vel ver vin wal wen yar zel"
)
ENDINGS = ("", "", "", "s", "ed", "ing", "er", "ly", "ness", "tion")
NAMES = (
    "Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina", "Hugo", "Ida", "Jon",
    "Kira", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tess", "Vera",
)  # fmt: skip


class Said(NamedTuple):
    """One turn."""

    text: str
    speaker: str
    session: int


@cache
def vocabulary() -> tuple[list[str], np.ndarray]:
    """The words by rank, and the sum of the frequencies up to each."""
    chance = random.Random(7)
    words = dict.fromkeys(COMMON.split())
    syllables = SYLLABLES.split()
    while len(words) < WORDS:
        stem = "".join(chance.choices(syllables, k=chance.choice((2, 2, 3))))
        words.setdefault(stem + chance.choice(ENDINGS))
    sums = np.cumsum(1 / np.arange(1, WORDS + 1))
    return list(words), sums / sums[-1]


def turns_of(tenant: int, count: int) -> Iterator[Said]:
    """The first `count` turns that a tenant has said."""
    words, sums = vocabulary()
    chance = np.random.default_rng([11, tenant])
    speakers = chance.choice(NAMES, 2, replace=False).tolist()
    lengths = chance.integers(SHORTEST, LONGEST + 1, count)
    ranks = np.searchsorted(sums, chance.random(int(lengths.sum())))
    start = 0
    for number, length in enumerate(lengths.tolist()):
        text = " ".join([words[rank] for rank in ranks[start : start + length]])
        yield Said(text.capitalize() + ".", speakers[number % 2], number // SESSION)
        start += length


def questions(tenant: int, count: int, items: int) -> list[str]:
    """Questions about `count` of a tenant's `items` turns: who said something with three of its words."""
    chance = random.Random(tenant)
    common = set(COMMON.split()[:60])
    turns = list(turns_of(tenant, items))
    asked = []
    for said in chance.choices(turns, k=count):
        words = [word for word in said.text.rstrip(".").lower().split() if word not in common]
        chosen = chance.sample(words, min(3, len(words)))
        asked.append(f"What did {said.speaker} say about {', '.join(chosen) or 'it'}?")
    return asked
