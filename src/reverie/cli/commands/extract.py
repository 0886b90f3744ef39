"""The commands of `reverie extract`: what to extract, and reading turns that were kept before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.app import opened_memory
from reverie.cli.commands.waiting import progress
from reverie.cli.options import AnyUser, Cube, Json, OfCube, Text, Texts, Url, User, Yes
from reverie.cli.output import note, print_json, say

if TYPE_CHECKING:
    from reverie.face.extraction import ExtractionInForce, ExtractionPlan, ExtractionProgress
    from reverie.face.scheduler import Scheduler
    from reverie.settings import Settings

__all__ = ["commands"]

commands = typer.Typer(
    help="Say what the language model extracts, and let it read turns that were kept before.",
    no_args_is_help=True,
)

NOTHING_LEFT = "there is nothing to extract: all turns were read, or wait in a buffer"
FIELDS = ("mission", "categories", "include", "exclude", "schema")


@commands.command()
def plan(user: AnyUser = None, cube: OfCube = None, url: Url = None, json: Json = False) -> None:
    """Show what extracting the turns that were not read yet would cost. No call is made.

    Example: reverie extract plan
    """
    with opened_memory(url) as scheduler:
        planned = _plan(scheduler, user, cube, hidden=json)
        if json:
            print_json(planned)
            return
        _show_plan(planned, scheduler.runtime.settings)
        if planned.turns:
            note(_obstacle(scheduler) or "to extract them: reverie extract run")


@commands.command()
def run(
    user: AnyUser = None, cube: OfCube = None, yes: Yes = False, url: Url = None, json: Json = False
) -> None:
    """Extract the turns that were not read yet, within the budgets. Workers of this queue help.

    Ctrl-C ends it at any time; the next run does the rest. Exit code 1 if something has to wait or has
    failed.

    Example: reverie extract run --yes
    """
    with opened_memory(url) as scheduler:
        _refuse_obstacle(scheduler)
        planned = _plan(scheduler, user, cube, hidden=json)
        if planned.turns and not yes and sys.stdin.isatty():
            _show_plan(planned, scheduler.runtime.settings)
            if not typer.confirm("extract them now?", err=True):
                note("nothing was done")
                raise typer.Exit(1)
        done = _run(scheduler, planned, user, cube, hidden=json)
        if json:
            print_json(done)
        else:
            _report(planned, done)
        if done.waiting or done.failed or done.passed_over:
            raise typer.Exit(1)


@commands.command()
def show(user: User, cube: Cube = "", url: Url = None, json: Json = False) -> None:
    """Show what is extracted for a cube, and where that was set.

    Example: reverie extract show --user ann
    """
    with opened_memory(url) as scheduler:
        found = scheduler.extraction.in_force(user_id=user, mem_cube_id=cube)
        if json:
            print_json(found)
        else:
            _show(found)


@commands.command("set")
def set_extraction(  # noqa: PLR0917  options
    user: User,
    cube: Cube = "",
    mission: Annotated[Text, typer.Option(help="In one sentence: what the memories are for.")] = None,
    category: Annotated[Texts, typer.Option(help="A category that facts may have. Repeatable.")] = None,
    include: Annotated[Texts, typer.Option(help="What is worth remembering. Repeatable.")] = None,
    exclude: Annotated[Texts, typer.Option(help="What must not be remembered. Repeatable.")] = None,
    schema: Annotated[
        Text, typer.Option(help="A file with the JSON schema of `info` in each fact; - for standard input.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First forget all that was set for the cube.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set what is extracted for a cube from now on. What is not given stays as it is.

    An empty text, such as --category '', empties a field. Facts that are there do not change.

    Example: reverie extract set --user ann --mission "A diary of meals." --category food
    """
    with opened_memory(url) as scheduler:
        import msgspec

        from reverie.errors import InvalidSelectionError
        from reverie.memory.extraction import Extraction

        lists = {"categories": category, "include": include, "exclude": exclude}
        given: dict[str, Any] = {
            name: tuple(text for text in texts if text) for name, texts in lists.items() if texts
        }
        given |= {} if mission is None else {"mission": mission}
        given |= {} if schema is None else {"schema": _read_schema(schema)}
        if not given and not reset:
            raise InvalidSelectionError(
                "say what to set: --mission, --category, --include, --exclude, --schema or --reset"
            )
        before = scheduler.extraction.in_force(user_id=user, mem_cube_id=cube)
        kept = Extraction() if reset else before.of_cube
        scheduler.extraction.set(msgspec.structs.replace(kept, **given), user_id=user, mem_cube_id=cube)
        found = scheduler.extraction.in_force(user_id=user, mem_cube_id=cube)
        if json:
            print_json(found)
        else:
            _show(found)


