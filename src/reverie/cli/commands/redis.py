"""The commands of `reverie redis`: check whether a server is fit for a queue, and repair a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from reverie.cli.commands.waiting import progress
from reverie.cli.options import Json
from reverie.cli.output import print_json, say, show_error, shown_errors

if TYPE_CHECKING:
    from reverie.backends.redis.check import Level, ServerFinding
    from reverie.backends.redis.repair import Repaired
    from reverie.settings import Settings

__all__ = ["commands"]

commands = typer.Typer(
    help="Look at the Redis server of a queue, and mend the queue there.", no_args_is_help=True
)

MOST_SHOWN = 10
"""The most lost messages that are named to people."""
MENDED = {
    "adopted": "messages had lost their status: it was written anew, and they wait",
    "buried": "messages without a body were ended as dead letters",
    "cancelled": "cancelled messages were missing among those that can be sent back",
    "claimed": "claims were missing, or held another number of messages than it was said",
    "claims": "entries were given back to the worker that holds their claim",
    "deadlines": "deadlines were missing",
    "dependants": "messages would not have heard of the end of what they wait for",
    "due": "delayed messages would not have come due",
    "expiry": "ended messages would not have been forgotten",
    "failed": "dead letters were missing among those that are listed",
    "ghosts": "notes about entries that are gone were removed",
    "groups": "consumer groups were missing or stood at another place",
    "labels": "counts of labels were wrong",
    "lanes": "lanes were missing among those that have work, or said something wrong of it",
    "leases": "claims had no lease: nobody would have noticed the death of their worker",
    "numbers": "the numbers that new messages get were too low",
    "relinked": "messages were tied to their stream entry again",
    "removed": "entries of messages that have ended, or stand there twice, were removed",
    "returned": "entries would have been given to nobody, or twice",
    "rings": "lanes had lost their turn, or had one without work",
    "strays": "things were left over that belong to nothing",
    "tasks": "messages were missing in their business task",
    "trigger_counts": "timed tasks were counted wrong",
    "trigger_due": "timed tasks would not have come due, or twice",
    "trigger_hashes": "timed tasks had lost how they stand: it was written anew",
    "trigger_lists": "timed tasks or their types were missing among those that are listed",
    "trigger_locks": "locks of timed tasks were missing, or left over",
    "trigger_runs": "timed tasks waited for the end of a run that is over, or had forgotten their run",
    "trigger_types": "types of timed tasks had lost their schedule: the next process to start makes it anew",
    "unique": "unique keys were missing",
    "unlinked": "messages named a stream entry that is gone",
}
"""Kind of repair → what was wrong, in words."""

COLOURS: dict[Level, str] = {"ok": "green", "advice": "yellow", "problem": "red"}

Server = Annotated[
    Optional[str],  # noqa: UP045  typer reads this when it runs
    typer.Argument(metavar="[URL]", help="The server: redis://host:port/db. Default: the settings."),
]


@commands.command()
def check(url: Server = None, json: Json = False) -> None:
    """Say whether a server is fit to keep messages, and what to type there if it is not.

    Exit code 0 if it can be used, 1 if there is a problem or it cannot be reached.

    Example: reverie redis check redis://localhost:6379/0
    """
    with shown_errors():
        import asyncio

        settings = _settings_of(url)
        from reverie.backends.redis import examine_server

        queue = settings.queue
        findings = asyncio.run(
            examine_server(
                settings.queue_url,
                prefix=queue.redis_prefix,
                allow_volatile=queue.allow_volatile,
                durability_assumed=queue.durability_assumed,
                durability=queue.durability,
            )
        )
        if json:
            print_json(findings)
        else:
            for one in findings:
                _show(one)
    if any(one.level == "problem" for one in findings):
        raise typer.Exit(1)


@commands.command()
def repair(
    url: Server = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be mended.")] = False,
    bury_lost: Annotated[
        bool, typer.Option("--bury-lost", help="End messages whose body is nowhere as dead letters.")
    ] = False,
    json: Json = False,
) -> None:
    """Mend a queue whose keys were lost or changed by hand. Workers may go on meanwhile.

    What is true stands in the streams and in the status of each message; everything else is made from these.
    Only this command looks through all keys of the server.

    Exit code 0 if all is well then, 1 if something is left for you to decide.

    Example: reverie redis repair --dry-run
    """
    with shown_errors():
        import asyncio

        settings = _settings_of(url)
        from reverie.backends.redis import repair_queue

        with progress("looking", hidden=json) as shown:
            bar = shown.add_task("", total=None)
            report = asyncio.run(
                repair_queue(
                    settings.queue_url,
                    settings.queue.limits(),
                    prefix=settings.queue.redis_prefix,
                    lease_ms=round(settings.worker.lease_s * 1000),
                    dry_run=dry_run,
                    bury_lost=bury_lost,
                    progress=lambda done, total: shown.update(bar, completed=done, total=total),
                )
            )
        if json:
            print_json(report)
        else:
            _report(report)
    if (report.lost_count and not (bury_lost and not dry_run)) or report.unreadable_count or report.busy:
        raise typer.Exit(1)


def _report(report: Repaired) -> None:
    lanes, users = _many(report.lanes, "lane"), _many(report.users, "user")
    say(f"looked at {lanes} and {users} with {_many(report.messages, 'open message')}")
    if not report.mended:
        say("nothing was to be mended", fg="green")
    for kind, times in report.mended.items():
        say(f"{'would mend' if report.dry_run else 'mended'} {kind} ({times}): {MENDED[kind]}")
    if report.lost_count and "buried" not in report.mended:
        first = _some([f"{key.user_id}/{key.item_id}" for key in report.lost], report.lost_count)
        show_error(
            f"the bodies of {_many(report.lost_count, 'waiting message')} are nowhere: {first}. Submit them "
            "again under new ids, and end these as dead letters: reverie redis repair --bury-lost"
        )
    if report.unreadable_count:
        first = _some(report.unreadable, report.unreadable_count)
        show_error(f"no messages, and left alone: {first}")
    if report.busy:
        users = _many(report.busy, "user")
        show_error(f"the messages of {users} moved too fast to be counted: run it again when they rest")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _some(names: list[str], number: int) -> str:
    """The first `MOST_SHOWN` names, and an ellipsis if there are more."""
    return ", ".join([*names[:MOST_SHOWN], *(["…"] if number > MOST_SHOWN else [])])


def _show(finding: ServerFinding) -> None:
    say(f"{finding.level}: {finding.check} {finding.value}: {finding.what}", fg=COLOURS[finding.level])
    if finding.remedy:
        say(f"  → {finding.remedy}")
    for command in finding.commands:
        say(f"    {command}")


def _settings_of(url: str | None) -> Settings:
    """The settings in force, with the queue at `url` if it is given; the queue must be on Redis."""
    from reverie.errors import InvalidSettingError, redacted
    from reverie.settings import load_settings

    settings = load_settings()
    if url is not None:
        settings = settings.model_copy(update={"queue": settings.queue.model_copy(update={"url": url})})
    if not settings.queue_url.startswith(("redis://", "rediss://", "unix://")):
        name = "URL" if url is not None else "queue.url"
        reason = "is no queue on Redis: name its server, such as redis://localhost:6379/0"
        raise InvalidSettingError(name, redacted(settings.queue_url), reason)
    return settings
