"""Preferences in what was said: by the language model, and by a few careful rules where there is none.

The rules find only what somebody says of themselves in plain words, such as "I don't like tea", in English
and Chinese. They keep the sentence word for word.
"""

# ruff: noqa: RUF001  Chinese punctuation, and both apostrophes that people type
from __future__ import annotations

import re
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.handlers.extraction import LONGEST_FACT, MOST_FACTS, numbers, one_line, turn_line
from reverie.models.interface import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reverie.handlers.extraction import Passage
    from reverie.memory.item import MemoryItem

__all__ = ["Preference", "Stated", "preference_prompt", "preference_schema", "read_preferences", "stated_in"]

PROMPT = Template(files(__package__).joinpath("prompts/preferences.txt").read_text("utf-8"))


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """A preference as the model has answered it."""

    text: str
    explicit: bool
    confidence: float
    turns: tuple[int, ...] = ()
    """The numbers of the turns that show it, from 1."""
    replaces: tuple[int, ...] = ()
    """The numbers of known preferences that it contradicts, from 1."""
    same_as: int | None = None
    """The number of a known preference that says the same."""


class _Answer(msgspec.Struct):
    preferences: list[Preference] = []


def preference_schema(turns: int, known: int) -> dict[str, Any]:
    """The JSON schema of an answer about this many turns and known preferences."""
    one: dict[str, Any] = {
        "text": {"type": "string", "minLength": 1, "maxLength": LONGEST_FACT},
        "explicit": {"type": "boolean"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "turns": numbers(turns, at_least=1),
    }
    required = list(one)
    if known:
        one["replaces"] = numbers(known)
        one["same_as"] = {"type": ["integer", "null"], "minimum": 1, "maximum": known}
    item = {"type": "object", "properties": one, "required": required, "additionalProperties": False}
    listed = {"type": "array", "items": item, "maxItems": MOST_FACTS}
    return {"type": "object", "properties": {"preferences": listed}, "required": ["preferences"]}


def preference_prompt(passages: Sequence[Passage], known: Sequence[MemoryItem]) -> tuple[ChatMessage, ...]:
    """The prompt that asks for the preferences in some turns."""
    text = PROMPT.substitute(
        known="\n".join(f"{number}. {one_line(item.text)}" for number, item in enumerate(known, 1)) or "none",
        turns="\n".join(turn_line(number, passage) for number, passage in enumerate(passages, 1)),
    )
    return (ChatMessage("user", text),)


def read_preferences(answer: str) -> list[Preference]:
    """The preferences of an answer that fits the schema, without blank ones."""
    # A JSON schema accepts 1.0 as an integer; the strict decoder does not.
    found = msgspec.json.decode(answer, type=_Answer, strict=False).preferences
    return [one for one in found if one.text.strip()]


class Stated(NamedTuple):
    """A preference that somebody has said in plain words."""

    text: str
    """The sentence, word for word."""
    about: str
    """What is liked, or always to be done, without differences of case and spaces."""
    liked: bool
    """False: it is disliked, or never to be done."""


SENTENCES = re.compile(r"[^.!?;。！？；\n]+[.!?;。！？；]*")
OPENING = r"(?:(?:well|so|also|and|but|oh|ok|okay|yes|no|actually|honestly|personally|by the way)[,\s]+)*"
ADVERBS = r"(?:(?:really|also|still|usually|generally|absolutely|strongly|just|now|do|very much)\s+)*"
LIKING = r"(?:like|love|enjoy|prefer)"
NOT = r"(?:do not|don['’]t|no longer|never)"
CHINESE_ADVERBS = (
    r"(?:真的|其实|其實|一直|从来|從來|现在|現在|都|也|还|還|很|更|最|比较|比較|非常|特别|特別)*"
)
RULES = [
    (rf"{OPENING}i {ADVERBS}{NOT} {ADVERBS}{LIKING} (?P<about>.+)", "like", False),
    (rf"{OPENING}i {ADVERBS}(?:dislike|hate|can['’]t stand|cannot stand) (?P<about>.+)", "like", False),
    (rf"{OPENING}i {ADVERBS}{LIKING} (?P<about>.+)", "like", True),
    (rf"{OPENING}please always (?P<about>.+)", "always", True),
    (rf"{OPENING}please never (?P<about>.+)", "always", False),
    (
        rf"我{CHINESE_ADVERBS}(?:不太?喜[欢歡]|不再喜[欢歡]|不[爱愛](?=[吃喝看听聽玩用])|[讨討][厌厭]|受不了)(?P<about>.+)",
        "like",
        False,
    ),
    (
        rf"我{CHINESE_ADVERBS}(?:喜[欢歡]|偏好|偏[爱愛]|[爱愛](?=[吃喝看听聽玩用]))(?P<about>.+)",
        "like",
        True,
    ),
    (r"[请請](?:你)?(?:[永][远遠]不要|[绝絕]不要|不要再|[别別]再)(?P<about>.+)", "always", False),
    (r"[请請](?:你)?(?:[总總]是|始[终終]|一直|[务務]必|永[远遠])(?P<about>.+)", "always", True),
]
"""Pattern of a whole sentence, what it is about, and whether that is liked. The first that fits counts."""
PATTERNS = [(re.compile(pattern, re.IGNORECASE), kind, liked) for pattern, kind, liked in RULES]
TRAILING = re.compile(
    r"(?:,? (?:any ?more|any longer|at all|very much|so much|a lot|too|either|now|please))+$|了$"
)
UNCLEAR = re.compile(
    r"(?:it|that|this|these|those|them|him|her|you|your|how|what|where|when|who|to think|to say|the way"
    r"|这|那|它|他|她|你|這)\b"
)
"""How something begins that is clear only to those who were there."""


def stated_in(text: str) -> Iterator[Stated]:
    """The preferences that somebody states of themselves. A question states none."""
    for found in SENTENCES.finditer(text):
        sentence = found[0].strip()
        if not 0 < len(sentence) <= LONGEST_FACT or sentence[-1] in "?？":
            continue
        words = " ".join(sentence.rstrip(".!;。！；").split())
        for pattern, kind, liked in PATTERNS:
            match = pattern.fullmatch(words)
            if match is not None:
                about = TRAILING.sub("", match["about"].casefold()).strip(" ,，、")
                if about and not UNCLEAR.match(about):
                    yield Stated(sentence, f"{kind}:{about}", liked)
                break
