"""Writing effects into the tables of memory, inside the transaction that settles their message.

`WRITERS` is the one table of effect kind → writer. `prepare_words` splits texts into words before the
transaction, off the thread that writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.effect import Delete, Link, Move, Remember, Revise, Supersede, Touch
from reverie.errors import VersionConflictError
from reverie.memory.words import index_words
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import apsw

    from reverie.effect import Effect
    from reverie.message import Message

__all__ = ["WRITERS", "apply_effects", "prepare_words", "to_json"]

SQL = load_queries(__package__ or "", "effects.sql")


def prepare_words(effects: Iterable[Effect]) -> dict[str, str]:
    """New text → its index words."""
    texts = [effect.text for effect in effects if isinstance(effect, Remember | Revise)]
    return {text: index_words(text) for text in texts if isinstance(text, str)}


def apply_effects(
    connection: apsw.Connection,
    message: Message,
    effects: Sequence[Effect],
    prepared: Mapping[str, str] | None,
    now: int,
) -> None:
    """Write the effects of one message, inside the transaction that the connection is in.

    `VersionConflictError` if an item has another version than the handler has read; ValueError if an effect
    cannot be written. After an error, the caller must roll back what was written so far.
    """
    step = EffectStep(connection, message, prepared or {}, now)
    for effect in effects:
        WRITERS[type(effect)](step, effect)


class EffectStep:
    """The effects of one message while they are written."""

    def __init__(
        self, connection: apsw.Connection, message: Message, prepared: Mapping[str, str], now: int
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self.message = message
        self.tenant = {"user_id": message.user_id, "project_id": message.mem_cube_id}
        self.now = now
        self._changed: set[str] = set()
        """Items that this message has already changed: their new version is no conflict."""

    def rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        """Run one statement for an item of the message's tenant."""
        return self._connection.execute(SQL[statement], self.tenant | {"now": self.now} | bindings).fetchall()

    def check_version(self, memory_id: str, version: int) -> int:
        """The row number of an item; `VersionConflictError` if its version is not the one that was read."""
        rows = self.rows("version_of", id=memory_id)
        found = rows[0][1] if rows else None
        if found is None or (found != version and memory_id not in self._changed):
            raise VersionConflictError(memory_id, version, found)
        self._changed.add(memory_id)
        seq: int = rows[0][0]
        return seq

    def index(self, seq: int, text: str) -> None:
        """Index an item by the words of a text."""
        words = self._prepared.get(text)
        self.rows("insert_words", seq=seq, words=index_words(text) if words is None else words)

    def check_known(self, *memory_ids: str) -> None:
        """Refuse an effect that names an item which the tenant does not have."""
        wanted = set(memory_ids)
        if self.rows("count_items", ids=to_json(list(wanted)))[0][0] != len(wanted):
            raise ValueError(f"there is no memory {' or '.join(map(repr, memory_ids))} of this tenant")


def remember(step: EffectStep, effect: Remember) -> None:
    """Write one new item and its words; a known id with the same text changes nothing."""
    rows = step.rows(
        "insert_item",
        id=effect.memory_id,
        server_session_id=effect.session_id or step.message.session_id,
        kind=effect.kind,
        tier=effect.tier,
        text=effect.text,
        tags=to_json(effect.tags),
        info=_json_or_null(effect.info),
        sources=to_json(effect.sources),
    )
    if rows:
        step.index(rows[0][0], effect.text)
        return
    known = step.rows("text_of", id=effect.memory_id)
    if known and known[0] != (step.message.mem_cube_id, effect.text):
        raise ValueError(f"the memory id {effect.memory_id!r} is taken by another text or cube")


def revise(step: EffectStep, effect: Revise) -> None:
    """Change the given fields of an item; a new text is indexed in place of the old one."""
    seq = step.check_version(effect.memory_id, effect.version)
    step.rows(
        "revise",
        seq=seq,
        text=effect.text,
        kind=effect.kind,
        tags=_json_or_null(effect.tags),
        info=_json_or_null(effect.info),
        sources=_json_or_null(effect.sources),
    )
    if effect.text is not None:
        step.rows("delete_words", seq=seq)
        step.index(seq, effect.text)


def supersede(step: EffectStep, effect: Supersede) -> None:
    """Let the successor take the place of an item, and link the successor to it."""
    seq = step.check_version(effect.memory_id, effect.version)
    step.check_known(effect.successor)
    if effect.successor == effect.memory_id:
        raise ValueError(f"the memory {effect.memory_id!r} cannot supersede itself")
    step.rows("supersede", seq=seq, successor=effect.successor)
    step.rows("link", source_id=effect.successor, relation="supersedes", target_id=effect.memory_id)


def move(step: EffectStep, effect: Move) -> None:
    """Write the tier of an item."""
    step.rows("move", seq=step.check_version(effect.memory_id, effect.version), tier=effect.tier)


def touch(step: EffectStep, effect: Touch) -> None:
    """Count an access."""
    step.rows("touch", id=effect.memory_id)


def link(step: EffectStep, effect: Link) -> None:
    """Write a link between two items of the tenant."""
    step.check_known(effect.source_id, effect.target_id)
    step.rows("link", source_id=effect.source_id, relation=effect.relation, target_id=effect.target_id)


def delete(step: EffectStep, effect: Delete) -> None:
    """Remove an item with its words and links, and keep its id from being written again."""
    seq = step.check_version(effect.memory_id, effect.version)
    step.rows("delete_words", seq=seq)
    step.rows("delete_links", id=effect.memory_id)
    step.rows("delete_item", seq=seq)
    step.rows("bury_id", id=effect.memory_id)


WRITERS: dict[type, Callable[[EffectStep, Any], None]] = {
    Remember: remember,
    Revise: revise,
    Supersede: supersede,
    Move: move,
    Touch: touch,
    Link: link,
    Delete: delete,
}
"""Effect kind → its writer. A new kind of effect adds an entry."""


def to_json(value: Any) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()


def _json_or_null(value: Any) -> str | None:
    return None if value is None else to_json(value)
