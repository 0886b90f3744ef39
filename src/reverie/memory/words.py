"""Splitting text into words that a text index can find, in every script.

Scripts that do not put spaces between words are indexed by single characters and searched by pairs of
neighbours, so that a query finds a part of a sentence.
"""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["index_words", "match_expression"]

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_TOKEN = re.compile(f"[{_UNSPACED}]+|[^\\W{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]").match


def index_words(text: str) -> str:
    """The words of a text, separated by spaces."""
    return " ".join(" ".join(token) if _IS_UNSPACED(token) else token for token in _TOKEN.findall(text))


def match_expression(query: str) -> str:
    """An FTS5 expression for all texts that share a word with the query; empty if the query has no words."""
    phrases = []
    for token in _TOKEN.findall(query):
        if _IS_UNSPACED(token) and len(token) > 1:
            phrases += [f"{left} {right}" for left, right in pairwise(token)]
        else:
            phrases.append(token)
    return " OR ".join(f'"{phrase}"' for phrase in dict.fromkeys(phrases))
