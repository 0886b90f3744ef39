"""Estimating how many tokens a text has, where no tokenizer is at hand."""

from __future__ import annotations

__all__ = ["tokens_in"]


def tokens_in(text: str) -> int:
    """About how many tokens a language model reads in a text."""
    if text.isascii():
        return -(-len(text) // 4)
    wide = sum(1 for letter in text if letter > "\u2e7f")  # Chinese, Japanese, Korean: about one each
    return wide + -(-(len(text) - wide) // 4)
