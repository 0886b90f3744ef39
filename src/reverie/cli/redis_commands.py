"""The commands of `reverie redis`: whether a server is fit for a queue, and mending what was lost there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from reverie.cli.options import Json
from reverie.cli.output import print_json, say, shown_errors

if TYPE_CHECKING:
    from reverie.backends.redis.check import Level, ServerFinding
    from reverie.settings import Settings

__all__ = ["commands"]

commands = typer.Typer(
    help="Look at the Redis server of a queue, and mend the queue there.", no_args_is_help=True
)

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
                allow_volatile=queue.allow_volatile,
                durability_assumed=queue.durability_assumed,
            )
        )
        if json:
            print_json(findings)
        else:
            for one in findings:
                _show(one)
    if any(one.level == "problem" for one in findings):
        raise typer.Exit(1)


def _show(finding: ServerFinding) -> None:
    say(f"{finding.level}: {finding.check} {finding.value}: {finding.what}", fg=COLOURS[finding.level])
    if finding.remedy:
        say(f"  → {finding.remedy}")
    for command in finding.commands:
        say(f"    {command}")


def _settings_of(url: str | None) -> Settings:
    """The settings in force, with this server; it must be one."""
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
