"""Commands of the shell, run in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from reverie.cli.main import cli

if TYPE_CHECKING:
    from click.testing import Result

    from support.places import Place


def run(place: Place, *arguments: str) -> Result:
    """One command, to its end."""
    return CliRunner().invoke(cli, list(arguments), env=place.environment)


def answer(place: Place, *arguments: str) -> Any:
    """What a command answers a program."""
    shown = run(place, *arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)
