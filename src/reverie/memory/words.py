"""Split a text into the words of the text index, the same way for every store and every script.

Words are lower case, without diacritics, and reduced to their stem; words that are in nearly every text are
left out. Scripts without spaces between words are indexed by single characters and by pairs of neighbouring
characters: a pair says nearly as much as a word, and the single characters answer a query of one character.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Tokenizer = Callable[[str], list[str]]

__all__ = [
    "STOP_WORDS",
    "TOKENIZER",
    "index_words",
    "plain_words",
    "query_words",
    "text_for_index",
    "text_for_vector",
    "word_weight",
]

TOKENIZER = "words-2"
"""The identity of the rules below: an index that was built with other rules is built anew."""
LONGEST_WORD = 64
"""How many characters of a word count: keys and encoded data are one word of any length."""
CHARACTERS_PER_WORD = 32
"""How many characters of a query are read for each word that may be searched for."""
FEWEST_CHARACTERS = 1024
"""How many characters of a query are read at least."""
SINGLE_CHARACTER_WEIGHT = 0.3
"""What a single character of a script without spaces weighs, compared with a pair or a word."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Japanese, Chinese
    "\uac00-\ud7af\U00020000-\U0003134f"  # Korean, rare Chinese
)
_RUN = re.compile(f"[{_UNSPACED}]+")
_PUNCTUATION = re.compile("[\u0e2f\u0e3f\u0e4f\u0e5a\u0e5b\u104a-\u104f\u17d4-\u17da\u30a0\u30fb]+")
"""Marks inside the ranges above that are no part of a word."""
_PLAIN = re.compile(f"[{_UNSPACED}]+|[^\\W{_UNSPACED}]+")
_SPACES = re.compile(r"\s+")

_ENGLISH = """
a about again all also am an and any are aren as at be because been being but by can cannot could couldn d
did didn do does doesn doing don done during each either else ever few for from further get gets getting go
goes going gonna got had hadn has hasn have haven having he her here hers herself him himself his how i if in
into is isn it its itself just let like ll m made make makes many may me might more most much must my myself
no nor not of off ok on once only or other others our ours ourselves out over own quite re really s same
shall she should shouldn so some such t than that the their theirs them themselves then there these they this
those though through to too under until up us ve very wanna was wasn we well were weren what when where
whether which while who whom whose why will with won would wouldn yeah yes yet you your yours yourself
"""
_CHINESE = """
的 了 着 过 吗 呢 吧 啊 呀 嘛 是 在 有 和 与 及 或 也 都 就 还 又 很 我 你 您 他 她 它 们 这 那 哪 谁 啥 么
之 把 被 给 对 从 到 为 以 而 但 不 没 个 些
什么 怎么 怎样 为什 哪里 哪儿 哪个 哪些 多少 几个 是谁 是否 可以 我们 你们 他们 她们 这个 那个 这些 那些
"""
_JAPANESE = """
は が を に で と も の へ や か ね よ な た て だ し い う る す
ます です した して いる ある から まで
"""
_KOREAN = "은 는 이 가 을 를 의 에 도 로 와 과 에서"
STOP_WORDS = frozenset(f"{_ENGLISH} {_CHINESE} {_JAPANESE} {_KOREAN}".split())
"""The words, characters and pairs that are left out, before stemming."""

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_thread = threading.local()


def index_words(text: str) -> list[str]:
    """The words of a text in their order, for the index. A text of common words alone keeps them."""
    return _split(text, STOP_WORDS) or _split(text, frozenset())


