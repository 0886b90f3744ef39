"""The commands of `reverie keys`, and `reverie audit`: API keys, and who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import opened
from reverie.cli.options import AnyUser, Json, Moment, Texts, Url, read_moment
from reverie.cli.output import moment, note, plain, print_json, print_table, say

if TYPE_CHECKING:
    from reverie.access.keys import ApiKey, NewKey

__all__ = ["audit", "commands"]

commands = typer.Typer(help="Make, list, rotate and revoke API keys.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(help="The id of the key, as list shows it.")]
Number = Optional[int]  # noqa: UP045  typer reads this when it runs


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="What people call the key.")],
    *,
    role: Annotated[str, typer.Option(help="read-only, user, service or admin.")] = "user",
    users: Annotated[
        Texts, typer.Option("--user", "-u", help="A user that it may touch; may be repeated. Default: all.")
    ] = None,
    cubes: Annotated[
        Texts, typer.Option("--cube", help="A cube of these users; may be repeated. Default: all.")
    ] = None,
    attributes: Annotated[
        Texts, typer.Option("--attribute", help="name=value, for governance; may be repeated.")
    ] = None,
    expires: Annotated[
        Moment, typer.Option("--expires", parser=read_moment, metavar="TIME", help="Until when it is valid.")
    ] = None,
    requests_per_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Requests a second, in each server process."),
    ] = None,
    max_body_bytes: Annotated[Number, typer.Option(min=1, help="Bytes of one request.")] = None,
    max_json_depth: Annotated[Number, typer.Option(min=1, help="Levels of JSON in a request.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a key, and show it once. From the first key on, every request over HTTP needs one.

    A TIME is an ISO date or milliseconds since 1970. A key of the role user names its users.

    Example: reverie keys create "Ann's phone" --user ann

    Example: reverie keys create operations --role admin
    """
    with opened(url, makes=True) as scheduler:
        from reverie.access.keys import KeyLimits

        made = scheduler.keys.create(
            name,
            role,
            users=users,
            cubes=cubes,
            attributes=_attributes(attributes or []),
            limits=KeyLimits(
                requests_per_s=requests_per_s, max_body_bytes=max_body_bytes, max_json_depth=max_json_depth
            ),
            expires_at=expires,
        )
        _show_once(made, json=json)


def _attributes(given: list[str]) -> dict[str, Any]:
    from reverie.errors import InvalidSelectionError

    pairs = [text.partition("=") for text in given]
    for text, (name, sign, _) in zip(given, pairs, strict=True):
        if not name or not sign:
            raise InvalidSelectionError(f"--attribute {text!r}: must be name=value")
    return {name: value for name, _, value in pairs}


def _show_once(made: NewKey, *, json: bool) -> None:
    if json:
        print_json({"key": made.key, "token": made.token})
        return
    say(made.token)
    note(f"the key {made.key.id} is not shown again: keep it; send it as 'Authorization: Bearer …'")


@commands.command("list")
def list_keys(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    after: Annotated[str, typer.Option("--after", help="Go on after the key with this id.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """List keys by their ids, without their secrets; revoked and expired ones, too.

    Example: reverie keys list
    """
    with opened(url) as scheduler:
        keys = scheduler.keys.page(after=after, limit=limit)
        if json:
            print_json(keys)
            return
        if not keys:
            note("there are no keys" if not after else "there are no further keys")
            return
        now = scheduler.runtime.clock.now()
        print_table(
            ["id", "name", "role", "users", "cubes", "made", "state"],
            [
                (
                    key.id,
                    key.name,
                    key.role,
                    _names(key.users),
                    _names(key.cubes),
                    moment(key.created_at),
                    _state(key, now),
                )
                for key in keys
            ],
        )
        if len(keys) == limit:
            note(f"there may be more: --after {keys[-1].id}")


def _names(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ", ".join(names)


def _state(key: ApiKey, now: int) -> str:
    if key.revoked_at is not None:
        return f"revoked {moment(key.revoked_at)}"
    if key.expires_at is None:
        return "valid"
    return f"{'expired' if key.expires_at <= now else 'valid until'} {moment(key.expires_at)}"


@commands.command()
def rotate(
    key_id: KeyId,
    *,
    overlap: Annotated[float, typer.Option(min=0, help="Seconds for which the old one stays valid.")] = 0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Give a key a new secret, and show it once.

    Example: reverie keys rotate 5f0c9d3e1a2b --overlap 3600
    """
    with opened(url) as scheduler:
        _show_once(scheduler.keys.rotate(key_id, overlap_s=overlap), json=json)


@commands.command()
def revoke(key_id: KeyId, *, url: Url = None, json: Json = False) -> None:
    """Refuse a key from now on; servers follow within a second. This cannot be undone.

    Example: reverie keys revoke 5f0c9d3e1a2b
    """
    with opened(url) as scheduler:
        key = scheduler.keys.revoke(key_id)
        if json:
            print_json(key)
        else:
            say(plain(f"revoked {key.id}, {key.name}"))


def audit(
    user: AnyUser = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 100,
    before: Annotated[Number, typer.Option("--before", help="Go on before the entry of this number.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show who changed what, newest first: keys, deletions, changes of memories, controls.

    The caller is the id of an API key, or `local`. There is never content in it.

    Example: reverie audit --user ann
    """
    with opened(url) as scheduler:
        entries = scheduler.audit.page(before=before, limit=limit, user_id=user)
        if json:
            print_json(entries)
            return
        if not entries:
            note("there are no entries")
            return
        print_table(
            ["number", "when", "who", "what", "of", "user"],
            [
                (entry.number, moment(entry.at), entry.who, entry.action, entry.target, entry.user_id)
                for entry in entries
            ],
        )
        if len(entries) == limit:
            note(f"there may be more: --before {entries[-1].number}")
