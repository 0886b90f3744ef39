"""The alert rules: they turn the health of a queue into alerts, each with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.observe.alert import Alert, command
from reverie.observe.trigger_rules import TRIGGER_DIFFERS, check_triggers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.models.budgets import SpentBudget
    from reverie.observe.health import Health
    from reverie.observe.settings import AlertSettings
    from reverie.observe.trigger_rules import TriggerHealth

__all__ = [
    "BUDGET_SPENT",
    "OF_ONE_PROCESS",
    "SERVICE_FAILING",
    "WEBHOOK_FAILING",
    "Alert",
    "budgets_spent",
    "check",
    "failing_services",
    "too_many_abandoned",
]

SERVICE_FAILING = "service_failing"
TOO_MANY_ABANDONED = "too_many_abandoned"
BUDGET_SPENT = "budget_spent"
WEBHOOK_FAILING = "webhook_failing"
OF_ONE_PROCESS = frozenset(
    {SERVICE_FAILING, TOO_MANY_ABANDONED, TRIGGER_DIFFERS, BUDGET_SPENT, WEBHOOK_FAILING}
)
"""Rules about the process itself: no other process can see whether they hold."""
MOST_TENANTS_NAMED = 3
"""The most tenants with a spent budget that have an alert of their own."""
START = "start one: `reverie worker start` (or `reverie serve`)"


def check(
    health: Health,
    settings: AlertSettings,
    *,
    breakers: Mapping[str, float] | None = None,
    services: Mapping[str, int] | None = None,
    triggers: TriggerHealth | None = None,
    abandoned: Alert | None = None,
    spent: Sequence[SpentBudget] = (),
    others: Sequence[Alert] = (),
) -> list[Alert]:
    """Return the alerts that hold, worst first.

    `breakers` maps each refused label (with its credential) to the seconds until it is tried again;
    `services` maps each failing service of this process to its failures in a row; `abandoned` is the alert of
    `too_many_abandoned`; `spent` are budgets of the language model that this process has found spent today;
    `others` are alerts that hold, too.
    """
    alerts = [*_queue(health, settings), *_labels(health)]
    for name, seconds in (breakers or {}).items():
        alerts.append(
            Alert(
                rule="breaker_open",
                level="error",
                subject=name,
                message=f"{name} is refused by whom it calls (quota or credentials), so its work rests; "
                f"it is tried again in {seconds:.0f} s",
                remedy="renew the quota or the credential; work goes on by itself once a try succeeds",
            )
        )
    alerts += failing_services(services or {})
    alerts += [abandoned] if abandoned is not None else []
    alerts += [*budgets_spent(spent), *others]
    alerts += check_triggers(triggers, settings) if triggers is not None else []
    return sorted(alerts, key=lambda alert: (alert.level != "error", alert.rule, alert.subject))


def failing_services(services: Mapping[str, int]) -> list[Alert]:
    """Return the alerts about failing services; `services` maps a name to its failures in a row."""
    return [
        Alert(
            rule=SERVICE_FAILING,
            level="error",
            subject=name,
            message=f"the {name} of this process has failed {failures} times in a row",
            remedy="read its error in the log: `reverie worker logs`; it is tried again every 30 s",
        )
        for name, failures in services.items()
    ]


def budgets_spent(spent: Sequence[SpentBudget]) -> list[Alert]:
    """Return an alert for each of the first tenants with a spent budget, and one that counts the others."""
    remedy = (
        "see what it was spent on: `reverie usage --days 1`; raise llm.{}, or wait for the next day (UTC)"
    )
    alerts = [
        Alert(
            rule=BUDGET_SPENT,
            level="warning",
            subject=f"{one.user_id}/{one.mem_cube_id}",
            message=f"the {one.what} budget of the tenant {one.user_id}/{one.mem_cube_id} for {one.day} "
            "(UTC) is spent, and its model work waits for the next day",
            remedy=remedy.format(f"{one.what}_per_day"),
        )
        for one in spent[:MOST_TENANTS_NAMED]
    ]
    others = len(spent) - len(alerts)
    if others:
        many = "1 other tenant has" if others == 1 else f"{others} other tenants have"
        alerts.append(
            Alert(
                rule=BUDGET_SPENT,
                level="warning",
                message=f"{many} a spent budget, too",
                remedy=remedy.format("tokens_per_day or llm.money_per_day"),
            )
        )
    return alerts


def too_many_abandoned(
    abandoned: int, allowed: int, *, command_line: str | None, obstacle: str | None
) -> Alert:
    """Return the alert about a process that starts no sync handler because too many threads hang.

    `command_line` started the process, None if it is unknown; `obstacle` says why its handlers cannot run in
    processes of their own, None if they can.
    """
    setting = "scheduler_startup_mode: process"
    if obstacle is not None:
        remedy = f"start this process again. With {setting} a worker is replaced by itself, but {obstacle}"
    elif command_line is None:
        remedy = (
            f"start this program again with {setting} (REVERIE_SCHEDULER_STARTUP_MODE=process): then its "
            "handlers run in a worker process, which is replaced by itself"
        )
    else:
        remedy = (
            f"stop this process and start it with {setting}, so that its worker is replaced by itself: "
            f"`REVERIE_SCHEDULER_STARTUP_MODE=process {command_line}`"
        )
    return Alert(
        rule=TOO_MANY_ABANDONED,
        level="error",
        message=f"{abandoned} calls of sync handlers hang (more than worker.max_abandoned = {allowed}), and "
        "this process starts no sync handler until some of them return",
        remedy=remedy,
    )


def _queue(health: Health, settings: AlertSettings) -> list[Alert]:
    alerts = []
    if health.pending > settings.pending:
        alerts.append(
            Alert(
                rule="pending",
                level="warning",
                message=f"{health.pending} messages wait (more than alerts.pending = {settings.pending})",
                remedy="see which label: `reverie queue`; let more workers run: `reverie worker restart "
                f"--processes {health.workers + 1}`, or raise the label's concurrency",
            )
        )
    if health.failed > settings.failed:
        alerts.append(
            Alert(
                rule="failed",
                level="error",
                message=f"{health.failed} messages have failed for good (more than alerts.failed = "
                f"{settings.failed})",
                remedy=_about_dead_letters(health),
            )
        )
    if health.oldest_pending_age > settings.oldest_pending_s:
        alerts.append(
            Alert(
                rule="oldest_pending",
                level="warning",
                message=f"a message has waited {health.oldest_pending_age:.0f} s "
                f"(more than alerts.oldest_pending_s = {settings.oldest_pending_s:g})",
                remedy="see whether workers keep up: `reverie queue`",
            )
        )
    if _is_stalled(health, settings):
        alerts.append(_stalled(health, settings))
    return alerts


def _about_dead_letters(health: Health) -> str:
    worst = max(health.labels, key=lambda state: state.failed, default=None)
    if worst is None:
        return "see why: `reverie dead list`"
    of_it = ("--label", worst.label)
    return (
        f"most are of the label {worst.label!r}; see why: `{command('dead', 'list', *of_it)}`; mend that "
        f"and send them back: `{command('dead', 'requeue', *of_it, '--all')}`, or forget them: "
        f"`{command('dead', 'delete', *of_it, '--all')}`"
    )


def _is_stalled(health: Health, settings: AlertSettings) -> bool:
    """Whether messages could run, but none was completed for `stalled_s`."""
    last = health.last_completed_age
    return health.oldest_waiting_age > settings.stalled_s and (last is None or last > settings.stalled_s)


def _stalled(health: Health, settings: AlertSettings) -> Alert:
    if not health.workers:
        reason, remedy = "no worker is running", START
    elif health.processing:
        reason = (
            f"{health.processing} are being worked on, the longest for {health.oldest_processing_age:.0f} s"
        )
        remedy = "a handler may hang: `reverie worker logs`; this ends it: `reverie worker restart`"
    else:
        reason, remedy = (
            "nothing is being worked on",
            "read the log: `reverie worker logs`; begin anew: `reverie worker restart`",
        )
    return Alert(
        rule="stalled",
        level="error",
        message=f"work waits and none was completed for {settings.stalled_s:g} s: {reason}",
        remedy=remedy,
    )


def _labels(health: Health) -> list[Alert]:
    paused = [
        Alert(
            rule="paused",
            level="warning",
            subject=state.label,
            message=f"the label {state.label!r} is paused ({state.paused}), and {state.waiting} of it wait",
            remedy=f"let it go on: `{command('resume', state.label)}`",
        )
        for state in health.labels
        if state.paused is not None and state.waiting
    ]
    return paused + [_unhandled(label, health.workers) for label in health.unhandled_labels]


def _unhandled(label: str, workers: int) -> Alert:
    if workers:
        message = f"no live worker handles the label {label!r}, and work of it waits"
        remedy = (
            "register a handler for it and begin anew: `reverie worker restart`, or name the app "
            "that has one: `reverie worker restart --app module:scheduler`"
        )
    else:
        message = f"work of the label {label!r} waits, and no worker is running"
        remedy = START
    return Alert(rule="unhandled", level="warning", subject=label, message=message, remedy=remedy)