def query_words(query: str, most: int) -> tuple[list[str], int]:
    """The first `most` distinct words of a query, and how many words come after them.

    Only the beginning of a very long query is read: the words of the rest are counted by the spaces between
    them.
    """
    end = max(FEWEST_CHARACTERS, CHARACTERS_PER_WORD * most)
    beginning, later = query, 0
    if len(query) > end:
        space = query.rfind(" ", 0, end)
        end = space if space > end // 2 else end
        beginning = query[:end]
        later = max(query.count(" ", end), (len(query) - end) // CHARACTERS_PER_WORD)
    words = list(dict.fromkeys(index_words(beginning)))
    words.sort(key=_is_single_character)  # pairs and words first, otherwise in order
    return words[:most], later + max(0, len(words) - most)


def plain_words(query: str, most: int) -> list[str]:
    """The first words of a query as they are written, for an index with a tokenizer of its own.

    A pair of characters of a script without spaces is written as two words. At least `most` words come, if
    the query has so many.
    """
    text = _PUNCTUATION.sub(" ", unicodedata.normalize("NFC", query[: CHARACTERS_PER_WORD * max(1, most)]))
    words: dict[str, None] = {}
    for match in _PLAIN.finditer(text):
        run = match[0]
        if not _RUN.match(run) or len(run) == 1:
            words[run.lower()] = None
        else:
            words.update(dict.fromkeys(map(" ".join, pairwise(run))))
    return [word for word in words if word not in STOP_WORDS] or list(words)


def word_weight(word: str) -> float:
    """How much a word of a query counts: a single character of a script without spaces says little."""
    return SINGLE_CHARACTER_WEIGHT if _is_single_character(word) else 1.0


def text_for_index(
    text: str,
    *,
    speaker: str | None = None,
    when: int | None = None,
    title: str | None = None,
    others: Iterable[str] = (),
) -> str:
    """The text to index for an item: its own, its title, its other texts, who said it and on which day."""
    parts = [_date(when), speaker or "", title or "", text, *others]
    return "\n".join(part for part in parts if part)


def text_for_vector(text: str, *, speaker: str | None = None, title: str | None = None) -> str:
    """The text to embed for an item: its own, its title and who said it."""
    whole = f"{title}\n{text}" if title and title not in text else text
    return f"{speaker}: {whole}" if speaker else whole


def _date(when: int | None) -> str:
    """The day of a moment in epoch milliseconds, such as "7 May 2023"; empty for years without a calendar."""
    if when is None:
        return ""
    try:
        day = datetime.fromtimestamp(when / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _split(text: str, without: frozenset[str]) -> list[str]:
    """The words of a text, without some."""
    if text.isascii():
        return _stems(text, without)
    normal = unicodedata.normalize("NFKC", text)
    if len(normal) > 2 * len(text):  # a few characters become whole sentences
        normal = unicodedata.normalize("NFC", text)
    text = _PUNCTUATION.sub(" ", normal)
    words: list[str] = []
    end = 0
    for match in _RUN.finditer(text):
        words += _stems(text[end : match.start()], without)
        run, end = match[0], match.end()
        words += [character for character in run if character not in without]
        words += [pair for pair in map("".join, pairwise(run)) if pair not in without]
    return words + _stems(text[end:], without)


def _stems(text: str, without: frozenset[str]) -> list[str]:
    """The stems of the words of a text in a script with spaces.

    Words are left out before they are stemmed, because "used" has the stem of "us", and "ate" that of "at".
    """
    if not text or text.isspace():
        return []
    plain, porter = _tokenizers()
    words = [word[:LONGEST_WORD] for word in plain(text) if word and word not in without]
    return porter(" ".join(words)) if words else []


def _tokenizers() -> tuple[_Tokenizer, _Tokenizer]:
    """The FTS5 tokenizers of this thread, without stems and with: threads must not share a connection."""
    tokenizers: tuple[_Tokenizer, _Tokenizer] | None = getattr(_thread, "tokenizers", None)
    if tokenizers is None:
        _thread.connection = apsw.Connection(":memory:")
        options = ["remove_diacritics", "2", "categories", "L* N* Co Mn Mc"]
        plain = _thread.connection.fts5_tokenizer("unicode61", options)
        porter = _thread.connection.fts5_tokenizer("porter", ["unicode61", *options])
        tokenizers = _thread.tokenizers = (partial(_tokenize, plain), partial(_tokenize, porter))
    return tokenizers


def _tokenize(tokenizer: apsw.FTS5Tokenizer, text: str) -> list[str]:
    utf8 = text.encode("utf-8", "replace")
    reason = apsw.FTS5_TOKENIZE_DOCUMENT
    words = tokenizer(utf8, reason, None, include_offsets=False, include_colocated=False)
    return cast("list[str]", words)


def _is_single_character(word: str) -> bool:
    return len(word) == 1 and _RUN.match(word) is not None
