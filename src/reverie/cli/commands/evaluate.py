"""The command `eval`: how well a search finds what was said in one's own conversations."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path  # noqa: TC003  typer reads this when it runs
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.options import Json, Text
from reverie.cli.output import note, print_json, print_table, say, shown_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["commands"]

commands = typer.Typer()


class Group(StrEnum):
    """What questions are grouped by."""

    kind = "kind"
    conversation = "conversation"


@commands.command("eval")
def evaluate(
    data: Annotated[Path, typer.Argument(help="JSON file of conversations and questions.")],
    *,
    k: Annotated[int, typer.Option("--k", min=1, max=1000, help="Also count among the first K turns.")] = 10,
    by: Annotated[Group, typer.Option("--by", help="Group the questions.")] = Group.kind,
    others: Annotated[
        int, typer.Option("--others", min=0, max=100_000, help="Ask again among this many other users.")
    ] = 0,
    details: Annotated[bool, typer.Option("--details", help="With --json: each question too.")] = False,
    chart: Annotated[
        Optional[Path],  # noqa: UP045  typer reads this when it runs
        typer.Option("--chart", metavar="FILE.png", help="Draw the recall into this file."),
    ] = None,
    server: Annotated[
        Text,
        typer.Option(
            "--server", "--url", help="Measure a server, http://host:port, instead of a temporary store."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Allow a server on another machine.")] = False,
    json: Json = False,
) -> None:
    """Measure how many of the turns that answer a question are found, and how fast.

    The conversations are added to a temporary store, which is removed in the end; your own memories are not
    touched. With --server they are added to that server, under new user ids, and stay there.

    Example: reverie eval examples/conversations.json --others 100
    """
    with shown_errors():
        from reverie.evaluation.chart import check_chart, draw_chart
        from reverie.evaluation.data import read_conversations
        from reverie.evaluation.measure import measure

        if chart is not None:
            check_chart(chart)
        conversations = read_conversations(data)
        with _subject(server, yes=yes) as subject, _progress() as progress:
            figures = measure(
                subject, conversations, k=k, by=by, others=others, details=details, progress=progress
            )
        if chart is not None:
            draw_chart(chart, figures)
        if json:
            print_json({"data": str(data), "server": server, **figures})
        else:
            _print(figures, by, k)


@contextmanager
def _subject(server: str | None, *, yes: bool) -> Iterator[Any]:
    """The server to measure, or a temporary store with the settings in force."""
    from reverie.evaluation.subject import check_server, running_server, temporary_store
    from reverie.settings import load_settings

    if server is not None:
        check_server(server, anywhere=yes)
    with running_server(server) if server is not None else temporary_store(load_settings()) as subject:
        yield subject


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each stage on standard error, where a person looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as shown:
        bars: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = shown.add_task(stage, total=total)
            shown.update(bars[stage], completed=done, total=total)

        yield progress


def _print(figures: dict[str, Any], by: str, k: int) -> None:
    cuts = [name.removeprefix("recall_at_") for name in figures["all"] if name.startswith("recall_at_")]
    rows = [("all but adversarial", figures["all"]), *figures[f"by_{by}"].items()]
    if "without_others" in figures:
        rows.insert(0, ("without others", figures["without_others"]))
    print_table(
        [by, "n", *(f"recall@{cut}" for cut in cuts), f"hit@{k}"],
        [
            (
                name,
                scores["n"],
                *(_percent(scores[f"recall_at_{cut}"]) for cut in cuts),
                _percent(scores[f"hit_at_{k}"]),
            )
            for name, scores in rows
        ],
    )
    say(f"{figures['turns']} turns added in {figures['adding_s']:.1f} s")
    say(f"a search takes {_times(figures)}")
    if "without_others" in figures:
        say(f"without the {figures['others']} others it takes {_times(figures['without_others'])}")
    for reason, count in figures["degraded"].items():
        note(f"{count} searches were not as good as they could be: {reason}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _times(figures: dict[str, Any]) -> str:
    return f"{figures['latency_p50_ms']:.1f} ms at the median, {figures['latency_p99_ms']:.1f} ms at p99"
