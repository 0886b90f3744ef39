"""The commands of `reverie memories`: list, show, edit and delete what is remembered."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import opened_memory
from reverie.cli.commands.send import read_content
from reverie.cli.options import AnyUser, Json, Moment, OfCube, Text, Texts, Url, User, Yes, read_moment
from reverie.cli.output import (
    memories,
    moment,
    note,
    one_line,
    plain,
    print_json,
    print_table,
    say,
    show_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.face.scheduler import Scheduler
    from reverie.memory.interface import MemoryPage
    from reverie.memory.item import LinkedItem, MemoryItem, Revision

__all__ = ["commands"]

commands = typer.Typer(help="List, show, edit and delete what is remembered.", no_args_is_help=True)

MemoryId = Annotated[str, typer.Argument(help="The id of the memory.")]
LONGEST_UNDO = 300
"""The most characters of an old text in a command that undoes an edit."""


@commands.command("list")
def list_memories(
    *,
    user: AnyUser = None,
    cube: OfCube = None,
    kinds: Annotated[Texts, typer.Option("--kind", help="Of this kind; may be repeated.")] = None,
    tiers: Annotated[Texts, typer.Option("--tier", help="In this tier; may be repeated.")] = None,
    session: Annotated[Text, typer.Option("--session", help="Of this conversation.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also memories that others have superseded.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    after: Annotated[Text, typer.Option("--after", help="The cursor that the page before has named.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List memories in the order in which they were learned, a page at a time.

    Example: reverie memories list --user ann --newest --limit 20
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import InvalidSelectionError

        if user is None and newest:
            raise InvalidSelectionError("--newest orders the memories of one user: say whose, with --user")
        chosen: dict[str, Any] = {
            "kinds": tuple(kinds or ()),
            "tiers": tuple(tiers or ()),
            "session_id": session,
            "with_superseded": superseded,
        }
        if user is None:
            page = _page_of_all(scheduler, cube, after, limit, chosen)
        else:
            page = scheduler.memory.page(
                user_id=user, mem_cube_id=cube, newest_first=newest, after=after, limit=limit, **chosen
            )
        if json:
            print_json(page)
            return
        _show_page(page, with_user=user is None)


def _page_of_all(
    scheduler: Scheduler, cube: str | None, after: str | None, limit: int, chosen: dict[str, Any]
) -> MemoryPage:
    """One page of the memories of all users, user by user."""
    from reverie.memory.tenants import page_of_all

    scheduler.open()
    return scheduler.run(
        page_of_all(scheduler.runtime.reads, mem_cube_id=cube, after=after, limit=limit, **chosen)
    )


def _show_page(page: MemoryPage, *, with_user: bool) -> None:
    if not page.items:
        note("there are no such memories")
        return
    rows = [
        (
            *([item.user_id] if with_user else []),
            item.id,
            moment(item.created_at),
            item.kind,
            item.tier if item.superseded_by is None else "superseded",
            one_line(item.text),
        )
        for item in page.items
    ]
    print_table([*(["user"] if with_user else []), "id", "learned", "kind", "tier", "memory"], rows)
    if page.next is not None:
        note(f"there are more: --after {plain(page.next)}")


@commands.command()
def show(memory_id: MemoryId, *, user: User, url: Url = None, json: Json = False) -> None:
    """Show a memory, what it was before it was changed, and what it is linked to.

    Example: reverie memories show bees.0 --user ann
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import UnknownMemoryError

        item = scheduler.memory.get(memory_id, user_id=user, follow=False)
        if item is None:
            raise UnknownMemoryError(memory_id)
        history = scheduler.memory.history(memory_id, user_id=user)
        links = scheduler.memory.links(memory_id, user_id=user)
        if json:
            print_json({"item": item, "history": history, "links": links})
            return
        for name, value in _facts(item).items():
            if value not in {"", None}:
                say(f"{name:<13} {plain(str(value))}")
        say("")
        say(item.text)
        _show_history(history)
        _show_links(links)


def _facts(item: MemoryItem) -> dict[str, Any]:
    """The fields of a memory for people, by their names."""
    import msgspec

    return {
        "id": item.id,
        "user": item.user_id,
        "cube": item.mem_cube_id,
        "kind": item.kind if item.type is None else f"{item.kind} ({item.type})",
        "tier": item.tier,
        "status": item.status,
        "superseded by": item.superseded_by,
        "title": item.title,
        "session": item.session_id,
        "device": item.device_id,
        "agent": item.agent_id,
        "domain": item.domain,
        "tags": ", ".join(item.tags),
        "concepts": ", ".join(item.concepts),
        "facts": "; ".join(item.facts),
        "narrative": item.narrative,
        "importance": f"{item.importance:g}",
        "sources": "; ".join(
            " ".join(
                filter(None, [f"{source.item_id}.{source.index}", source.role, source.name, source.chat_time])
            )
            for source in item.sources
        ),
        "info": msgspec.json.encode(item.info).decode() if item.info else "",
        "learned": moment(item.created_at),
        "changed": moment(item.updated_at),
        "valid from": moment(item.valid_from),
        "valid to": moment(item.valid_to),
        "expires": moment(item.expires_at),
        "used": f"{item.access_count} times, last {moment(item.accessed_at)}" if item.access_count else "",
        "version": item.version,
    }


def _show_history(history: Sequence[Revision]) -> None:
    if history:
        print_table(
            ["version", "until", "change", "kind", "tier", "was"],
            [
                (old.version, moment(old.changed_at), old.change, old.kind, old.tier, one_line(old.text))
                for old in history
            ],
        )


def _show_links(links: Sequence[LinkedItem]) -> None:
    if links:
        print_table(
            ["", "link", "id", "memory"],
            [
                ("to" if link.outgoing else "from", link.relation, link.item.id, one_line(link.item.text))
                for link in links
            ],
        )


