"""The due times of triggers that belong to no user: by a period, or by a cron expression."""

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
        """The first due time of a schedule that begins now. It is not now: the first start runs nothing."""
        ...

    def after(self, due: int, moment: int) -> int:
        """The first due time after `moment`, of a schedule that has one at `due`."""
        ...

    def last(self, due: int, moment: int) -> int:
        """The last due time that is not after `moment`, of a schedule that has an earlier one at `due`."""
        ...


@dataclass(frozen=True, slots=True)
class PeriodicSchedule:
    """One due time in each interval, counted from the last due time and not from its run: no drift."""

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
    """The due times of a cron expression in its time zone.

    When clocks go forward, a due time in the missing hour comes right after it. When they go back, an
    expression with a fixed hour is due once, and one of every few minutes is due in both hours.
    """

    expression: str
    zone: ZoneInfo

    def first(self, now: int) -> int:
        """See `Schedule.first`."""
        return self.after(now, now)

    def after(self, due: int, moment: int) -> int:  # noqa: ARG002  the expression is enough
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
        """The next `count` due times."""
        ticks = CronSim(self.expression, from_epoch_ms(now).astimezone(self.zone))
        return [to_epoch_ms(next(ticks)) for _ in range(count)]


def schedule_of(settings: TaskSettings) -> Schedule | None:
    """The schedule of a trigger type; None if activity makes it run."""
    if settings.trigger_mode == "periodic":
        return PeriodicSchedule(round(settings.interval_s * 1000))
    if settings.trigger_mode == "cron":
        assert settings.cron is not None
        return CronSchedule(settings.cron, ZoneInfo(settings.timezone))
    return None
