"""`reverie install` and `reverie uninstall`: hooks and the MCP server in the settings of coding agents."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.options import Json
from reverie.cli.output import note, print_json, say, shown_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.cli.agents.agent import Plan
    from reverie.cli.agents.edits import Edit

__all__ = ["commands"]

commands = typer.Typer()


class Agent(StrEnum):
    """A coding agent whose settings can be changed."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"


AgentName = Annotated[Agent, typer.Argument(help="claude-code or codex.")]
Project = Annotated[
    bool,
    typer.Option("--project/--user", help="For the project of the working folder, or for all of yours."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]


@commands.command()
def install(
    agent: AgentName,
    *,
    project: Project = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write also if a plug-in runs the same hooks.")
    ] = False,
    json: Json = False,
) -> None:
    """Let a coding agent tell Reverie what it does, and ask it: write hooks and the MCP server.

    Nothing else in the settings of the agent changes, and a copy of them is kept. The settings of hooks come
    from the configuration folder and the environment, not from the working folder.

    Example: reverie install claude-code --dry-run
    """
    with shown_errors():
        from reverie.cli.agents.edits import plan_install
        from reverie.cli.agents.hook_file import HookFile
        from reverie.errors import ReverieError
        from reverie.settings import load_own_settings

        plan = _plan(agent, project=project, removes=False)
        if plan.rivals and not force:
            raise ReverieError(
                "\n".join(plan.rivals)
                + "\nhooks would run twice: remove the other ones, or write these, too, with --force"
            )
        edits = [plan_install(path, plan.scope, entries) for path, entries in plan.files]
        hook_file, settings = HookFile(), load_own_settings()
        hook_edit = hook_file.planned(settings)
        if not dry_run:
            hook_file.update(settings)
            for edit in edits:
                edit.write()
        _answer(agent, plan, [hook_edit, *edits], dry_run=dry_run, json=json)
        if not json and not dry_run:
            for text in [*plan.next_steps, "reverie capture status shows what is captured; off ends it"]:
                note(f"next: {text}")


@commands.command()
def uninstall(
    agent: AgentName, *, project: Project = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Remove from the settings of an agent what `reverie install` wrote, and nothing else.

    Memories stay, and so does what `reverie capture off` has switched off.

    Example: reverie uninstall claude-code --dry-run
    """
    with shown_errors():
        from reverie.cli.agents.edits import plan_uninstall

        plan = _plan(agent, project=project, removes=True)
        edits = [plan_uninstall(path, plan.scope, entries) for path, entries in plan.files]
        if not dry_run:
            for edit in edits:
                edit.write()
        _answer(agent, plan, edits, dry_run=dry_run, json=json)


def _plan(agent: Agent, *, project: bool, removes: bool) -> Plan:
    from reverie.cli.agents import claude_code, codex

    folder = Path.cwd() if project else None
    if agent is Agent.CODEX:
        return codex.plan(folder, removes=removes)
    return claude_code.plan(folder, removes=removes)


def _answer(agent: Agent, plan: Plan, edits: Sequence[Edit], *, dry_run: bool, json: bool) -> None:
    if json:
        print_json(
            {
                "agent": agent.value,
                "scope": plan.scope,
                "dry_run": dry_run,
                "files": [_row(edit, dry_run=dry_run) for edit in edits],
                "notes": plan.notes,
                "next": plan.next_steps,
            }
        )
        return
    for edit in edits:
        if dry_run and edit.diff():
            say(edit.diff().rstrip("\n"))
        else:
            kept = f", its copy is {edit.backup_path}" if edit.backup_path else ""
            say(f"{edit.status} {edit.path}{kept}")
    for text in plan.notes:
        note(f"note: {text}")
    if dry_run:
        note("nothing was written")


def _row(edit: Edit, *, dry_run: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"path": str(edit.path), "status": edit.status}
    row["backup"] = str(edit.backup_path) if edit.backup_path and not dry_run else None
    return {**row, "diff": edit.diff()} if dry_run else row
