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
    "Buffer",
    "BufferDone",
    "Delete",
    "Effect",
    "Extracted",
    "InPass",
    "Judged",
    "KeepSearch",
    "KeepStatistics",
    "Link",
    "Move",
    "NoteAnswer",
    "NoteQuery",
    "PassDone",
    "PutSession",
    "Relation",
    "Remember",
    "Revise",
    "Source",
    "Supersede",
    "Touch",
    "UndoPass",
    "check_effect",
]

Relation = Literal["derived_from", "supersedes", "about", "next", "may_contradict"]
"""How one memory item is linked to another. `may_contradict` leads from the later of two items to the earlier
one: only a language model, or a person, can tell whether they contradict each other."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a memory comes from: one turn of one captured message."""

    item_id: str
    index: int = 0
    role: str | None = None
    name: str | None = None
    """The name of the speaker."""
    chat_time: str | None = None
    """When it was said, as the client wrote it."""
    message_id: str | None = None
    """The id of the utterance in the client's own system."""
    type: str = "chat"
    """chat, doc, web, file or system."""
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
    type: str | None = msgspec.field(default=None, name="item_type")  # "type" names the kind of effect
    """A finer kind, such as the tool that an observation is about."""
    title: str | None = None
    narrative: str | None = None
    """A longer account, where `text` is the short one."""
    facts: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    session_id: str | None = None
    device_id: str | None = None
    agent_id: str | None = None
    domain: str | None = None
    """The field of life or work that the memory belongs to."""
    tags: tuple[str, ...] = ()
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] = ()
    importance: float = 0.5
    """From 0 to 1. Less important items are evicted first."""
    valid_from: int | None = None
    """Since when it holds, in epoch milliseconds; None: since it was learned."""
    valid_to: int | None = None
    """Until when it held, in epoch milliseconds; None: it still holds."""
    expires_at: int | None = None
    """When the item may be removed, in epoch milliseconds; None: never."""
    learned_at: int | None = None
    """When it was learned, in epoch milliseconds; None: when it is written."""


class Revise(_Effect, frozen=True, kw_only=True, tag="revise"):
    """Change an item in place. Fields that are None stay as they are; if all do, there is no new version."""

    memory_id: str
    version: int
    """The version that the handler has read."""
    text: str | None = None
    kind: str | None = None
    title: str | None = None
    tags: tuple[str, ...] | None = None
    info: dict[str, Any] | None = None
    sources: tuple[Source, ...] | None = None
    importance: float | None = None
    valid_from: int | None = None
    valid_to: int | None = None


class Supersede(_Effect, frozen=True, kw_only=True, tag="supersede"):
    """Replace an item by a successor. The item stays in history, but a search no longer finds it.

    The successor must exist, or be remembered by an earlier effect of the same message.
    """

    memory_id: str
    version: int
    successor: str
    successor_version: int | None = None
    """The version of the successor that the handler has read; None: the successor is new, or any version will
    do."""


class Move(_Effect, frozen=True, kw_only=True, tag="move"):
    """Move an item to another tier."""

    memory_id: str
    version: int
    tier: str


class Touch(_Effect, frozen=True, kw_only=True, tag="touch"):
    """Count one access to an item. An archived item comes back. Nothing happens if the item is gone."""

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
    with_members: bool = False
    """Whether the items that were merged into it are removed, too. Otherwise they come back."""


class Buffer(_Effect, frozen=True, kw_only=True, tag="buffer"):
    """Put a text into a buffer of the message's tenant. A known id changes nothing.

    A text whose memory was deleted is not put there.
    """

    buffer_id: str
    """The id of the row. Derive it from the message."""
    blob_id: str
    """The id of the memory that keeps the text word for word."""
    content: str
    tokens: int
    """How many tokens the content has."""
    blob_type: str = "chat"
    metadata: dict[str, Any] = {}


class BufferDone(_Effect, frozen=True, kw_only=True, tag="buffer_done"):
    """Mark rows of a buffer done, because what was in them has become memories.

    A row that no longer carries the token is a conflict: the message runs again, and nothing is applied.
    Rows whose memory was deleted meanwhile are passed over.
    """

    token: str
    """The token of the claim."""
    buffer_ids: tuple[str, ...]
    blob_type: str = "chat"


class Extracted(_Effect, frozen=True, kw_only=True, tag="extracted"):
    """Note that items were read for facts, whether or not they held any."""

    memory_ids: tuple[str, ...]


