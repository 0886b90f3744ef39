"""`reverie sessions` and `reverie timeline`: the sessions of agents, and what was learned in them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from reverie.cli.app import opened_memory
from reverie.cli.options import Json, OfCube, Text, Url, Yes
from reverie.cli.output import memories, moment, note, one_line, plain, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.face.scheduler import Scheduler
    from reverie.memory.item import MemoryItem
    from reverie.memory.sessions import Session

__all__ = ["commands", "timeline"]

commands = typer.Typer(help="List, show and delete sessions of agents.", no_args_is_help=True)

OfUser = Annotated[Text, typer.Option("--user", "-u", help="The user's id. Default: the login name.")]
SessionId = Annotated[str, typer.Argument(help="The id of the session.")]
Status = Optional[Literal["created", "active", "completed", "failed"]]  # noqa: UP045  typer reads this when it runs
MOST_COUNTED = 1000
"""How many memories of a session are counted before it is deleted."""
NOT_SHOWN = frozenset({"context", "last_items"})
"""Fields of a session that a list leaves out: they are long, or for the worker alone."""


@commands.command("list")
def list_sessions(
    *,
    user: OfUser = None,
    cube: OfCube = None,
    status: Annotated[Status, typer.Option("--status", help="Only with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    after: Annotated[Text, typer.Option("--after", help="The cursor that the page before has named.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List sessions, the one with the latest hook first, a page at a time.

    Example: reverie sessions list --status active
    """
    with opened_memory(url) as scheduler:
        whose = _user(user)
        page = scheduler.sessions.list(
            user_id=whose, mem_cube_id=cube, status=status, after=after, limit=limit
        )
        if json:
            print_json({"sessions": [_fields(one) for one in page.sessions], "next": page.next})
            return
        if not page.sessions:
            note(f"there are no such sessions of {plain(whose)}")
            return
        print_table(
            ["id", "last hook", "status", "agent", "cube", "prompts", "title"],
            [
                (
                    one.session_id,
                    moment(one.updated_at),
                    one.status,
                    one.agent,
                    one.mem_cube_id,
                    one.prompts,
                    one_line(one.title or ""),
                )
                for one in page.sessions
            ],
        )
        if page.next is not None:
            note(f"there are more: --after {plain(page.next)}")


@commands.command()
def show(session_id: SessionId, *, user: OfUser = None, url: Url = None, json: Json = False) -> None:
    """Show a session, and the context that its agent was given.

    Example: reverie sessions show 5b2e4c1a-7d3f-4e89-9a60-1c2d3e4f5a6b
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import UnknownSessionError

        whose = _user(user)
        session = scheduler.sessions.get(session_id, user_id=whose)
        if session is None:
            raise UnknownSessionError(session_id)
        if json:
            print_json(_fields(session) | {"context": session.context})
            return
        _show(session)
        words = ["reverie", "timeline", "--user", whose, f"--session={session_id}"]
        note(f"what was learned in it: {shlex.join(words)}")


def _show(session: Session) -> None:
    facts: dict[str, Any] = {
        "id": session.session_id,
        "user": session.user_id,
        "cube": session.mem_cube_id,
        "status": session.status,
        "error": session.error,
        "agent": session.agent,
        "title": session.title,
        "prompts": session.prompts,
        "began": moment(session.created_at),
        "last hook": moment(session.updated_at),
        "ended": moment(session.ended_at),
        "settled": moment(session.completed_at),
    }
    for name, value in facts.items():
        if value not in {"", None}:
            say(f"{name:<10} {plain(str(value))}")
    if session.context:
        say("\ncontext")
        say("\n".join(f"  {line}" for line in session.context.splitlines()))


@commands.command()
def delete(
    session_id: SessionId, *, user: OfUser = None, yes: Yes = False, url: Url = None, json: Json = False
) -> None:
    """Delete a session and all its memories. This cannot be undone.

    Delete it after its end: what its agent does later is kept again.

    Example: reverie sessions delete 5b2e4c1a-7d3f-4e89-9a60-1c2d3e4f5a6b
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import UnknownSessionError

        whose = _user(user)
        session = scheduler.sessions.get(session_id, user_id=whose)
        count = _count(scheduler, session_id, whose)
        if session is None and not count:
            raise UnknownSessionError(session_id)
        if not yes and sys.stdin.isatty():
            many = f"{MOST_COUNTED} or more memories" if count >= MOST_COUNTED else memories(count)
            title = f", {one_line(session.title)!r}," if session is not None and session.title else ""
            question = plain(f"delete the session {session_id}{title} and {many} of {whose}?")
            if not typer.confirm(f"{question} This cannot be undone.", err=True):
                note("nothing was changed")
                raise typer.Exit(1)
        deleted = scheduler.sessions.delete(session_id, user_id=whose)
        if json:
            print_json({"session_id": session_id, "memories": deleted})
            return
        say(plain(f"deleted the session {session_id} and {memories(deleted)}"))
        note("this cannot be undone")


def _count(scheduler: Scheduler, session_id: str, user_id: str) -> int:
    found = scheduler.sessions.timeline(
        user_id=user_id, session_id=session_id, before=MOST_COUNTED - 1, after=0
    )
    return len(found)


def timeline(
    *,
    session: Annotated[Text, typer.Option("--session", help="What was learned in this session.")] = None,
    around: Annotated[
        Text, typer.Option("--around", metavar="ID", help="What was learned around this memory.")
    ] = None,
    file: Annotated[
        Text, typer.Option("--file", metavar="PATH", help="What was learned about this file.")
    ] = None,
    before: Annotated[int, typer.Option(min=0, max=1000, help="How many before it.")] = 10,
    after: Annotated[int, typer.Option(min=0, max=1000, help="How many after it.")] = 10,
    user: OfUser = None,
    cube: OfCube = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show memories in their order: of a session, around one memory, or about a file.

    A file is named by its path or by its name alone.

    Example: reverie timeline --around 3f2b7c1e.0 --before 5 --after 5
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import InvalidSelectionError

        if sum(given is not None for given in (session, around, file)) != 1:
            raise InvalidSelectionError("name one of --session, --around and --file")
        found: Sequence[MemoryItem] = []
        for path in [None] if file is None else _paths(file):
            found = scheduler.sessions.timeline(
                user_id=_user(user),
                mem_cube_id=cube,
                session_id=session,
                around=around,
                file=path,
                before=before,
                after=after,
            )
            if found:
                break
        if json:
            print_json(found)
            return
        if not found:
            note(f"there are no such memories of {plain(_user(user))}")
            return
        print_table(
            ["", "when", "kind", "id", "memory"],
            [
                (
                    "→" if item.id == around else "",
                    moment(item.held_at),
                    item.kind if item.type is None else f"{item.kind} ({item.type})",
                    item.id,
                    one_line(item.title or item.text),
                )
                for item in found
            ],
        )


def _paths(file: str) -> list[str]:
    """The names under which a file may be known: agents mostly tell whole paths."""
    whole = str(Path(file).expanduser().absolute())
    return list(dict.fromkeys([file, whole] if "/" in file else [file]))


def _user(given: str | None) -> str:
    from reverie.capture.hook_settings import login_name

    return login_name() if given is None else given


def _fields(session: Session) -> dict[str, Any]:
    import msgspec

    return {name: value for name, value in msgspec.structs.asdict(session).items() if name not in NOT_SHOWN}
