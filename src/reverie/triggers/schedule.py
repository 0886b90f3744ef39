"""When a task that belongs to no user is due: by a period, or by a cron expression in its time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim

from reverie.base.clock import from_epoch_ms, to_epoch_ms

if TYPE_CHECKING:
    from reverie.triggers.settings import TaskSettings

__all__ = ["CronSchedule", "PeriodicSchedule", "Schedule", "schedule_of"]


class Schedule(Protocol):
    """Due times, in epoch milliseconds."""

    def first(self, now: int) -> int:
        """The first one of a schedule that begins now: not now, lest everything runs at the first start."""
        ...

    def after(self, due: int, moment: int) -> int:
        """The first one after `moment`, of a schedule that has one at `due`."""
        ...

    def last(self, due: int, moment: int) -> int:
        """The last one that is not after `moment`, of a schedule that has one at `due`, before that."""
        ...


@dataclass(frozen=True, slots=True)
class PeriodicSchedule:
    """Every so often, counted from a due time and not from when a run happened to be: it does not drift."""

    interval_ms: int

    def first(self, now: int) -> int:
        """See `Schedule.first`."""
        return now + self.interval_ms

    def after(self, due: int, moment: int) -> int:
        """See `Schedule.after`."""
        return due + ((moment - due) // self.interval_ms + 1) * self.interval_ms

    def last(self, due: int, moment: int) -> int:
        """See `Schedule.last`."""
        return due + (moment - due) // self.interval_ms * self.interval_ms


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """By a cron expression.

    When clocks go forward, what falls into the missing hour runs right after it; when they go back, what is
    at a fixed hour runs once, and what runs every so many minutes goes on through both hours.
    """

    expression: str
    zone: ZoneInfo

    def first(self, now: int) -> int:
        """See `Schedule.first`."""
        return self.after(now, now)

    def after(self, due: int, moment: int) -> int:  # noqa: ARG002  the expression says it all
        """See `Schedule.after`."""
        return to_epoch_ms(next(CronSim(self.expression, from_epoch_ms(moment).astimezone(self.zone))))

    def last(self, due: int, moment: int) -> int:
        """See `Schedule.last`."""
        just_after = (from_epoch_ms(moment) + timedelta(minutes=1)).astimezone(self.zone)
        found = due
        for tick in CronSim(self.expression, just_after, reverse=True):
            found = to_epoch_ms(tick)
            if found <= moment:
                break
        return max(due, found)

    def upcoming(self, now: int, count: int) -> list[int]:
        """The next due times."""
        ticks = CronSim(self.expression, from_epoch_ms(now).astimezone(self.zone))
        return [to_epoch_ms(next(ticks)) for _ in range(count)]


def schedule_of(task: TaskSettings) -> Schedule | None:
    """The schedule of a type; None if activity makes it run."""
    if task.trigger_mode == "periodic":
        return PeriodicSchedule(round(task.interval_s * 1000))
    if task.trigger_mode == "cron":
        assert task.cron is not None
        return CronSchedule(task.cron, ZoneInfo(task.timezone))
    return None
