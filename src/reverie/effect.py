"""Effects: changes to memory as plain values.

A handler does not write. It returns effects, and the memory store applies them in the step that settles the
message, so that a message which runs twice changes memory once. An effect never names a tenant: it is applied
to the tenant of its message, and no handler can write into another user's memory.

An effect that changes an existing item carries the version that the handler has read. If the item has another
version by the time the effect is applied, nothing of the message is applied and the message runs again.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from reverie.message import MessageLimits, check_name

__all__ = [
    "Delete",
    "Effect",
    "Link",
    "Move",
    "Relation",
    "Remember",
    "Revise",
    "Source",
    "Supersede",
    "Touch",
    "check_effect",
]

Relation = Literal["derived_from", "supersedes", "about", "next"]
"""How one memory item is linked to another."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a memory comes from: one turn of one captured message."""

    item_id: str
    index: int = 0
    role: str | None = None
    chat_time: str | None = None
    info: dict[str, Any] | None = None


class _Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all kinds of effects. The field `type` names the kind, in lower case."""


class Remember(_Effect, frozen=True, kw_only=True, tag="remember"):
    """Keep one new memory item. Remembering the same id and text again changes nothing.

    The id of a deleted item stays deleted: remembering it again writes nothing.
    """

    memory_id: str
    """The id. Derive it from the message (`derived_id`), so that a repeated run names the same memory."""
    text: str
    kind: str = "fact"
    tier: str = "long_term"
    session_id: str | None = None
    tags: tuple[str, ...] = ()
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] = ()


class Revise(_Effect, frozen=True, kw_only=True, tag="revise"):
    """Change an item in place. Fields that are None stay as they are."""

    memory_id: str
    version: int
    """The version that the handler has read."""
    text: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] | None = None
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] | None = None


class Supersede(_Effect, frozen=True, kw_only=True, tag="supersede"):
    """Replace an item by a successor. The item stays in history, but a search no longer finds it.

    The successor must exist, or be remembered by an earlier effect of the same message.
    """

    memory_id: str
    version: int
    successor: str


class Move(_Effect, frozen=True, kw_only=True, tag="move"):
    """Move an item to another tier."""

    memory_id: str
    version: int
    tier: str


class Touch(_Effect, frozen=True, kw_only=True, tag="touch"):
    """Count one access to an item. Nothing happens if the item is gone."""

    memory_id: str


class Link(_Effect, frozen=True, kw_only=True, tag="link"):
    """Link one item to another. Repeating a link changes nothing."""

    source_id: str
    relation: Relation
    target_id: str


class Delete(_Effect, frozen=True, kw_only=True, tag="delete"):
    """Remove an item, its words and its links; its id is never written again."""

    memory_id: str
    version: int


Effect = Remember | Revise | Supersede | Move | Touch | Link | Delete
"""Every kind of effect. A new kind is added here and to each store's table of writers."""
KINDS: tuple[type[msgspec.Struct], ...] = get_args(Effect)
_NAMES = ("memory_id", "successor", "source_id", "target_id", "session_id", "kind", "tier")
_NAMES_OF = {kind: [name for name in _NAMES if name in kind.__struct_fields__] for kind in KINDS}
"""Kind of effect → its fields that hold an id or a name."""


def check_effect(effect: Any, limits: MessageLimits) -> None:
    """Refuse an effect that no store could keep: of an unknown kind, or with an id or name that is wrong."""
    if type(effect) not in _NAMES_OF:
        raise TypeError(f"{type(effect).__name__} is no effect")
    for name in _NAMES_OF[type(effect)]:
        value = getattr(effect, name)
        if value is not None:
            check_name(name, value, limits)
    msgspec.json.decode(msgspec.json.encode(effect), type=Effect)