@commands.command()
def retry(user: User, cube: Cube = "", url: Url = None, json: Json = False) -> None:
    """Let turns be read again that were given up, because several runs failed on them.

    Example: reverie extract retry --user ann
    """
    with opened_memory(url) as scheduler:
        count = scheduler.buffers.retry_failed(user, cube)
        if json:
            print_json({"retried": count})
        else:
            say(f"{_turns(count)} will be read again")
        obstacle = _obstacle(scheduler)
        if count and obstacle:
            note(obstacle)


# -- reading what was kept before ------------------------------------------------------------------------


def _plan(scheduler: Scheduler, user: str | None, cube: str | None, *, hidden: bool) -> ExtractionPlan:
    with progress("counting turns", hidden=hidden, counts=False) as shown:
        shown.add_task("", total=None)
        return scheduler.extraction.plan(user_id=user, mem_cube_id=cube)


def _run(
    scheduler: Scheduler, planned: ExtractionPlan, user: str | None, cube: str | None, *, hidden: bool
) -> ExtractionProgress:
    """Run a worker and extract, until all is read or has to wait."""
    scheduler.start()
    try:
        with progress("reading turns", hidden=hidden) as shown:
            bar = shown.add_task("", total=planned.turns)

            def show(state: ExtractionProgress) -> None:
                shown.update(bar, completed=state.turns)

            return scheduler.extraction.run(user_id=user, mem_cube_id=cube, on_progress=show)
    except KeyboardInterrupt:
        note("stopping: a worker goes on with what was handed over; for the rest: reverie extract run")
        raise
    finally:
        scheduler.stop()


def _obstacle(scheduler: Scheduler) -> str | None:
    """Why the model cannot be called here, and what to do; None if nothing is missing."""
    from reverie.models.openai_chat import obstacle_to_calls

    llm = scheduler.runtime.settings.llm
    if llm.preset == "none" and scheduler.runtime.models.has_language_model:
        return None  # the application brings its own
    obstacle = obstacle_to_calls(llm)
    return None if obstacle is None else ": ".join(obstacle)


def _refuse_obstacle(scheduler: Scheduler) -> None:
    from reverie.errors import ReverieError

    obstacle = _obstacle(scheduler)
    if obstacle is not None:
        raise ReverieError(obstacle)


def _show_plan(planned: ExtractionPlan, settings: Settings) -> None:
    if planned.given_up:
        note(f"{_turns(planned.given_up)} given up, because several runs failed: reverie extract retry")
    if not planned.turns:
        say(NOTHING_LEFT)
        return
    tenants = "1 tenant" if planned.tenants == 1 else f"{planned.tenants} tenants"
    say(f"turns      {planned.turns} of {tenants}")
    say(f"calls      about {planned.calls} of {planned.model or 'a model'}")
    say(f"tokens     about {planned.input_tokens:,} of prompts and {planned.output_tokens:,} of answers")
    unknown = f"unknown: set llm.prices.{planned.model or 'MODEL'}"
    say(f"money      {unknown if planned.cost is None else f'about {planned.cost:g}'}")
    limit = settings.llm.tokens_per_day
    within = "no limit: llm.tokens_per_day is not set" if limit is None else f"llm.tokens_per_day = {limit}"
    say(f"days       {'never' if planned.days is None else planned.days} ({within})")


def _report(planned: ExtractionPlan, done: ExtractionProgress) -> None:
    if not planned.turns:
        say(NOTHING_LEFT)
        return
    say(f"read {done.turns} of {_turns(planned.turns)}")
    if done.waiting:
        many = "message waits" if done.waiting == 1 else "messages wait"
        note(f"{done.waiting} {many}: reverie usage shows spent budgets, reverie status what each waits for")
    if done.passed_over:
        obstacle = (
            "a worker of this queue has no language model: give it the same settings, and run this again"
        )
        note(f"{_turns(done.passed_over)} left: {obstacle}")
    if done.failed:
        many = "message has" if done.failed == 1 else "messages have"
        note(f"{done.failed} {many} failed: reverie dead list --label mem_read shows why")


def _turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"


# -- what is extracted -----------------------------------------------------------------------------------


def _show(found: ExtractionInForce) -> None:
    """Print each field, and in brackets where it was set."""
    say(f"user        {found.user_id}")
    say(f"cube        {found.mem_cube_id}")
    for name in FIELDS:
        value = getattr(found, name)
        origin = "this cube" if name in found.own else "not set" if value is None else "settings"
        say(f"{name:<11} {_text_of(value)}({origin})")


def _text_of(value: Any) -> str:
    import msgspec

    if value is None:
        return ""
    if isinstance(value, dict):
        return f"{msgspec.json.encode(value).decode()}  "
    return f"{value if isinstance(value, str) else '; '.join(value) or 'none'}  "


def _read_schema(path: str) -> dict[str, Any]:
    """The JSON object in a file."""
    from pathlib import Path

    import msgspec

    from reverie.errors import InvalidMessageError

    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).expanduser().read_bytes()
        return msgspec.json.decode(content, type=dict[str, Any])
    except OSError as error:
        raise InvalidMessageError("schema", path, f"cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError("schema", path, f"is not a JSON object: {error}") from error
