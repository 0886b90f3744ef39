"""What the language model is asked to extract, and how its answer is read.

The prompt is in `prompts/extract.txt`. Turns and known facts have numbers in it, which the answer refers to.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.memory.times import parse_chat_time
from reverie.models.interface import ChatMessage
from reverie.models.tokens import tokens_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reverie.memory.extraction import Extraction
    from reverie.memory.item import MemoryItem

__all__ = [
    "LEAST_TOKENS",
    "Entity",
    "Fact",
    "Passage",
    "answer_schema",
    "halves",
    "known_that_fit",
    "numbers",
    "one_line",
    "pieces",
    "prompt_for",
    "prompt_tokens",
    "read_facts",
    "turn_line",
]

PROMPT = Template(files(__package__).joinpath("prompts/extract.txt").read_text("utf-8"))
MISSION = "The memories help an assistant to know its users."
KINDS = ("fact", "event", "preference")
MOST_FACTS = 50
"""How many facts one answer may have."""
MOST_SOURCES = 50
MOST_TURNS = MOST_FACTS
"""How many turns are read at once: some models write a fact for each."""
LONGEST_FACT = 1000
"""How many characters a fact may have."""
KNOWN_TOKENS = 400
"""About how many tokens the known facts may take in a prompt."""
LEAST_TOKENS = 64
"""A text of this many tokens is not split any further."""
OVERHEAD = 12
"""About how many tokens the number, the speaker and the time of a turn take."""


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A turn, or a part of a long one, as it stands in a prompt."""

    memory_id: str
    """The id of the memory that keeps the whole turn."""
    text: str
    speaker: str = "user"
    said_at: int | None = None
    """When it was said, in epoch milliseconds."""


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person, a place or a thing that a fact is about."""

    name: str
    aliases: tuple[str, ...] = ()


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact as the model has answered it."""

    text: str
    kind: str = "fact"
    turns: tuple[int, ...] = ()
    """The numbers of its turns, from 1."""
    categories: tuple[str, ...] = ()
    entities: tuple[Entity, ...] = ()
    valid_from: str | None = None
    valid_to: str | None = None
    ends: tuple[int, ...] = ()
    """The numbers of known facts that it ends, from 1."""
    same_as: int | None = None
    """The number of a known fact that says the same."""
    info: dict[str, Any] | None = None

    @property
    def held_from(self) -> int | None:
        """Since when it holds, in epoch milliseconds; None if that was not said or cannot be read."""
        return parse_chat_time(self.valid_from) if self.valid_from else None

    @property
    def held_to(self) -> int | None:
        """Until when it held, in the same way; None also if that is before it began."""
        end, begin = parse_chat_time(self.valid_to) if self.valid_to else None, self.held_from
        return None if end is not None and begin is not None and end < begin else end


def answer_schema(extraction: Extraction, turns: int, known: int) -> dict[str, Any]:
    """The JSON schema of an answer about this many turns and known facts."""
    text = {"type": "string", "minLength": 1, "maxLength": LONGEST_FACT}
    moment = {"type": ["string", "null"], "maxLength": 40, "description": "a date, or a date and a time"}
    category: dict[str, Any] = {"type": "string", "maxLength": 60}
    if extraction.categories:
        category = {"enum": list(extraction.categories)}
    entity = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 100},
            "aliases": {"type": "array", "items": {"type": "string", "maxLength": 100}, "maxItems": 5},
        },
        "required": ["name"],
    }
    fact: dict[str, Any] = {
        "text": text,
        "kind": {"enum": list(KINDS)},
        "turns": numbers(turns, at_least=1),
        "categories": {"type": "array", "items": category, "maxItems": 5},
        "entities": {"type": "array", "items": entity, "maxItems": 10},
        "valid_from": moment,
        "valid_to": moment,
    }
    if known:
        fact["ends"] = numbers(known)
        fact["same_as"] = {"type": ["integer", "null"], "minimum": 1, "maximum": known}
    if extraction.schema is not None:
        fact["info"] = extraction.schema
    required = ["text", "kind", "turns"] + (["info"] if extraction.schema is not None else [])
    one = {"type": "object", "properties": fact, "required": required, "additionalProperties": False}
    facts = {"type": "array", "items": one, "maxItems": MOST_FACTS}
    return {"type": "object", "properties": {"facts": facts}, "required": ["facts"]}