class NoteQuery(_Effect, frozen=True, kw_only=True, tag="note_query"):
    """Keep a query among the last ones of the tenant."""

    query_id: str
    """The item_id of the message that brings the query."""
    query: str
    session_id: str | None = None
    found: tuple[str, ...] = ()
    """The memories that a search has found for it."""


class NoteAnswer(_Effect, frozen=True, kw_only=True, tag="note_answer"):
    """Keep the answer to a query that is still kept."""

    answer: str
    query_id: str | None = None
    """None: the last query of the session that has no answer yet."""
    session_id: str | None = None
    used: tuple[str, ...] = ()
    """The memories that the answer has used."""


class KeepSearch(_Effect, frozen=True, kw_only=True, tag="keep_search"):
    """Keep what an enhanced search has found for the next search with the same query.

    Nothing is kept if a memory of the tenant was changed since the search began.
    """

    query: str
    """The key of the query, by `query_key`."""
    changes: int
    """The number of changes of the tenant when the search began."""
    hits: tuple[tuple[str, float], ...]
    """The ids and scores of the memories, best first."""


class KeepStatistics(_Effect, frozen=True, kw_only=True, tag="keep_statistics"):
    """Keep how many items the tenant has on a day."""

    day: str
    """The day in UTC, such as 2026-05-07."""
    changes: int
    """The number of changes of the tenant when the count began."""
    counts: tuple[tuple[str, str, int], ...]
    """Kind, tier, number of living items."""


class InPass(_Effect, frozen=True, kw_only=True, tag="in_pass"):
    """Let the later effects of the message belong to a pass of upkeep, which `UndoPass` can take back.

    If the pass was taken back already, the later effects of the message are not written.
    """

    pass_id: str
    """Messages of one pass share it."""
    label: str
    """The label of the upkeep."""


class PassDone(_Effect, frozen=True, kw_only=True, tag="pass_done"):
    """Note that upkeep of one label has looked at all that was changed until a moment."""

    label: str
    until: int
    """In epoch milliseconds."""


class Judged(_Effect, frozen=True, kw_only=True, tag="judged"):
    """Note that upkeep has decided upon groups of items: it does not look at them again."""

    keys: tuple[str, ...]
    """A hash of the items of each group, and of their texts."""


class UndoPass(_Effect, frozen=True, kw_only=True, tag="undo_pass"):
    """Take a pass of upkeep back: merged, replaced and archived items are again what they were.

    What was deleted since stays deleted, and an item that somebody has changed since stays as it is.
    """

    pass_id: str


class PutSession(_Effect, frozen=True, kw_only=True, tag="put_session"):
    """Write the begin or the end of a session of the message's cube.

    An end is not written if a later hook has come meanwhile. A session of another cube stays as it is.
    """

    session_id: str
    status: Literal["created", "completed", "failed"]
    at: int
    """When the agent has reported it, in epoch milliseconds."""
    agent: str | None = None
    error: str | None = None


Effect = (
    Remember
    | Revise
    | Supersede
    | Move
    | Touch
    | Link
    | Delete
    | Buffer
    | BufferDone
    | Extracted
    | NoteQuery
    | NoteAnswer
    | KeepSearch
    | KeepStatistics
    | InPass
    | PassDone
    | Judged
    | UndoPass
    | PutSession
)
"""Every kind of effect. A new kind is added here and to each store's table of writers."""
KINDS: tuple[type[msgspec.Struct], ...] = get_args(Effect)
_NAMES = (
    "buffer_id",
    "blob_id",
    "memory_id",
    "pass_id",
    "successor",
    "source_id",
    "target_id",
    "session_id",
    "kind",
    "tier",
)
_NAMES_OF = {kind: [name for name in _NAMES if name in kind.__struct_fields__] for kind in KINDS}
"""Kind of effect → its fields that hold an id or a name."""


_DECODER = msgspec.json.Decoder(Effect)
"""Built once: to build a decoder of all kinds takes longer than to decode an effect."""


def check_effect(effect: Any, limits: MessageLimits) -> None:
    """Refuse an effect that no store could keep: of an unknown kind, or with an id or name that is wrong."""
    if type(effect) not in _NAMES_OF:
        raise TypeError(f"{type(effect).__name__} is no effect")
    for name in _NAMES_OF[type(effect)]:
        value = getattr(effect, name)
        if value is not None:
            check_name(name, value, limits)
    _DECODER.decode(msgspec.json.encode(effect))
