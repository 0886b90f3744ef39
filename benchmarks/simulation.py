"""A user over many days, with the whole product in one process and a clock that is moved by hand."""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.days import DaysModel, homes, turns_on, unique_fact
from reverie import Scheduler
from reverie.testing import ManualClock, drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reverie.memory.item import MemoryItem
    from reverie.settings import Settings

__all__ = ["Course", "Life", "simulate"]

USER = "ann"
DAY_S = 24 * 3600
WAKES = 8
"""How often a day what is due is run."""
ASKED_EVERY = 10
"""Days between two measurements of the recall."""
FOUND_AMONG = 10
ORGANIZED_EVERY = 5
"""Days between two messages `mem_organize`; about as many memories begin one by themselves."""


@dataclass
class Course:
    """What was measured on each day."""

    turns: list[int] = field(default_factory=list)
    """Turns so far."""
    items: list[int] = field(default_factory=list)
    """Living items in long-term memory."""
    kept: list[int] = field(default_factory=list)
    """All items, superseded and archived ones too."""
    tokens: list[int] = field(default_factory=list)
    """Tokens of the language model so far."""
    recall: list[tuple[int, float]] = field(default_factory=list)
    """Day, share of the facts so far that a search finds among ten hits."""


class Life:
    """The simulated user, their memories and what is known of them."""

    def __init__(self, scheduler: Scheduler, clock: ManualClock, days: int, model: DaysModel | None) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.days = days
        self.model = model
        self.course = Course()
        self.said: dict[int, str] = {}
        """Day → the id of the memory that keeps the turn with its fact."""
        self.moments: dict[int, int] = {}
        """Day → when it was over, in epoch milliseconds."""

    def live(self, *, upkeep: bool, progress: Callable[[str], None] = lambda _: None) -> None:
        """Live all days; with `upkeep`, memories are organised every few days, and compressed each day."""
        for day in range(self.days):
            progress(f"day {day + 1} of {self.days}")
            turns = turns_on(day, self.days)
            receipt = self.scheduler.memory.add(turns, user_id=USER, session_id=f"day-{day}")
            self.said[day] = f"{receipt.item_id}.1"
            for _ in range(WAKES):
                drain(self.scheduler)
                self.clock.advance(DAY_S / WAKES)
            if upkeep and day % ORGANIZED_EVERY == ORGANIZED_EVERY - 1:
                self.tidy("mem_organize")
            if upkeep:
                self.tidy("memory_compression")
            self.moments[day] = self.clock.now()
            self._note(day, len(turns))

    def tidy(self, label: str) -> None:
        """Run one pass of upkeep, and all that follows from it."""
        self.scheduler.submit(label, user_id=USER)
        drain(self.scheduler)

    def living(self) -> list[MemoryItem]:
        """The living items of long-term and working memory."""
        return [item for item in self.everything() if item.superseded_by is None and item.tier != "archive"]

    def everything(self) -> list[MemoryItem]:
        """All items, superseded and archived ones too."""
        items: list[MemoryItem] = []
        after: str | None = None
        while True:
            page = self.scheduler.memory.page(user_id=USER, with_superseded=True, after=after, limit=1000)
            items += page.items
            after = page.next
            if after is None:
                return items

    def recall(self, days: int) -> float:
        """The share of the facts of the first days that a search finds among ten hits."""
        found = []
        for day in range(days):
            fact = unique_fact(day)
            hits = self.scheduler.memory.search(fact.question, user_id=USER, limit=FOUND_AMONG, note=False)
            found.append(any(all(word in hit.text for word in fact.words) for hit in hits))
        return statistics.fmean(found)

    def lost(self) -> list[str]:
        """The facts that can neither be found nor are linked from what replaced their turn."""
        lost = []
        for day in range(self.days):
            fact = unique_fact(day)
            item = self.scheduler.memory.get(self.said[day], user_id=USER)
            texts = [] if item is None else [item.text]
            if item is not None:
                linked = self.scheduler.memory.links(item.id, user_id=USER)
                texts += [link.item.text for link in linked if link.outgoing]
            if not any(all(word in text for word in fact.words) for text in texts):
                lost.append(fact.text)
        return lost

    def home_on(self, day: int | None) -> str | None:
        """Where the memories say that the user lived on a day; None: where they live now."""
        moment = None if day is None else self.moments[day]
        hits = self.scheduler.memory.search(
            "Where does Ann live?", user_id=USER, kinds=["fact"], as_of=moment, limit=20, note=False
        )
        for hit in hits:
            if hit.text.startswith("Ann lives in ") and (day is not None or hit.item.valid_to is None):
                return hit.text.removeprefix("Ann lives in ")
        return None

    def wrong_homes(self) -> list[tuple[int | None, str, str | None]]:
        """The days, and None for now, for which the memories name another home than the right one."""
        periods = homes(self.days)
        asked: list[tuple[int | None, str]] = [
            ((one.first_day + one.last_day) // 2, one.value) for one in periods
        ]
        asked.append((None, periods[-1].value))
        return [(day, value, told) for day, value in asked if (told := self.home_on(day)) != value]

    def _note(self, day: int, turns: int) -> None:
        course = self.course
        course.turns.append(turns + (course.turns[-1] if course.turns else 0))
        everything = self.everything()
        course.kept.append(len(everything))
        course.items.append(
            sum(item.superseded_by is None and item.tier == "long_term" for item in everything)
        )
        course.tokens.append(0 if self.model is None else self.model.tokens)
        if day % ASKED_EVERY == ASKED_EVERY - 1 or day == self.days - 1:
            course.recall.append((day, self.recall(day + 1)))


@contextmanager
def simulate(settings: Settings, days: int, *, with_model: bool = True) -> Iterator[Life]:
    """A user on the file of the settings; the caller lets them live."""
    clock = ManualClock()
    scheduler = Scheduler(settings=settings, clock=clock)
    model = DaysModel() if with_model else None
    if model is not None:
        scheduler.initialize_modules(language_model=model)
    with scheduler.used():
        yield Life(scheduler, clock, days, model)


def growth(tokens: list[int], turns: list[int]) -> float:
    """Tokens a turn in the second half of the days over those in the first half: 1 is linear."""
    half = len(tokens) // 2 - 1
    first = tokens[half] / turns[half]
    second = (tokens[-1] - tokens[half]) / (turns[-1] - turns[half])
    return second / first


def figures_of(life: Life) -> dict[str, Any]:
    """The course of a life, ready for JSON."""
    course = life.course
    return {
        "turns": course.turns,
        "items": course.items,
        "kept": course.kept,
        "tokens": course.tokens,
        "recall": [[day, round(value, 4)] for day, value in course.recall],
    }
