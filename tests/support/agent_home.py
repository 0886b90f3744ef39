"""A home folder of a person who uses coding agents."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from typer.testing import CliRunner

from reverie.cli.agents.edits import plan_install, plan_uninstall
from reverie.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from click.testing import Result


class AgentHome:
    """The home folder, and the commands that its owner types there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / ".config" / "reverie"
        self.hook_file = self.config / "hook.json"
        self.extra: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        foreign = ("REVERIE_", "CLAUDE_", "CODEX_", "XDG_", "GIT_")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "REVERIE_DATA_DIR": str(self.folder / "data"),
            **self.extra,
        }

    def run(self, *arguments: str) -> Result:
        """One command, to its end."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            return CliRunner().invoke(cli, list(arguments))

    def does(self, *arguments: str) -> Result:
        """A command that succeeds."""
        shown = self.run(*arguments)
        assert shown.exit_code == 0, shown.output
        return shown

    def answer(self, *arguments: str) -> Any:
        """What a command answers a program."""
        return json.loads(self.does(*arguments, "--json").stdout)

    def change(self, module: ModuleType, *, removes: bool = False) -> None:
        """What `install` or `uninstall` does to the files of an agent, without the time a command takes."""
        with mock.patch.dict(os.environ, self.environment, clear=True):
            plan = module.plan(None, removes=removes)
            edit = plan_uninstall if removes else plan_install
            for planned in [edit(path, plan.scope, entries) for path, entries in plan.files]:
                planned.write()

    def write(self, name: str, content: str | bytes | None) -> Path:
        """Make a file of the agent; None makes none."""
        path = self.folder / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def files(self) -> dict[str, bytes]:
        """All files and empty folders, but for those of Reverie itself."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if self.folder / ".config" in [path, *path.parents]:
                continue
            if path.is_file():
                found[str(path.relative_to(self.folder))] = path.read_bytes()
            elif not any(path.iterdir()):
                found[str(path.relative_to(self.folder)) + "/"] = b""
        return found


@contextmanager
def agent_home() -> Iterator[AgentHome]:
    """A home folder for one example of Hypothesis."""
    with tempfile.TemporaryDirectory() as folder:
        yield AgentHome(Path(folder).resolve())
