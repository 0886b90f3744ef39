"""What commands print: tables or JSON on standard output, errors and logs on standard error.

Ids, labels, contents and errors may come from anyone. They are escaped before they are shown, because a
terminal would act on control characters in them.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from reverie.base.escapes import escape, escape_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

__all__ = [
    "LogFormatter",
    "console",
    "counted",
    "last_line",
    "memories",
    "moment",
    "no_logs",
    "note",
    "one_line",
    "plain",
    "print_json",
    "print_table",
    "say",
    "set_up_logs",
    "show_error",
    "shown_errors",
    "table_of",
]

WIDEST = 1000
"""The most columns of a table where standard output is not a terminal."""


class shown_errors:  # noqa: N801  reads as a word in a with statement
    """Turn a Reverie error into one line on standard error and exit code 1.

    The exit code is 2 if the command line does not say clearly which items are meant.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from reverie.errors import InvalidSelectionError, ReverieError

        if isinstance(error, ReverieError):
            show_error(str(error))
            raise typer.Exit(2 if isinstance(error, InvalidSelectionError) else 1) from error


def plain(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters, as `\x1b`; with `lines`, line ends and tabs are kept."""
    return escape(text, "\n\t" if lines else "")


def say(text: str, **style: Any) -> None:
    """Print one or more lines for people on standard output."""
    typer.secho(plain(text, lines=True), **style)


def note(text: str) -> None:
    """Print a remark that is not part of the answer on standard error."""
    typer.echo(plain(text, lines=True), err=True)


def show_error(text: str) -> None:
    """Print an error on standard error."""
    typer.secho(f"error: {plain(text, lines=True)}", fg=typer.colors.RED, err=True)


def print_json(value: Any, *, indent: int = 2) -> None:
    """Print one JSON document; on one line with `indent=0`."""
    import msgspec

    encoded = msgspec.json.encode(value)
    text = escape_json(msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # a reader that has closed the pipe is noticed here


def console() -> Console:
    """A console that prints to standard output, for people."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDEST, highlight=False)


def table_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table for people; cells are shown as plain text, never as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", min_width=len(column))
    for row in rows:
        table.add_row(*(Text("" if cell is None else plain(str(cell))) for cell in row))
    return table


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people."""
    console().print(table_of(columns, rows))


def moment(milliseconds: int | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a moment in this machine's time zone; an empty text for None."""
    from reverie.base.clock import from_epoch_ms

    try:
        return "" if milliseconds is None else from_epoch_ms(milliseconds).astimezone().strftime(form)
    except (OverflowError, ValueError):  # no date has this number, but another process may have written it
        return str(milliseconds)


def counted(number: int) -> str:
    """A number of items, such as `3 items`."""
    return f"{number} item{'' if number == 1 else 's'}"


def memories(number: int) -> str:
    """A number of memories, such as `1 memory` and `3 memories`."""
    return f"{number} {'memory' if number == 1 else 'memories'}"


def one_line(text: str) -> str:
    """A text with all its lines in one."""
    return " ".join(text.split())


def last_line(text: str | None) -> str:
    """The last line of an error, because it says most."""
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else ""


class LogFormatter(logging.Formatter):
    """Formats log lines of any library, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; a traceback keeps its line ends."""
        return plain(super().format(record), lines=True)


def set_up_logs() -> None:
    """Send the log lines of Reverie and of the server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("reverie").setLevel(logging.INFO)


@contextmanager
def no_logs() -> Iterator[None]:
    """Keep the log lines of Reverie back, for a command that shows in its own words what they would say."""
    logger = logging.getLogger("reverie")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
