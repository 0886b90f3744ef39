"""The names of speakers in a question: they decide whose words are looked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reverie.memory.words import STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["names_in", "strip_names"]

_WORD = re.compile(r"\w+")
_POSSESSIVE = r"(?:['\u2019]s\b|['\u2019](?!\w))?"


def names_in(question: str, known_names: Iterable[str]) -> set[str]:
    """The known names that a question has, in full or by the first word of the name.

    Names that are also common words, such as Will and May, count where they are capitalised inside the
    question.
    """
    words = [match[0] for match in _WORD.finditer(question)]
    folded = {word.casefold() for word in words}
    capitalised = {word.casefold() for word in words[1:] if word[0].isupper()}
    found: set[str] = set()
    for name in known_names:
        parts = [part.casefold() for part in _WORD.findall(name)]
        if not parts:
            continue
        if not parts[0].isascii():  # scripts without spaces: the name is a part of a longer run
            if name.casefold() in question.casefold():
                found.add(name)
        elif parts[0] in (capitalised if parts[0] in STOP_WORDS else folded):
            found.add(name)
    return found


def strip_names(question: str, names: Collection[str]) -> str:
    """The question without the names, for the dense query; the question itself if nothing would be left."""
    variants = {variant for name in names for variant in (name, *_WORD.findall(name)[:1]) if variant}
    if not variants:
        return question
    pattern = "|".join(re.escape(variant) for variant in sorted(variants, key=len, reverse=True))
    boundary = r"\b" if pattern.isascii() else ""
    text = re.sub(f"{boundary}(?:{pattern}){boundary}{_POSSESSIVE}", " ", question, flags=re.IGNORECASE)
    text = " ".join(text.split())
    return text if _WORD.search(text) else question
