"""Commands that change many items: they ask, act step by step, and print how to undo it."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import typer

from reverie.cli.app import opened
from reverie.cli.commands.waiting import progress
from reverie.cli.options import All, AnyUser, Json, Limit, OfCube, OfLabel, OfTask, Url, Yes
from reverie.cli.output import counted, note, plain, print_json, say, show_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

    from reverie.backends.control import ControlResult
    from reverie.face.scheduler import Scheduler
    from reverie.message import Key

__all__ = ["CANCEL", "DELETE", "REQUEUE", "Action", "of_items"]

MOST_AT_ONCE = 100_000
MOST_NAMED = 10
"""The most items that are named one by one."""


class Action(NamedTuple):
    """An action on items."""

    verb: str
    """The verb for people, and the name of the method of `scheduler.control`."""
    done: str
    of: tuple[str, ...]
    """The statuses of items that the action changes."""
    undo: str | None
    """The command that undoes the action; None if nothing does."""


CANCEL = Action("cancel", "cancelled", ("waiting", "in_progress"), "reverie dead requeue")
REQUEUE = Action("requeue", "requeued", ("failed", "cancelled"), "reverie cancel")
DELETE = Action("delete", "deleted", ("failed",), None)


class Meant(NamedTuple):
    """The items that are meant: those that match everything that is given."""

    item_ids: list[str] | None
    user_id: str | None
    task_id: str | None
    mem_cube_id: str | None
    label: str | None

    def check(self) -> None:
        """Refuse a command line on which a forgotten option would mean all items."""
        from reverie.errors import InvalidSelectionError

        if self.item_ids and self.user_id is None:
            raise InvalidSelectionError("an item id belongs to a user: say whose, with --user")
        if not self.item_ids and not self.narrowing():
            raise InvalidSelectionError("say which: item ids with --user, or --user, --task, --cube, --label")

    def narrowing(self) -> dict[str, str]:
        """What is given besides the ids, by the parameter names of `scheduler.control`."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, str)}

    def options(self) -> str:
        """The options and ids as they are typed into a shell."""
        names = {"user_id": "--user", "task_id": "--task", "mem_cube_id": "--cube", "label": "--label"}
        words = [word for name, value in self.narrowing().items() for word in (names[name], value)]
        ids = self.item_ids or []
        return shlex.join([*words, *(["--"] if any(i.startswith("-") for i in ids) else []), *ids])


class Done(NamedTuple):
    """The result of an action, over all its steps."""

    changed: list[Key]
    requested: list[Key]
    more: bool


