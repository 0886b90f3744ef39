"""The words of the text index: every script, any text, long queries."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.memory.words import (
    LONGEST_WORD,
    index_words,
    query_words,
    text_for_index,
    text_for_vector,
    word_weight,
)


def words_of(query: str) -> list[str]:
    return query_words(query, 1000)[0]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("I moved to Lisbon", "who is moving?"),
        ("Caffè in Zürich", "cafe zurich"),
        ("cafe\u0301", "café"),
        ("the café's opening hours", "when do cafés open?"),
        ("我住在里斯本的海边", "里斯本在哪里"),
        ("我住在里斯本的海边", "海"),
        ("昨日は東京に行きました", "東京"),
        ("나는 서울에 산다", "서울"),
        ("ฉันอยู่ที่กรุงเทพ", "กรุงเทพ"),
        ("मैं दिल्ली में रहता हूँ", "दिल्ली"),
        ("\uff26\uff55\uff4c\uff4c width", "full"),
        ("the year 2026", "2026"),
        ("The Who", "the who"),
    ],
)
def test_a_query_shares_words_with_the_text_that_answers_it(text: str, query: str) -> None:
    assert set(index_words(text)) & set(words_of(query))


def test_common_words_are_left_out_unless_nothing_else_is_there() -> None:
    assert index_words("What did she say about the tea?") == ["sai", "tea"]
    assert index_words("it's me") == ["it", "s", "me"]
    assert words_of("What is it?") == ["what", "is", "it"]


def test_words_whose_stem_is_a_common_word_are_kept() -> None:
    assert index_words("we used one and ate it") == ["us", "on", "at"]


def test_chinese_is_split_into_characters_and_pairs() -> None:
    assert index_words("喝绿茶") == ["喝", "绿", "茶", "喝绿", "绿茶"]
    assert words_of("喝绿茶") == ["喝绿", "绿茶", "喝", "绿", "茶"]
    assert word_weight("茶") < word_weight("绿茶") == word_weight("tea") == word_weight("7") == 1


def test_words_of_two_scripts_are_kept_apart() -> None:
    assert index_words("我用Python写代码")[:4] == ["用", "我用", "python", "写"]


@given(text=st.text(st.characters(), max_size=300))
def test_any_text_can_be_indexed_and_asked(text: str) -> None:
    words, later = query_words(text, 1000)
    assert later == 0
    assert set(words) == set(index_words(text))
    assert len(set(words)) == len(words)
    assert all(word and len(word) <= LONGEST_WORD and not word.isspace() for word in words)


@pytest.mark.parametrize("text", ["\ud800abc", "a\0b", "😀", "", "\x00", "?!", '"', "\u0301"])
def test_odd_texts_are_indexed(text: str) -> None:
    assert isinstance(index_words(text), list)


def test_a_very_long_word_is_cut() -> None:
    assert index_words("x" * 1_000_000) == ["x" * LONGEST_WORD]


def test_the_first_distinct_words_of_a_query_are_searched_for() -> None:
    assert query_words("red tea red cup", 3) == (["red", "tea", "cup"], 0)
    assert query_words("red tea red cup four five", 2) == (["red", "tea"], 3)
    assert query_words("里斯本", 2) == (["里斯", "斯本"], 3)


@pytest.mark.parametrize("text", ["word ", "里", "\ufdfa", "a b "])
def test_only_the_beginning_of_a_very_long_query_is_read(text: str) -> None:
    query = text * 300_000
    start = time.process_time()
    words, later = query_words(query, 50)
    assert time.process_time() - start < 0.2
    assert len(words) <= 50
    assert later > 1000


def test_words_that_were_not_read_are_counted_by_spaces() -> None:
    query = " ".join(f"w{number}" for number in range(100_000))
    words, later = query_words(query, 100)
    assert len(words) == 100
    assert later == 100_000 - 100


def test_every_thread_has_its_own_tokenizer() -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(index_words("walking"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["walk"]] * 4


def test_day_speaker_and_title_are_indexed_with_the_text() -> None:
    text = text_for_index("green tea", speaker="Ann", when=1_683_468_000_000, title="Drinks", others=["Uji"])
    assert text == "7 May 2023\nAnn\nDrinks\ngreen tea\nUji"
    assert text_for_index("green tea") == "green tea"
    assert text_for_index("green tea", when=10**30) == "green tea"
    assert text_for_vector("green tea", speaker="Ann", title="Drinks") == "Ann: Drinks\ngreen tea"
    assert text_for_vector("green tea") == "green tea"
