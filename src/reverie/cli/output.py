"""What a person or a program sees: tables or JSON on standard output, errors and logs on standard error."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["print_json", "print_table", "set_up_logs", "shown_errors"]


class shown_errors:  # noqa: N801  reads as a word in a with statement
    """Turn a Reverie error into one line on standard error and exit code 1."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from reverie.errors import ReverieError

        if isinstance(error, ReverieError):
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    """One JSON document."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows for people."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)


def set_up_logs(level: int = logging.INFO) -> None:
    """Log lines of Reverie and of the server, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("reverie").setLevel(level)
