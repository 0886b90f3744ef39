"""The alert rules about triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.observe.alert import Alert, command

if TYPE_CHECKING:
    from reverie.observe.settings import AlertSettings

__all__ = ["TRIGGER_DIFFERS", "TriggerHealth", "TypeHealth", "check_triggers"]

TRIGGER_DIFFERS = "trigger_differs"


class TypeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a trigger type."""

    task_type: str
    late_s: float = 0.0
    """How many seconds a trigger has been due and not fired, although a live worker handles the type."""
    missed: int = 0
    """How often due times were skipped recently; several skipped together count once."""
    failures: int = 0
    """Failed runs since the last one that ended well."""
    last_error: str | None = None


class TriggerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of all trigger types."""

    types: list[TypeHealth] = []
    differing: tuple[str, ...] = ()
    """Types whose configuration in this process differs from the one in force, under the same version."""
    version: int = 0
    """The version of this process's configuration."""


def check_triggers(health: TriggerHealth, settings: AlertSettings) -> list[Alert]:
    """The alerts about triggers."""
    alerts = [_late(one, settings) for one in health.types if one.late_s > settings.trigger_late_s]
    alerts += [_missed(one) for one in health.types if one.missed]
    alerts += [_failing(one) for one in health.types if one.failures]
    if health.differing:
        alerts.append(_differs(health))
    return alerts


def _late(one: TypeHealth, settings: AlertSettings) -> Alert:
    return Alert(
        rule="trigger_late",
        level="warning",
        subject=one.task_type,
        message=f"a task of {one.task_type!r} is due for {one.late_s:.0f} s and does not run (longer than "
        f"alerts.trigger_late_s = {settings.trigger_late_s:g}), although a live worker handles it",
        remedy="read why: `reverie worker logs`; begin anew: `reverie worker restart`",
    )


def _missed(one: TypeHealth) -> Alert:
    return Alert(
        rule="trigger_missed",
        level="warning",
        subject=one.task_type,
        message=f"due times of {one.task_type!r} were missed, since no worker could run it in time, and are "
        "not made up for (misfire: skip)",
        remedy=f"run it now: `{command('triggers', 'run', one.task_type)}`; with misfire: run_once it makes "
        "up for what it has missed",
    )


def _failing(one: TypeHealth) -> Alert:
    runs = "the last run" if one.failures == 1 else f"the last {one.failures} runs"
    lines = (one.last_error or "").strip().splitlines()
    why = f": {lines[-1]}" if lines else ""
    of_it = ("--label", one.task_type)
    return Alert(
        rule="trigger_failing",
        level="error",
        subject=one.task_type,
        message=f"{runs} of {one.task_type!r} failed, and none has ended well since{why}",
        remedy=f"see why: `{command('dead', 'list', *of_it)}`; mend that and send them back: "
        f"`{command('dead', 'requeue', *of_it, '--all')}`",
    )


def _differs(health: TriggerHealth) -> Alert:
    return Alert(
        rule=TRIGGER_DIFFERS,
        level="error",
        message=f"this process has {', '.join(health.differing)} configured otherwise than is in force, and "
        f"both are of scheduler.version = {health.version}",
        remedy=f"give the configuration that is right scheduler.version = {health.version + 1}, everywhere, "
        "and read it anew: `reverie config reload`",
    )
