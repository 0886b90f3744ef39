"""Understand the times that questions speak of, and the times that chat logs write.

Everything is in UTC unless a text names its zone. Nothing here raises: a text that says nothing about time,
or something impossible, gives None.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["interval_of", "parse_chat_time"]

LONGEST = 2000
"""How many characters of a text are read."""

_Days = tuple[date, date]
"""The first day, and the day after the last one."""


def _numbered(names: str, first: int = 0) -> dict[str, int]:
    """The number of each name; names of the same number are separated by a space, others by a bar."""
    return {name: number for number, same in enumerate(names.split("|"), first) for name in same.split()}


def _any_of(names: Iterable[str]) -> str:
    """A pattern that finds the longest of the names."""
    return "|".join(sorted(names, key=len, reverse=True))


_MONTHS = _numbered(
    "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sept sep"
    "|october oct|november nov|december dec",
    first=1,
)
_WEEKDAYS = _numbered("monday|tuesday|wednesday|thursday|friday|saturday|sunday")
_SEASONS = {
    "spring": 3,
    "summer": 6,
    "autumn": 9,
    "fall": 9,
    "winter": 12,
    "春": 3,
    "夏": 6,
    "秋": 9,
    "冬": 12,
}
"""The first month of each season; winter ends in the year after."""
_NUMBERS = _numbered(
    "|a an one|two couple|three few|four several|five|six|seven|eight|nine|ten|eleven|twelve"
)
_DIGITS = {digit: number for number, digit in enumerate("〇一二三四五六七八九")} | {"零": 0, "两": 2}

_MONTH = "(?P<month>" + _any_of(_MONTHS) + r")\b\.?"
_SURE_MONTH = _MONTH.replace("|may|", "|").replace("|march|", "|").replace("|mar|", "|")
_COUNT = r"(?P<count>\d{1,4}|" + _any_of(_NUMBERS) + ")"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_UNIT = "(?P<unit>day|week|weekend|fortnight|month|quarter|year|decade)"
_SEASON = "(?P<season>spring|summer|autumn|fall|winter)"
_WEEKDAY = "(?P<weekday>" + "|".join(_WEEKDAYS) + ")"
_CHINESE_NUMBER = r"(?:\d{1,4}|[零〇一二两三四五六七八九十]{1,3})"
_CHINESE_DAY = f"(?P<number>{_CHINESE_NUMBER})月份?(?:(?P<day>{_CHINESE_NUMBER})[日号號])?"
_CHINESE_YEAR = r"(?:(?P<year>(?:19|20)\d\d)年|(?P<relative>今年|去年|前年|明年|昨年|来年))"


def interval_of(text: str, reference: int) -> tuple[int, int] | None:
    """The time that a text speaks of, from and to (exclusive) in epoch milliseconds; None: it names none.

    `reference` is the moment that "yesterday" is counted from. A month or day without a year is the last one
    before that moment. Of several times the first counts, except for "between … and …".
    """
    text = unicodedata.normalize("NFKC", text[:LONGEST])[:LONGEST].lower()
    try:
        today = datetime.fromtimestamp(reference / 1000, UTC).date()
        found = _find(text, today)
        if not found:
            return None
        start, end, at = found[0]
        lead = text[max(0, at - 12) : at]
        if len(found) > 1 and re.search(r"\b(?:between|from)\s+(?:the\s+)?$", lead):
            start, end = min(start, found[1][0]), max(end, found[1][1])
        elif re.search(r"\b(?:since|after)\s+(?:the\s+)?$", lead):
            start, end = (end if "after" in lead else start), max(end, today + timedelta(days=1))
        elif re.search(r"\b(?:before|until|till)\s+(?:the\s+)?$", lead):
            start, end = date(1, 1, 1), start
        return (_epoch(start), _epoch(end)) if start < end else None
    except (ValueError, OverflowError, OSError):
        return None


def parse_chat_time(text: str) -> int | None:
    """The moment that a chat log writes for a turn, in epoch milliseconds; None: it cannot be understood.

    ISO 8601, epoch seconds, milliseconds or microseconds, and dates with the name of the month and a time of
    day before or after are understood.
    """
    text = unicodedata.normalize("NFKC", text[:200]).strip()
    try:
        if re.fullmatch(r"\d{9,16}(?:\.\d{1,9})?", text, re.ASCII):
            return _epoch_number(float(text))
        try:
            moment = datetime.fromisoformat(re.sub(r"^(\d{4})[/.](\d\d?)[/.](\d\d?)", _iso_day, text))
        except ValueError:
            return _free_time(text.lower())
        return _milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError, OSError):
        return None


def _iso_day(match: re.Match[str]) -> str:
    return f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}"


def _epoch_number(number: float) -> int:
    """Epoch seconds, milliseconds or microseconds, told apart by their size, as milliseconds."""
    return round(number * 1000 if number < 1e11 else number if number < 1e14 else number / 1000)


def _free_time(text: str) -> int | None:
    """The moment of a text with a whole date, and perhaps a time of day and a zone."""
    for pattern, read in _PATTERNS[:_WHOLE_DATES]:
        match = pattern.search(text)
        if match:
            day, _ = read(match, date.min)
            break
    else:
        return None
    rest = f"{text[: match.start()]} {text[match.end() :]}"
    hour = minute = second = 0
    clock = _CLOCK.search(rest)
    if clock:
        half = clock["half"] or clock["only"] or clock["before"] or ""
        hour, minute, second = int(clock["hour"]), int(clock["minute"] or 0), int(clock["second"] or 0)
        if half:
            late = half[0] == "p" or half in ("下午", "晚上", "午後")
            hour = hour % 12 + (12 if late else 0) if hour <= 12 else hour
    zone = _ZONE.search(rest)
    offset = timedelta()
    if zone:
        offset = timedelta(hours=int(zone["hours"]), minutes=int(zone["minutes"])) * (
            1 if zone["sign"] == "+" else -1
        )
    return _milliseconds(
        datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=timezone(offset))
    )


_CLOCK = re.compile(
    r"(?P<before>上午|下午|晚上|早上|午前|午後)?\s*(?<!\d)(?P<hour>\d{1,2})"
    r"(?:(?:[:时点時](?P<minute>\d\d)?(?:[:分](?P<second>\d\d)?)?)\s*(?P<half>[ap]\.?m\b)?|\s*(?P<only>[ap])\.?m\b)"
)
_ZONE = re.compile(r"(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)\b")


def _milliseconds(moment: datetime) -> int:
    """Epoch milliseconds; `OverflowError` for a moment that has no date in UTC."""
    return round((moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))


def _epoch(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400_000


def _find(text: str, today: date) -> list[tuple[date, date, int]]:
    """The first times of a text in their order, with the place where each begins; at most two."""
    found: list[tuple[int, int, int, _Days]] = []
    for pattern, read in _PATTERNS:
        for count, match in enumerate(pattern.finditer(text)):
            if count == 8:
                break
            start, end = match.span()
            if any(start < other_end and other_start < end for other_start, other_end, *_ in found):
                continue
            try:
                days = read(match, today)
            except (ValueError, OverflowError):
                continue
            named = match.start("month") if read is _named_month else start
            found.append((start, end, named, days))
    return [(*days, named) for _, _, named, days in sorted(found)[:2]]


# -- calendar ----------------------------------------------------------------------------------------


_DAYS_OF = {"day": 1, "week": 7, "weekend": 7, "fortnight": 14}
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12, "decade": 120}


def _days(first: date, count: int = 1) -> _Days:
    return first, first + timedelta(days=count)


def _months(year: int, month: int, count: int = 1) -> _Days:
    """Months from a month on; the month may be outside 1 to 12."""
    start, end = year * 12 + month - 1, year * 12 + month - 1 + count
    return date(start // 12, start % 12 + 1, 1), date(end // 12, end % 12 + 1, 1)


def _last_month(month: int, today: date) -> _Days:
    """The last month of this name that has begun."""
    return _months(today.year - (month > today.month), month)


def _last_day(month: int, day: int, today: date) -> _Days:
    """The last day of this date that has begun."""
    this_year = (month, day) <= (today.month, today.day)
    return _days(date(today.year - (not this_year), month, day))


def _season(first_month: int, year: int) -> _Days:
    return _months(year, first_month, 3)


def _unit(unit: str, steps: int, today: date) -> _Days:
    """The day, week, month … that is `steps` from the present one."""
    if unit in _DAYS_OF:
        first = today if unit == "day" else today - timedelta(days=today.weekday())
        first += timedelta(days=steps * _DAYS_OF[unit])
        return _days(first + timedelta(days=5), 2) if unit == "weekend" else _days(first, _DAYS_OF[unit])
    months = _MONTHS_OF[unit]
    passed = today.year * 12 + today.month - 1
    return _months(0, passed - passed % months + steps * months + 1, months)


def _weekday(number: int, steps: int, today: date) -> _Days:
    """A day of the week that is `steps` from the present week; 0: the last one that has begun."""
    if steps:
        return _days(today - timedelta(days=today.weekday()) + timedelta(weeks=steps, days=number))
    return _days(today - timedelta(days=(today.weekday() - number) % 7))


def _span(unit: str, count: int, today: date) -> _Days:
    """The last `count` days, weeks … up to and with today."""
    tomorrow = today + timedelta(days=1)
    if unit in _DAYS_OF:
        return tomorrow - timedelta(days=count * _DAYS_OF[unit]), tomorrow
    months = count * _MONTHS_OF[unit]
    first, _ = _months(today.year, today.month - months)
    return first + timedelta(days=min(today.day, 28) - 1), tomorrow


# -- English -----------------------------------------------------------------------------------------


def _number(text: str) -> int:
    return _NUMBERS[text] if text in _NUMBERS else int(text)


def _ymd(match: re.Match[str], _today: date) -> _Days:
    return _days(date(int(match["year"]), int(match["number"]), int(match["day"])))


def _american(match: re.Match[str], _today: date) -> _Days:
    month, day = int(match["number"]), int(match["day"])
    return _days(date(int(match["year"]), *((month, day) if month <= 12 else (day, month))))


def _dmy(match: re.Match[str], _today: date) -> _Days:
    return _days(date(int(match["year"]), _MONTHS[match["month"]], int(match["day"])))


def _dm(match: re.Match[str], today: date) -> _Days:
    return _last_day(_MONTHS[match["month"]], int(match["day"]), today)


def _my(match: re.Match[str], _today: date) -> _Days:
    return _months(int(match["year"]), _MONTHS[match["month"]])


def _named_month(match: re.Match[str], today: date) -> _Days:
    month, which = _MONTHS[match["month"]], match["which"]
    if which == "last" and month == today.month:
        return _months(today.year - 1, month)
    return (
        _months(today.year + (month <= today.month), month) if which == "next" else _last_month(month, today)
    )


def _ago(match: re.Match[str], today: date) -> _Days:
    return _unit(match["unit"], -_number(match["count"]), today)


def _past(match: re.Match[str], today: date) -> _Days:
    return _span(match["unit"], _number(match["count"]) if match["count"] else 1, today)


_STEPS = {"last": -1, "previous": -1, "past": -1, "this": 0, "current": 0, "next": 1, "coming": 1}


def _relative(match: re.Match[str], today: date) -> _Days:
    return _unit(match["unit"], _STEPS[match["which"]], today)


def _relative_season(match: re.Match[str], today: date) -> _Days:
    """A season: the last summer is the last one that has ended, this summer is the one of this year."""
    month, which = _SEASONS[match["season"]], match["which"]
    year = today.year
    if which in ("last", "past", "previous"):
        while _season(month, year)[1] > today:
            year -= 1
    elif which in ("next", "coming"):
        while _season(month, year)[0] <= today:
            year += 1
    return _season(month, year)


def _season_of_year(match: re.Match[str], _today: date) -> _Days:
    return _season(_SEASONS[match["season"]], int(match["year"]))


def _relative_weekday(match: re.Match[str], today: date) -> _Days:
    return _weekday(_WEEKDAYS[match["weekday"]], _STEPS.get(match["which"], 0), today)


_NEAR_DAYS = {
    "the day before yesterday": -2, "yesterday": -1, "last night": -1, "today": 0, "tonight": 0,
    "this morning": 0, "this afternoon": 0, "this evening": 0, "tomorrow": 1,
    "大前天": -3, "前天": -2, "昨天": -1, "昨晚": -1, "昨日": -1, "今天": 0, "今晚": 0, "今早": 0, "今日": 0,
    "明天": 1, "明日": 1, "后天": 2, "一昨日": -2, "그제": -2, "어제": -1, "오늘": 0, "내일": 1,
}  # fmt: skip


def _near_day(match: re.Match[str], today: date) -> _Days:
    return _unit("day", _NEAR_DAYS[match[0]], today)


def _year(match: re.Match[str], _today: date) -> _Days:
    return _months(int(match["year"]), 1, 12)


# -- Chinese, Japanese, Korean -----------------------------------------------------------------------


def _chinese_number(text: str) -> int:
    """A number up to 99 in Chinese characters, or digits."""
    if text.isdecimal():
        return int(text)
    tens, ten, ones = text.partition("十")
    if not ten:
        return int("".join(str(_DIGITS[digit]) for digit in text))
    return (_DIGITS[tens] if tens else 1) * 10 + (_DIGITS[ones] if ones else 0)


_CHINESE_YEARS = {"今年": 0, "去年": -1, "昨年": -1, "前年": -2, "明年": 1, "来年": 1}


def _chinese_date(match: re.Match[str], today: date) -> _Days:
    """A year, a month or a day, with as much of it as is written."""
    year = int(match["year"]) if match["year"] else None
    if match["relative"]:
        year = today.year + _CHINESE_YEARS[match["relative"]]
    month = _chinese_number(match["number"]) if match["number"] else None
    if month is None:
        season = match["season"]
        return _season(_SEASONS[season], year or today.year) if season else _months(year or today.year, 1, 12)
    if match["day"]:
        day = _chinese_number(match["day"])
        return _days(date(year, month, day)) if year else _last_day(month, day, today)
    if not 1 <= month <= 12:
        raise ValueError(month)
    return _months(year, month) if year else _last_month(month, today)


_CHINESE_UNITS = {
    "天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "週間": "week", "月": "month",
    "个月": "month", "か月": "month", "ヶ月": "month", "カ月": "month", "年": "year",
}  # fmt: skip
_WEEK_DAYS = {"一": 0, "二": 1, "三": 2, "四": 3, "五": 4, "六": 5, "日": 6, "天": 6}
_CJK_UNITS = {
    "上周": ("week", -1), "上星期": ("week", -1), "上个星期": ("week", -1), "上礼拜": ("week", -1),
    "上个礼拜": ("week", -1), "先週": ("week", -1), "上週": ("week", -1), "上上周": ("week", -2),
    "本周": ("week", 0), "这周": ("week", 0), "这个星期": ("week", 0), "这星期": ("week", 0),
    "今週": ("week", 0),
    "下周": ("week", 1), "下星期": ("week", 1), "下个星期": ("week", 1), "来週": ("week", 1),
    "上个月": ("month", -1), "上月": ("month", -1), "先月": ("month", -1), "上上个月": ("month", -2),
    "本月": ("month", 0), "这个月": ("month", 0), "今月": ("month", 0),
    "下个月": ("month", 1), "来月": ("month", 1),
    "지난주": ("week", -1), "지난 주": ("week", -1), "이번 주": ("week", 0), "이번주": ("week", 0),
    "지난달": ("month", -1), "지난 달": ("month", -1), "이번 달": ("month", 0), "이번달": ("month", 0),
    "작년": ("year", -1), "지난해": ("year", -1), "올해": ("year", 0),
}  # fmt: skip


def _chinese_unit(match: re.Match[str], today: date) -> _Days:
    unit, steps = _CJK_UNITS[match["which"]]
    day = match["day"]
    if unit == "week" and day:
        if day in ("末", "周末"):
            return _unit("weekend", steps, today)
        return _days(_unit("week", steps, today)[0] + timedelta(days=_WEEK_DAYS[day]))
    return _unit(unit, steps, today)


def _chinese_ago(match: re.Match[str], today: date) -> _Days:
    return _unit(_CHINESE_UNITS[match["unit"]], -_chinese_number(match["count"]), today)


def _chinese_past(match: re.Match[str], today: date) -> _Days:
    return _span(_CHINESE_UNITS[match["unit"]], _chinese_number(match["count"]), today)


_CJK_UNIT = "(?P<unit>" + _any_of(_CHINESE_UNITS) + ")"
_LEAD = "between|from|in|during|since|of|by|early|late|mid|until|before|after"
"""The words that make a time of the words "may" and "march"."""
_WHICH = "(?P<which>last|previous|past|this|current|next|coming)"
_PATTERNS: list[tuple[re.Pattern[str], Callable[[re.Match[str], date], _Days]]] = [
    (re.compile(pattern), read)
    for pattern, read in [
        (r"(?<!\d)(?P<year>\d{4})[-/.](?P<number>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)", _ymd),
        (rf"\b{_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}\b", _dmy),
        (rf"\b{_MONTH}\s+(?:the\s+)?{_DAY},?\s+{_YEAR}\b", _dmy),
        (r"(?P<year>(?:19|20)\d\d)年\s*(?P<number>\d{1,2})月\s*(?P<day>\d{1,2})[日号號]?", _ymd),
        (r"(?<!\d)(?P<number>\d{1,2})[/.](?P<day>\d{1,2})[/.](?P<year>(?:19|20)\d\d)\b", _american),
        # Above: whole dates, which `parse_chat_time` reads, too.
        (rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}", _dm),
        (rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b(?!:)", _dm),
        (rf"\b{_MONTH},?\s+(?:of\s+)?{_YEAR}\b", _my),
        (rf"\b{_SEASON}\s+(?:of\s+)?{_YEAR}\b", _season_of_year),
        (rf"\b{_COUNT}\s+(?:of\s+)?{_UNIT}s?\s+ago\b", _ago),
        (rf"\b(?:last|past|previous)\s+{_COUNT}\s+{_UNIT}s?\b", _past),
        (rf"\b(?:in|over|during|within)\s+the\s+(?:last|past)\s+(?P<count>){_UNIT}\b", _past),
        (rf"\b{_WHICH}\s+{_UNIT}\b", _relative),
        (rf"\b{_WHICH}\s+{_SEASON}\b", _relative_season),
        (rf"\b(?:{_WHICH}|on)\s+{_WEEKDAY}\b", _relative_weekday),
        (rf"\b(?:(?P<which>last|this|next)|{_LEAD})[\s-]+{_MONTH}", _named_month),
        (rf"(?P<which>)\b{_SURE_MONTH}", _named_month),
        (rf"(?<![a-z])(?:{_any_of(_NEAR_DAYS)})(?![a-z])", _near_day),
        (rf"(?P<count>{_CHINESE_NUMBER})\s*{_CJK_UNIT}(?:之|以)?前", _chinese_ago),
        (rf"(?:最近|过去|近)(?:的)?(?P<count>{_CHINESE_NUMBER})\s*{_CJK_UNIT}", _chinese_past),
        (rf"(?P<which>{_any_of(_CJK_UNITS)})(?P<day>周?末|[一二三四五六日天])?", _chinese_unit),
        (rf"{_CHINESE_YEAR}的?(?:{_CHINESE_DAY}|(?P<season>[春夏秋冬])[天季]?)?", _chinese_date),
        (rf"(?P<year>)(?P<relative>)(?P<season>)(?<![\d个]){_CHINESE_DAY}", _chinese_date),
        (r"(?<![\da-z$€£.,])(?P<year>(?:19|20)\d\d)(?![\da-z%]|[-/.,]\d)", _year),
    ]
]  # fmt: skip
_WHOLE_DATES = 5
"""How many of the patterns, from the first, have a year, a month and a day."""
