"""Splitting text into words that a text index can find, in every script.

Scripts that do not put spaces between words are indexed by single characters and searched by pairs of
neighbours, so that a query finds a part of a sentence.
"""

from __future__ import annotations

import re
from itertools import islice, pairwise

__all__ = ["index_words", "query_phrases"]

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_TOKEN = re.compile(f"[{_UNSPACED}]+|[^\\W{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]").match


def index_words(text: str) -> str:
    """The words of a text, separated by spaces."""
    return " ".join(" ".join(token) if _IS_UNSPACED(token) else token for token in _TOKEN.findall(text))


def query_phrases(query: str, most: int) -> tuple[list[str], int]:
    """The first `most` distinct words of a query, each as an FTS5 phrase, and how many words come after.

    The words that come after are counted by the spaces between them.
    """
    phrases: dict[str, str] = {}
    later = 0
    for match in _TOKEN.finditer(query):
        token = match[0]
        if _IS_UNSPACED(token) and len(token) > 1:
            first = token[: most + 2]
            phrases.update((pair, pair) for pair in map(" ".join, pairwise(first)))
            later = len(token) - len(first)
        else:
            phrases.setdefault(token.lower(), token)
        if len(phrases) > most:
            later += len(phrases) - most + query.count(" ", match.end())
            break
    return [f'"{phrase}"' for phrase in islice(phrases.values(), most)], later
