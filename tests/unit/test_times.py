"""Times in questions and in chat logs."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie.memory.times import interval_of, parse_chat_time

NOW = round(datetime(2023, 8, 16, 12, tzinfo=UTC).timestamp() * 1000)
"""A Wednesday."""


def days(text: str) -> str | None:
    """The interval of a text, such as "2023-08-15 2023-08-16"."""
    interval = interval_of(text, NOW)
    if interval is None:
        return None
    return " ".join(datetime.fromtimestamp(moment / 1000, UTC).date().isoformat() for moment in interval)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did I eat yesterday?", "2023-08-15 2023-08-16"),
        ("the day before yesterday", "2023-08-14 2023-08-15"),
        ("today", "2023-08-16 2023-08-17"),
        ("last week", "2023-08-07 2023-08-14"),
        ("this weekend", "2023-08-19 2023-08-21"),
        ("Two months ago", "2023-06-01 2023-07-01"),
        ("a couple of weeks ago", "2023-07-31 2023-08-07"),
        ("in the last month", "2023-07-16 2023-08-17"),
        ("the past 3 days", "2023-08-14 2023-08-17"),
        ("last Friday", "2023-08-11 2023-08-12"),
        ("on Monday", "2023-08-14 2023-08-15"),
        ("in May 2023", "2023-05-01 2023-06-01"),
        ("in May", "2023-05-01 2023-06-01"),
        ("last August", "2022-08-01 2022-09-01"),
        ("next May", "2024-05-01 2024-06-01"),
        ("December", "2022-12-01 2023-01-01"),
        ("on 7 May", "2023-05-07 2023-05-08"),
        ("on the 7th of October", "2022-10-07 2022-10-08"),
        ("May 7th, 2022", "2022-05-07 2022-05-08"),
        ("2023-05-07", "2023-05-07 2023-05-08"),
        ("2023/5/7", "2023-05-07 2023-05-08"),
        ("in 2022", "2022-01-01 2023-01-01"),
        ("last summer", "2022-06-01 2022-09-01"),
        ("next winter", "2023-12-01 2024-03-01"),
        ("the summer of 2021", "2021-06-01 2021-09-01"),
        ("this quarter", "2023-07-01 2023-10-01"),
        ("last decade", "2010-01-01 2020-01-01"),
        ("between May and July 2023", "2023-05-01 2023-08-01"),
        ("since March", "2023-03-01 2023-08-17"),
        ("after 7 May 2023", "2023-05-08 2023-08-17"),
        ("before June 2023", "0001-01-01 2023-06-01"),
        ("昨天我说了什么", "2023-08-15 2023-08-16"),
        ("上周三", "2023-08-09 2023-08-10"),
        ("上周末", "2023-08-12 2023-08-14"),
        ("上个月", "2023-07-01 2023-08-01"),
        ("去年", "2022-01-01 2023-01-01"),
        ("去年夏天", "2022-06-01 2022-09-01"),
        ("去年十二月", "2022-12-01 2023-01-01"),
        ("三月", "2023-03-01 2023-04-01"),
        ("2023年5月", "2023-05-01 2023-06-01"),
        ("我在2023年5月7日", "2023-05-07 2023-05-08"),
        ("12月25日", "2022-12-25 2022-12-26"),
        ("三天前", "2023-08-13 2023-08-14"),
        ("两个月前", "2023-06-01 2023-07-01"),
        ("最近二十一天", "2023-07-27 2023-08-17"),
        ("先週", "2023-08-07 2023-08-14"),
        ("어제", "2023-08-15 2023-08-16"),
    ],
)
def test_times_in_questions(text: str, expected: str) -> None:
    assert days(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What may I do?",
        "march to the sea",
        "the sun is up",
        "a second",
        "9999-99-99",
        "十三月",
        "$2000",
        "1066",
    ],
)
def test_questions_without_a_time(text: str) -> None:
    assert days(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4:04 pm on 20 January, 2023", "2023-01-20T16:04:00"),
        ("12:15 am on 1 May, 2023", "2023-05-01T00:15:00"),
        ("2023-05-07T14:00:00Z", "2023-05-07T14:00:00"),
        ("2023-05-07T14:00:00+02:00", "2023-05-07T12:00:00"),
        ("2023-05-07 14:00", "2023-05-07T14:00:00"),
        ("2023/05/07", "2023-05-07T00:00:00"),
        ("2023/5/7 14:00", "2023-05-07T14:00:00"),
        ("1683468000", "2023-05-07T14:00:00"),
        ("1683468000000", "2023-05-07T14:00:00"),
        ("1683468000.0", "2023-05-07T14:00:00"),
        ("January 20, 2023 4:04 PM", "2023-01-20T16:04:00"),
        ("Fri, 20 Jan 2023 16:04:05 +0200", "2023-01-20T14:04:05"),
        ("2023年5月7日 下午3点20", "2023-05-07T15:20:00"),
        ("5/7/2023, 9pm", "2023-05-07T21:00:00"),
        ("25/12/2023", "2023-12-25T00:00:00"),
    ],
)
def test_times_in_chat_logs(text: str, expected: str) -> None:
    moment = parse_chat_time(text)
    assert moment is not None
    assert datetime.fromtimestamp(moment / 1000, UTC).isoformat() == f"{expected}+00:00"


@pytest.mark.parametrize("text", ["", "soon", "yesterday", "12", "25:61 on 1 May, 2023", "31 February 2023"])
def test_chat_times_that_cannot_be_understood(text: str) -> None:
    assert parse_chat_time(text) is None


PIECES = (
    "last next past this week month year 0 7 31 99 2023 may march monday summer ago in since before between "
    "and - / 年 月 日 前 上周 去年 三 十 天 两个月 pm : + 9999 weeks decades"
)
pieces = st.sampled_from(PIECES.split())


@given(
    text=st.one_of(
        st.text(), st.lists(pieces, max_size=12).map(" ".join), st.lists(pieces, max_size=12).map("".join)
    ),
    reference=st.integers(),
)
def test_nothing_raises_and_intervals_are_not_empty(text: str, reference: int) -> None:
    interval = interval_of(text, reference)
    assert interval is None or interval[0] < interval[1]
    assert interval == interval_of(text, reference)
    moment = parse_chat_time(text)
    assert moment is None or isinstance(moment, int)


@pytest.mark.parametrize("piece", ["1 ", "may ", "2023年", "last ", "十", " "])
def test_long_texts_are_read_in_part(piece: str) -> None:
    start = time.process_time()
    interval_of(piece * 100_000, NOW)
    parse_chat_time(piece * 100_000)
    assert time.process_time() - start < 0.2
