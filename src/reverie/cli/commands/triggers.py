"""`reverie triggers`: look at timed tasks, run, cancel and switch them."""

from __future__ import annotations

import shlex
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli import completion
from reverie.cli.app import opened
from reverie.cli.commands.explain import explain
from reverie.cli.options import Json, Text, Url, Yes
from reverie.cli.output import last_line, moment, note, plain, print_json, print_table, say, show_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.backends.triggers import TriggerState
    from reverie.face.scheduler import Scheduler
    from reverie.triggers.overview import TypeOverview
    from reverie.triggers.service import Who

__all__ = ["commands"]

commands = typer.Typer(help="Look at timed tasks, run, cancel and switch them.", no_args_is_help=True)
commands.command()(explain)

TaskType = Annotated[
    str, typer.Argument(metavar="TYPE", help="The task type.", autocompletion=completion.task_types)
]
User = Annotated[Text, typer.Option("--user", "-u", help="Of this user. Default: the task of no user.")]
Device = Annotated[Text, typer.Option("--device", help="Of this device. Default: the default device.")]
Agent = Annotated[Text, typer.Option("--agent", help="Of this agent. Default: the default agent.")]
UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
AT_ONCE = 1000
"""The most tasks in one step when all of a type are cancelled."""


@contextmanager
def _following(url: str | None, *, acts: bool = False) -> Iterator[Scheduler]:
    """A scheduler that follows the types in force. If there are none and it acts, it brings its own."""
    with opened(url) as scheduler:
        scheduler.triggers.only_look(unless_empty=acts)
        yield scheduler


@commands.command("list")
def list_types(url: Url = None, json: Json = False) -> None:
    """List the task types that are in force, what makes each run, and what has become of its runs.

    Example: reverie triggers list
    """
    with _following(url) as scheduler:
        types = scheduler.triggers.overview()
        if json:
            print_json(types)
            return
        heads = ["type", "when", "next", "waiting", "running", "runs", "failed", "missed", "workers"]
        print_table(heads, [_row(one) for one in types])
        if not scheduler.triggers.types():
            note("none is in force yet: these will be once a worker or a server uses them")