@commands.command()
def edit(
    memory_id: MemoryId,
    *,
    user: User,
    text: Annotated[Text, typer.Option("--text", help="The new text; - reads standard input.")] = None,
    kind: Annotated[Text, typer.Option("--kind", help="The new kind.")] = None,
    title: Annotated[Text, typer.Option("--title", help="The new title.")] = None,
    tags: Annotated[
        Texts, typer.Option("--tag", help="The tags, in place of the old ones; may be repeated; '' for none.")
    ] = None,
    importance: Annotated[
        Optional[float],  # noqa: UP045  typer reads this when it runs
        typer.Option(min=0, max=1, help="0 to 1: less important memories are archived first."),
    ] = None,
    valid_from: Annotated[
        Moment, typer.Option("--valid-from", parser=read_moment, metavar="TIME", help="Since when it holds.")
    ] = None,
    valid_to: Annotated[
        Moment, typer.Option("--valid-to", parser=read_moment, metavar="TIME", help="Until when it held.")
    ] = None,
    version: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--version", min=1, help="Refuse if the memory has another version by now."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Change a memory. What it was stays in its history.

    Without options, $EDITOR opens with the text. A TIME is an ISO date or milliseconds since 1970. The id of
    a superseded memory leads to its successor.

    Example: reverie memories edit bees.0 --user ann --text "I kept bees until 2026"
    """
    with opened_memory(url) as scheduler:
        from reverie.errors import UnknownMemoryError

        item = scheduler.memory.get(memory_id, user_id=user)
        if item is None:
            raise UnknownMemoryError(memory_id)
        given = {
            "text": None if text is None else read_content(text),
            "kind": kind,
            "title": title,
            "tags": None if tags is None else [tag for tag in tags if tag],
            "importance": importance,
            "valid_from": valid_from,
            "valid_to": valid_to,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not changes:
            changes["text"] = _edited(item)
            version = item.version if version is None else version
        changed = scheduler.memory.update(item.id, user_id=user, version=version, **changes)
        if json:
            print_json(changed)
            return
        say(plain(f"changed {changed.id}, now version {changed.version}"))
        note(_undo(item, user, changes))


def _edited(item: MemoryItem) -> str:
    """The text of a memory as a person has changed it in an editor."""
    import click

    from reverie.errors import InvalidSelectionError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidSelectionError(
            "say what to change: --text, --kind, --title, --tag, --importance, --valid-…"
        )
    try:
        text = click.edit(item.text, extension=".txt")
    except click.ClickException as error:
        raise InvalidSelectionError(f"{error.format_message()}; or use --text") from error
    text = None if text is None else text if item.text.endswith("\n") else text.removesuffix("\n")
    if text is None or text == item.text:
        note("nothing was changed")
        raise typer.Exit(1)
    return text


def _undo(item: MemoryItem, user: str, changes: dict[str, Any]) -> str:
    """How to take an edit back: a command if the old values can be typed, else where to find them."""
    words = ["reverie", "memories", "edit", "--user", user]
    for name in changes:
        old = getattr(item, name)
        if name == "tags":
            words += [f"--tag={tag}" for tag in old or [""]]
        elif name in {"valid_from", "valid_to"} and old is None:
            continue  # a time can be changed, and not be taken away
        else:
            words.append(f"--{name.replace('_', '-')}={'' if old is None else old}")
    command = shlex.join([*words, "--", item.id])
    old_text = item.text if "text" in changes else ""
    if len(words) > 5 and len(old_text) <= LONGEST_UNDO and old_text.isprintable():
        return f"to undo: {command}"
    look = shlex.join(["reverie", "memories", "show", "--user", user, "--", item.id])
    return f"what it was stays in its history: {look}"


@commands.command()
def delete(
    memory_ids: Annotated[list[str], typer.Argument(help="The ids of the memories.")],
    *,
    user: User,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Delete memories, and those that were made from nothing else. This cannot be undone.

    Their text leaves the file, and their ids are never used again.

    Example: reverie memories delete bees.0 --user ann
    """
    with opened_memory(url) as scheduler:
        ids = list(dict.fromkeys(memory_ids))
        if len(ids) > 1 and not yes and sys.stdin.isatty():
            question = f"delete {memories(len(ids))} of {plain(user)}? This cannot be undone."
            if not typer.confirm(question, err=True):
                note("nothing was changed")
                raise typer.Exit(1)
        done = _delete_each(scheduler, user, ids)
        if json:
            print_json(done)
        else:
            say(f"deleted {memories(len(done['deleted']))}")
            if done["deleted"]:
                note("this cannot be undone")
        for memory_id in done["deleted_before"]:
            note(plain(f"the memory {memory_id!r} was deleted before"))
        for memory_id in done["unknown"]:
            show_error(f"there is no memory {memory_id!r} of {plain(user)}")
        if done["unknown"]:
            raise typer.Exit(1)


def _delete_each(scheduler: Scheduler, user: str, memory_ids: Sequence[str]) -> dict[str, list[str]]:
    """Delete memories one by one, and sort their ids by what became of them."""
    from reverie.errors import MemoryDeletedError

    done: dict[str, list[str]] = {"deleted": [], "deleted_before": [], "unknown": []}
    for memory_id in memory_ids:
        try:
            item = scheduler.memory.get(memory_id, user_id=user, follow=False)
        except MemoryDeletedError:
            # Perhaps by this very command: it was made from a memory that was deleted a moment ago.
            done["deleted_before"].append(memory_id)
            continue
        if item is None:
            done["unknown"].append(memory_id)
            continue
        scheduler.memory.delete(memory_id, user_id=user)
        done["deleted"].append(memory_id)
    return done
