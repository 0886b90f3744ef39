"""`reverie triggers explain`: what a cron expression means, and when it is due next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.options import Json, Text
from reverie.cli.output import print_json, say, shown_errors

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

__all__ = ["explain"]

COUNT = 5


def explain(
    cron: Annotated[str, typer.Argument(help="The expression: minute hour day month weekday.")],
    timezone: Annotated[str, typer.Option(help="The zone in which it is meant.")] = "UTC",
    start: Annotated[
        Text, typer.Option("--from", help="The next times after this one, in that zone. Default: now.")
    ] = None,
    json: Json = False,
) -> None:
    """Say in words what a cron expression means, and when it is due next, also where clocks change.

    Example: reverie triggers explain "30 2 * * 1-5" --timezone Europe/Berlin
    """
    with shown_errors():
        from cronsim import CronSim

        from reverie.base.clock import EPOCH, from_epoch_ms
        from reverie.triggers.schedule import CronSchedule

        zone = _zone(cron, timezone)
        words = CronSim(cron, EPOCH).explain()
        times = CronSchedule(cron, zone).upcoming(_moment(start, zone), COUNT)
        local = [from_epoch_ms(at).astimezone(zone) for at in times]
        if json:
            coming = [{"at": at, "local": one.isoformat()} for at, one in zip(times, local, strict=True)]
            print_json({"cron": cron, "timezone": timezone, "words": words, "next": coming})
            return
        say(f"{words}, {timezone}")
        for one in local:
            say(f"  {one:%a %Y-%m-%d %H:%M} {one.isoformat()[-6:]}")


def _zone(cron: str, timezone: str) -> ZoneInfo:
    """The zone; it and the expression are checked as in the settings."""
    from zoneinfo import ZoneInfo

    from pydantic import ValidationError

    from reverie.errors import InvalidSettingError
    from reverie.triggers.settings import TaskSettings

    try:
        TaskSettings(trigger_mode="cron", cron=cron, timezone=timezone)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        raise InvalidSettingError(str(first["loc"][0]), first["input"], reason) from error
    return ZoneInfo(timezone)


def _moment(start: str | None, zone: ZoneInfo) -> int:
    """Parse a date and time; without an offset of its own it is in this zone."""
    import time
    from datetime import datetime

    from reverie.base.clock import to_epoch_ms
    from reverie.errors import InvalidSettingError

    if start is None:
        return time.time_ns() // 1_000_000
    try:
        given = datetime.fromisoformat(start)
        return to_epoch_ms(given if given.tzinfo else given.replace(tzinfo=zone))
    except (ValueError, OverflowError) as error:
        reason = "must be a date and time such as 2030-03-31T00:00"
        raise InvalidSettingError("--from", start, reason) from error