@commands.command()
def show(
    task_type: TaskType,
    *,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many tasks at most.")] = 100,
    after: Annotated[str, typer.Option(help="Go on behind the page that said so.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show one type: its settings, its statistics, and its tasks by user.

    Exit code 1 if there is no such type.

    Example: reverie triggers show memory_compression
    """
    with _following(url) as scheduler:
        (about,) = scheduler.triggers.overview(task_type)
        page = scheduler.triggers.page(task_type, after=after, limit=limit)
        if json:
            from msgspec.structs import asdict

            print_json({**asdict(about), "tasks": page.rows, "next": page.next})
            return
        _print_type(about)
        if page.rows:
            say("")
            heads = ["user", "device", "agent", "status", "next", "last activity", "ended well", "retries"]
            print_table(heads, [_task_row(task) for task in page.rows])
        if page.next is not None:
            note(f"there are more: --after {shlex.quote(page.next)}")


@commands.command()
def run(
    task_type: TaskType,
    *,
    user: User = None,
    device: Device = None,
    agent: Agent = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Let a task run now, or once more after the run that is under way. Its schedule goes on as before.

    Exit code 1 if there is no such type, or it is disabled.

    Example: reverie triggers run memory_compression --user ann
    """
    with _following(url, acts=True) as scheduler:
        who = _who(scheduler, task_type, user, device, agent)
        if not scheduler.triggers.run(task_type, **who):
            name = shlex.quote(task_type)
            show_error(f"{plain(task_type)} is disabled: reverie triggers enable {plain(name)} lets it run")
            raise typer.Exit(1)
        (about,) = scheduler.triggers.overview(task_type)
        if json:
            print_json({"task_type": task_type, "run": True, "workers": about.workers})
        else:
            say(plain(f"{task_type}{_of(user)} is due now"))
        if not about.workers:
            note(f"no live worker handles {plain(task_type)}: it runs once one does")


@commands.command()
def cancel(
    task_type: TaskType,
    *,
    user: User = None,
    device: Device = None,
    agent: Agent = None,
    everyone: Annotated[bool, typer.Option("--all", help="The tasks of all users.")] = False,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Forget the next run of a user's task, and ask one that is under way to stop.

    Later activity schedules it again. Exit code 1 if nothing was scheduled or under way, or you said no.

    Example: reverie triggers cancel memory_compression --user ann
    """
    with _following(url, acts=True) as scheduler:
        if everyone:
            if user or device or agent:
                show_error("--all means all users: leave --user, --device and --agent out")
                raise typer.Exit(2)
            cancelled = _cancel_all(scheduler, task_type, ask=not yes and sys.stdin.isatty())
        else:
            who = _who(scheduler, task_type, user, device, agent)
            cancelled = int(scheduler.triggers.cancel(task_type, **who))
        if json:
            print_json({"task_type": task_type, "cancelled": cancelled})
        elif everyone:
            say(plain(f"cancelled {cancelled} task{'' if cancelled == 1 else 's'} of {task_type}"))
        elif cancelled:
            say(plain(f"cancelled {task_type}{_of(user)}"))
        else:
            note(plain(f"no run of {task_type}{_of(user)} is scheduled or under way"))
        if not cancelled:
            raise typer.Exit(1)


@commands.command()
def enable(task_type: TaskType, url: Url = None, json: Json = False) -> None:
    """Let a type run, everywhere, whatever its configuration says.

    That holds until it is disabled, or a configuration of a higher version comes.

    Example: reverie triggers enable embedding_refresh
    """
    _switch(url, task_type, enabled=True, json=json)


@commands.command()
def disable(task_type: TaskType, url: Url = None, json: Json = False) -> None:
    """Let a type run nowhere; what runs goes on, what is scheduled waits until it is enabled.

    That holds until it is enabled, or a configuration of a higher version comes.

    Example: reverie triggers disable data_cleanup
    """
    _switch(url, task_type, enabled=False, json=json)


def _switch(url: str | None, task_type: str, *, enabled: bool, json: bool) -> None:
    with _following(url, acts=True) as scheduler:
        (scheduler.triggers.enable if enabled else scheduler.triggers.disable)(task_type)
        if json:
            print_json({"task_type": task_type, "enabled": enabled})
        else:
            say(plain(f"{'enabled' if enabled else 'disabled'} {task_type}"))


def _cancel_all(scheduler: Scheduler, task_type: str, *, ask: bool) -> int:
    """Cancel the tasks of all users, page by page; the answer is how many there were."""
    (about,) = scheduler.triggers.overview(task_type)
    number = about.statistics.pending + about.statistics.running
    question = f"cancel up to {number} tasks of {plain(task_type)}?"
    if ask and number > 1 and not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)
    cancelled, after = 0, ""
    while True:
        page = scheduler.triggers.page(task_type, after=after, limit=AT_ONCE)
        keys = [task.user_key for task in page.rows if task.status in {"pending", "running"}]
        cancelled += sum(scheduler.triggers.cancel_key(task_type, key) for key in keys)
        if page.next is None:
            return cancelled
        after = page.next


def _who(
    scheduler: Scheduler, task_type: str, user: str | None, device: str | None, agent: str | None
) -> Who:
    """Whose task is meant. A type that activity makes run needs a user."""
    from reverie.errors import InvalidSelectionError

    (about,) = scheduler.triggers.overview(task_type)
    if not user and about.settings["trigger_mode"] == "user_activity":
        raise InvalidSelectionError(f"{task_type} runs for a user: say for whom, with --user")
    if not user and (device or agent):
        raise InvalidSelectionError("a device and an agent belong to a user: say whose, with --user")
    return {"user_id": user or None, "device_id": device, "agent_id": agent}


def _of(user: str | None) -> str:
    return "" if user is None else f" of {user}"


def _row(one: TypeOverview) -> tuple[Any, ...]:
    numbers = one.statistics
    return (
        one.task_type,
        _when(one.settings) if one.enabled else "disabled",
        moment(one.next_due) if one.enabled else "",
        numbers.pending,
        numbers.running,
        numbers.runs,
        numbers.failures,
        numbers.skipped,
        one.workers or "nobody",
    )


def _task_row(task: TriggerState) -> tuple[Any, ...]:
    return (
        task.user_id,
        task.device_id,
        task.agent_id,
        task.status,
        moment(task.scheduled_at),
        moment(task.last_activity),
        moment(task.last_exec),
        task.retry_count,
    )


def _print_type(one: TypeOverview) -> None:
    numbers = one.statistics
    fields = {
        "type": one.task_type,
        "about": one.settings["description"],
        "enabled": "yes" if one.enabled else "no",
        "when": _when(one.settings),
        "next": moment(one.next_due),
        "workers": one.workers or "nobody",
        "version": one.version,
        "timeout": _duration(one.settings["timeout"]),
        "retries": f"{one.settings['max_retries']} runs in all",
        "runs": f"{numbers.runs}, {numbers.failures} failed, {numbers.skipped} missed",
        "took": "" if not numbers.runs else f"{numbers.duration_ms / numbers.runs:.0f} ms on average",
        "late": ""
        if not numbers.fired
        else f"{numbers.lateness_ms / numbers.fired:.0f} ms on average, {numbers.max_lateness_ms} ms at most",
        "last run": moment(numbers.last_run_at),
        "last error": last_line(numbers.last_error),
    }
    for name, value in fields.items():
        if value not in {None, ""}:
            say(f"{name:<10} {plain(str(value))}")


def _when(settings: dict[str, Any]) -> str:
    """Describe in a few words what makes a type run."""
    if settings["trigger_mode"] == "cron":
        return f"{settings['cron']} ({settings['timezone']})"
    interval = _duration(settings["interval"])
    if settings["trigger_mode"] == "periodic":
        return f"every {interval}"
    return f"{interval} after {'the last' if settings['mode'] == 'debounce' else 'the first'} activity"


def _duration(seconds: float) -> str:
    size, unit = next(
        ((size, unit) for size, unit in UNITS if seconds >= size and not seconds % size), (1, "s")
    )
    return f"{seconds / size:g} {unit}"
