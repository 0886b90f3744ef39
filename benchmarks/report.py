"""What a benchmark prints for people: progress on standard error while it runs, a table at the end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["print_report", "print_targets", "shown_progress"]

RATES = {
    "submit_one_rate": "submit, one caller",
    "submit_64_rate": "submit, 64 callers",
    "submit_batch_rate": "submit, batches of 500",
    "drain_rate": "drain, one worker",
}


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show in one changing line what is being measured."""
    if quiet:
        yield lambda _: None
        return
    with Console(stderr=True).status("begin") as status:
        yield status.update


def print_targets(figures: dict[str, Any]) -> None:
    """Print each target and the value that was measured."""
    targets = Table("target", "wanted", "found", "reached", title="Targets")
    for name, target in figures["targets"].items():
        targets.add_row(name, target["target"], str(target["value"]), "yes" if target["reached"] else "no")
    Console().print(targets)


def print_report(figures: dict[str, Any]) -> None:
    """Print all figures of a run."""
    console = Console()
    columns = {"reverie": figures}
    if "raw" in figures:
        columns |= {"raw limit": figures["raw"], **figures["peers"]}
    title = f"Messages a second: {figures['backend']}, durability {figures['durability']}"
    table = Table("", *columns, title=title)
    for key, name in RATES.items():
        cells = [f"{rates[key]:,}" if key in rates else "" for rates in columns.values()]
        table.add_row(name, *cells)
    console.print(table)
    console.print(f"latency p50 {figures['latency_p50_ms']} ms, p99 {figures['latency_p99_ms']} ms")
    if "targets" in figures:
        print_targets(figures)
    if not figures.get("quiet", True):
        console.print(
            f"The machine was not quiet (noise {figures['noise']}): measure again before you believe this."
        )