def of_items(
    action: Action, suggestions: Callable[..., list[str]]
) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Make a command for this action; the decorated function gives the command its name and its help."""

    def make(described: Callable[[], None]) -> Callable[..., None]:
        def command(
            item_ids: Optional[list[str]] = typer.Argument(  # noqa: UP045  typer reads this when it runs
                None, help="Items of --user.", autocompletion=suggestions
            ),
            *,
            user: AnyUser = None,
            task: OfTask = None,
            cube: OfCube = None,
            label: OfLabel = None,
            limit: Limit = 1000,
            everything: All = False,
            yes: Yes = False,
            url: Url = None,
            json: Json = False,
        ) -> None:
            meant = Meant(item_ids, user, task, cube, label)
            _carry_out(action, meant, limit=limit, everything=everything, yes=yes, url=url, json=json)

        command.__name__, command.__doc__ = described.__name__, described.__doc__
        return command

    return make


def _carry_out(
    action: Action, meant: Meant, *, limit: int, everything: bool, yes: bool, url: str | None, json: bool
) -> None:
    """Ask if a person is there and more than one item is meant; act; print what was done."""
    with opened(url) as scheduler:
        meant.check()
        scheduler.open()
        if not yes and sys.stdin.isatty():
            count, exact = _count(scheduler, action, meant)
            _ask(action, meant, count, None if everything else limit, exact=exact)
        with progress(f"{action.done} so far", hidden=json or not everything) as shown:
            done = _repeat(scheduler, action, meant, limit, shown, everything=everything)
        if json:
            keys = {name: [key._asdict() for key in getattr(done, name)] for name in ("changed", "requested")}
            print_json({**keys, "more": done.more})
        else:
            _report(action, meant, done, url)
        if _explain_missing(scheduler, action, meant, done):
            raise typer.Exit(1)


def _count(scheduler: Scheduler, action: Action, meant: Meant) -> tuple[int, bool]:
    """How many items are meant, and whether the number is exact; otherwise there may be fewer."""
    if meant.item_ids:
        return len(set(meant.item_ids)), False
    if meant.user_id is None:
        labels = [s for s in scheduler.control.labels() if meant.label in {None, s.label}]
        exact = meant.task_id is None and meant.mem_cube_id is None
        return sum(getattr(state, status) for state in labels for status in action.of), exact
    from reverie.backends.views import StatusQuery
    from reverie.observe.status import ALL_ITEMS

    query = StatusQuery(user_id=meant.user_id, task_id=meant.task_id, label=meant.label, limit=ALL_ITEMS)
    rows = scheduler.run(scheduler.runtime.backend.views.read(query)).rows
    fits = [
        row
        for row in rows
        if row.status in action.of
        and meant.task_id in {None, row.task_id}
        and meant.label in {None, row.task_type}
        and meant.mem_cube_id in {None, row.mem_cube_id}
    ]
    return len(fits), True


def _ask(action: Action, meant: Meant, count: int, limit: int | None, *, exact: bool) -> None:
    if count <= 1:
        return
    number = counted(count) if exact else f"up to {counted(count)}"
    if limit is not None and limit < count:
        number = f"the first {limit} of {number}"
    warning = "" if action.undo else " This cannot be undone."
    question = f"{action.verb} {number} ({plain(meant.options())})?{warning}"
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)


def _repeat(
    scheduler: Scheduler, action: Action, meant: Meant, limit: int, shown: Progress, *, everything: bool
) -> Done:
    """Do one step, or with `everything` as many as change new items.

    A running item that was asked to stop still matches, so later steps have a higher limit. Items that fail
    again at once after a requeue are not new, and end the loop.
    """
    changed: dict[Key, None] = {}
    requested: dict[Key, None] = {}
    act: Callable[..., ControlResult] = getattr(scheduler.control, action.verb)
    bar = shown.add_task("", total=None)
    while True:
        step: dict[str, Any] = {"limit": min(limit + len(requested), MOST_AT_ONCE), **meant.narrowing()}
        result = act(meant.item_ids or None, **step)
        before = len(changed.keys() | requested.keys())
        changed.update(dict.fromkeys(result.changed))
        requested.update(dict.fromkeys(result.requested))
        now = len(changed.keys() | requested.keys())
        shown.update(bar, completed=now)
        if not (everything and result.more and now > before):
            return Done(list(changed), [key for key in requested if key not in changed], result.more)


def _report(action: Action, meant: Meant, done: Done, url: str | None) -> None:
    asked = f", asked {len(done.requested)} to stop" if done.requested else ""
    say(f"{action.done} {counted(len(done.changed))}{asked}")
    if done.more:
        note("there are more: do it again, or use --all")
    if action.undo and (done.changed or done.requested):
        note(f"to undo: {action.undo}{_url_option(url)} {plain(_undone(action, meant, done))}")


def _undone(action: Action, meant: Meant, done: Done) -> str:
    """The arguments of the undo command: the changed items if they are few, else all that match."""
    keys = [*done.changed, *done.requested]
    users = {key.user_id for key in keys}
    if len(keys) <= MOST_NAMED and len(users) == 1:
        return Meant([key.item_id for key in keys], users.pop(), None, None, None).options()
    others = "had failed or was cancelled" if action is CANCEL else "waited or ran"
    return f"--all {meant.options()}  (also all that fits and {others} before)"


def _url_option(url: str | None) -> str:
    from reverie.errors import redacted

    return "" if url is None else f" --url {shlex.quote(url) if redacted(url) == url else '…'}"


def _explain_missing(scheduler: Scheduler, action: Action, meant: Meant, done: Done) -> bool:
    """Print why named items were left alone; return whether there are any."""
    from reverie.backends.views import StatusQuery
    from reverie.errors import UnknownItemError

    if not meant.item_ids or meant.user_id is None or done.more:
        return False
    reached = {key.item_id for key in (*done.changed, *done.requested)}
    missing = [item_id for item_id in dict.fromkeys(meant.item_ids) if item_id not in reached]
    for item_id in missing:
        query = StatusQuery(user_id=meant.user_id, item_id=item_id)
        if rows := scheduler.run(scheduler.runtime.backend.views.read(query)).rows:
            words = " or ".join(action.of).replace("_", " ")
            show_error(f"{plain(item_id)} is {rows[0].status}: only what is {words} can be {action.done}")
        else:
            show_error(str(UnknownItemError(meant.user_id, item_id)))
    return bool(missing)
