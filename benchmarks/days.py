"""Some simulated days of a user: what they say, what must be known of it later, and a model that reads it.

Each day has the same kinds of turns: a fact that nobody says again, something that is said every day in equal
words, something that happens every day in similar words, small talk; on some days the user moves house or
changes the employer, which contradicts what was true before. All of it is the same in every run.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.models.interface import Completion
from reverie.models.tokens import tokens_in
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reverie.models.interface import ChatMessage

__all__ = ["DaysModel", "Period", "Unique", "homes", "turns_on", "unique_fact"]

SPEAKER = "Ann"
RELATIVES = ("cousin", "neighbour", "colleague", "aunt", "teacher", "friend")
JOBS = ("baker", "pilot", "nurse", "carpenter", "translator", "gardener", "plumber", "surgeon", "chemist")
TOWNS = ("Porto", "Lyon", "Turin", "Ghent", "Bergen", "Graz", "Krakow", "Malmo", "Cork", "Split", "Basel")
FIRST, SECOND = ("Na", "Le", "To", "Mi", "Ka", "Su", "Ri", "Jo", "Ve", "Da"), (
    "dia", "vin", "mas", "rko", "len", "sanna", "chard", "nas", "ronika", "vid",
)  # fmt: skip
HOMES = ("Lisbon", "Vienna", "Dublin", "Athens")
EMPLOYERS = ("the post office", "the city library", "a bicycle factory")


class Unique(NamedTuple):
    """A fact that is said once."""

    day: int
    text: str
    question: str
    words: tuple[str, ...]
    """Words that only a text with this fact has."""


class Period(NamedTuple):
    """What was true from one day until another."""

    first_day: int
    last_day: int
    value: str


def unique_fact(day: int) -> Unique:
    """The fact of a day."""
    name = FIRST[day % 10] + SECOND[day // 10 % 10] + ("" if day < 100 else str(day // 100))
    job, town = JOBS[day % len(JOBS)], TOWNS[day % len(TOWNS)]
    relative = RELATIVES[day % len(RELATIVES)]
    text = f"My {relative} {name} works as a {job} in {town}."
    return Unique(day, text, f"What does {name} do for a living?", (name, job, town))


def homes(days: int) -> list[Period]:
    """Where the user lives."""
    return _periods(HOMES, days)


def employers(days: int) -> list[Period]:
    """Whom the user works for."""
    return _periods(EMPLOYERS, days)


def _periods(values: Sequence[str], days: int) -> list[Period]:
    starts = [days * number // len(values) for number in range(len(values))]
    ends = [start - 1 for start in starts[1:]] + [days - 1]
    return [Period(*one) for one in zip(starts, ends, values, strict=True)]


def turns_on(day: int, days: int) -> list[Turn]:
    """What is said on a day."""
    said = [
        "Good morning, how are you?",
        unique_fact(day).text,
        "I take the bus to work." if day % 2 else "I take the bus to work",
        f"I ran {4 + day % 5} kilometres in the park before breakfast.",
        f"For lunch I had soup number {day % 7} at the canteen again.",
    ]
    said += [f"I moved to {one.value} today." for one in homes(days) if one.first_day == day]
    said += [f"I started to work for {one.value} today." for one in employers(days) if one.first_day == day]
    turns = [Turn(content=text, name=SPEAKER) for text in said]
    return [*turns, Turn(content="I see, thank you for telling me.", role="assistant", name="Bot")]


class DaysModel:
    """A language model for the simulated days. It knows the prompts of the built-in handlers."""

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0

    async def complete(
        self,
        prompt: Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        idempotency_key: str | None = None,  # noqa: ARG002  part of the protocol
    ) -> Completion:
        """The answer to a prompt, by rules."""
        text = prompt[-1].content
        answer = json.dumps(self._answer(text))
        given = tokens_in(text) + (tokens_in(json.dumps(schema)) if schema else 0)
        answered = tokens_in(answer)
        self.calls += 1
        self.tokens += given + answered
        return Completion(text=answer, input_tokens=given, output_tokens=answered, model="days")

    def _answer(self, prompt: str) -> dict[str, Any]:
        if "\nTurns:\n" in prompt:
            before, _, turns = prompt.partition("\nTurns:\n")
            return {"facts": list(_facts_in(turns, _known_in(before)))}
        memories = _memories_in(prompt)
        if "`contradictions`" in prompt:
            pairs = combinations(memories, 2)
            contrary = [pair for pair in pairs if _contradict(memories[pair[0]], memories[pair[1]])]
            return {"same": [], "contradictions": contrary, "patterns": []}
        return {"text": _compressed(list(memories.values()))}


TURN = re.compile(r"^(\d+)\. ([^:(]+?)(?: \([^)]*\))?: (.*)$")
MEMORY = re.compile(r"^(\d+)\. \([^)]*\) (?:Ann: |Bot: )?(.*)$")
RULES: tuple[tuple[str, str, str], ...] = (
    (r"My (\w+ \w+ works as a \w+ in \w+)", "fact", "{who}'s {0}"),
    (r"I moved to (\w+)", "fact", "{who} lives in {0}"),
    (r"I started to work for (.+) today", "fact", "{who} works for {0}"),
    (r"I take the bus to work", "fact", "{who} takes the bus to work"),
    (r"I ran (\d+) kilometres", "event", "{who} ran {0} kilometres in the park"),
)
"""Pattern of a turn, kind and text of the fact in it."""
STATES = re.compile(r"^(\w+ (?:lives in|works for)) (.+)$")


def _known_in(prompt: str) -> dict[int, str]:
    lines = [line.partition(". ") for line in prompt.partition("\nKnown facts:\n")[2].splitlines()]
    return {int(number): text for number, _, text in lines if text}


def _facts_in(turns: str, known: dict[int, str]) -> Iterator[dict[str, Any]]:
    """The facts that turns say; each ends what it contradicts."""
    for line in turns.splitlines():
        if turn := TURN.match(line):
            for pattern, kind, text in RULES:
                if found := re.match(pattern, turn[3]):
                    told = text.format(*found.groups(), who=turn[2])
                    fact: dict[str, Any] = {"text": told, "kind": kind, "turns": [int(turn[1])]}
                    if ended := [number for number, old in known.items() if _contradict(old, told)]:
                        fact["ends"] = ended
                    yield fact


def _memories_in(prompt: str) -> dict[int, str]:
    lines = prompt.partition("\nMemories:\n")[2].splitlines()
    return {int(found[1]): found[2] for line in lines if (found := MEMORY.match(line))}


def _contradict(one: str, other: str) -> bool:
    first, second = STATES.match(one), STATES.match(other)
    return bool(first and second and first[1] == second[1] and first[2] != second[2])


def _compressed(texts: Sequence[str]) -> str | None:
    """One text with all that the others say; None if one of them may contradict another."""
    if any(_contradict(one, other) for one, other in combinations(texts, 2)):
        return None
    parts = [part for text in texts for part in text.split("; ")]
    return "; ".join(dict.fromkeys(part.rstrip(".") for part in parts))