def prompt_for(
    extraction: Extraction, passages: Sequence[Passage], known: Sequence[MemoryItem]
) -> tuple[ChatMessage, ...]:
    """The prompt that asks for the facts in some turns."""
    rules = []
    if extraction.categories:
        rules.append(f"- Categories are only: {', '.join(map(one_line, extraction.categories))}.")
    if extraction.include:
        rules.append(f"- Worth remembering is above all: {'; '.join(map(one_line, extraction.include))}.")
    if extraction.exclude:
        rules.append(f"- Never write down: {'; '.join(map(one_line, extraction.exclude))}.")
    text = PROMPT.substitute(
        mission=one_line(extraction.mission or MISSION),
        rules="\n".join(rules),
        known="\n".join(f"{number}. {one_line(item.text)}" for number, item in enumerate(known, 1)) or "none",
        turns="\n".join(turn_line(number, passage) for number, passage in enumerate(passages, 1)),
    )
    return (ChatMessage("user", text),)


def prompt_tokens(extraction: Extraction) -> int:
    """About how many tokens a prompt has besides its turns; servers count the schema, too."""
    (message,) = prompt_for(extraction, [], [])
    schema = msgspec.json.encode(answer_schema(extraction, 1, 1)).decode()
    return tokens_in(message.content) + tokens_in(schema) + KNOWN_TOKENS


def known_that_fit(known: Sequence[MemoryItem]) -> list[MemoryItem]:
    """The known facts that a prompt has room for, the first ones first."""
    fitting: list[MemoryItem] = []
    room = KNOWN_TOKENS
    for item in known:
        tokens = tokens_in(item.text) + OVERHEAD
        if tokens <= room:
            fitting.append(item)
            room -= tokens
    return fitting


def halves(piece: Sequence[Passage]) -> list[list[Passage]]:
    """A piece in two, for a model that has found it too long; empty if it is too short for that."""
    if len(piece) > 1:
        middle = len(piece) // 2
        return [list(piece[:middle]), list(piece[middle:])]
    (passage,) = piece
    tokens = tokens_in(passage.text)
    return [[part] for part in _parts(passage, -(-tokens // 2))] if tokens > LEAST_TOKENS else []


def read_facts(answer: str) -> list[Fact]:
    """The facts of an answer that fits the schema, without blank texts and names."""
    # A JSON schema accepts 1.0 as an integer; the strict decoder does not.
    facts = msgspec.json.decode(answer, type=_Answer, strict=False).facts
    return [
        msgspec.structs.replace(
            fact,
            categories=_not_blank(fact.categories),
            entities=tuple(
                msgspec.structs.replace(entity, aliases=_not_blank(entity.aliases))
                for entity in fact.entities
                if entity.name.strip()
            ),
        )
        for fact in facts
        if fact.text.strip()
    ]


class _Answer(msgspec.Struct):
    facts: list[Fact] = []


def _not_blank(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text.strip())


def pieces(passages: Sequence[Passage], most_tokens: int) -> Iterator[list[Passage]]:
    """Split turns into pieces that fit into one prompt each; a turn that is longer than that is cut up."""
    piece: list[Passage] = []
    size = 0
    for passage in passages:
        for part in _parts(passage, max(1, most_tokens - OVERHEAD)):
            tokens = tokens_in(part.text) + OVERHEAD
            if piece and (size + tokens > most_tokens or len(piece) == MOST_TURNS):
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += tokens
    if piece:
        yield piece


def _parts(passage: Passage, most_tokens: int) -> Iterator[Passage]:
    """A turn in parts of at most `most_tokens` tokens, cut at spaces where there are some."""
    rest = passage.text
    while tokens_in(rest) > most_tokens:
        end = most_tokens  # a character is at most one token
        if rest[: 4 * most_tokens].isascii():
            end = 4 * most_tokens
        space = rest.rfind(" ", end // 2, end)
        end = space if space > 0 else end
        yield msgspec.structs.replace(passage, text=rest[:end])
        rest = rest[end:].lstrip()
    if rest:
        yield msgspec.structs.replace(passage, text=rest)


def turn_line(number: int, passage: Passage) -> str:
    """A turn as a line of a prompt, with its number, its speaker and its time."""
    when = ""
    if passage.said_at is not None:
        with suppress(ValueError, OverflowError, OSError):  # a moment beyond the calendar
            when = datetime.fromtimestamp(passage.said_at / 1000, UTC).strftime(" (%A, %d %B %Y, %H:%M)")
    return f"{number}. {one_line(passage.speaker)}{when}: {one_line(passage.text)}"


def one_line(text: str) -> str:
    """A text in one line, so that no turn can pass for another one."""
    return " ".join(text.split())


def numbers(most: int, *, at_least: int = 0) -> dict[str, Any]:
    """The JSON schema of a list of numbers from 1 to `most`."""
    number = {"type": "integer", "minimum": 1, "maximum": max(1, most)}
    return {"type": "array", "items": number, "minItems": at_least, "maxItems": min(most, MOST_SOURCES)}
