"""Writing effects into the tables of memory, inside the transaction that settles their message.

`WRITERS` is the one table of effect kind → writer. The index of the changed items is written along, by
`index.py`.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.effect import (
    Buffer,
    BufferDone,
    Delete,
    Extracted,
    InPass,
    Judged,
    KeepSearch,
    KeepStatistics,
    Link,
    Move,
    NoteAnswer,
    NoteQuery,
    PassDone,
    PutSession,
    Remember,
    Revise,
    Source,
    Supersede,
    Touch,
    UndoPass,
)
from reverie.errors import VersionConflictError
from reverie.memory.prepare import Indexable, speaker_of
from reverie.memory.sqlite import buffers, passes
from reverie.memory.sqlite.conversation import extracted, note_answer, note_query
from reverie.memory.sqlite.housekeeping import keep_statistics
from reverie.memory.sqlite.index import Entry, tenant_of
from reverie.memory.sqlite.new_items import ARCHIVE, IMPORTANCE_MS, EffectGroup, NewItem
from reverie.memory.sqlite.rows import to_json
from reverie.memory.sqlite.searches import keep_search
from reverie.memory.sqlite.sessions import put_session
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import apsw

    from reverie.effect import Effect
    from reverie.memory.interface import ForgetTurn, Tenant
    from reverie.memory.prepare import Prepared
    from reverie.memory.sqlite.index import Index, Makers
    from reverie.message import Message

    EffectsOf = tuple[Message, Sequence[Effect], Prepared | None]
    """A message, its effects, and what was prepared for them."""

__all__ = ["WRITERS", "EffectWriter", "adopt", "known_of"]

SQL = load_queries(__package__ or "", "effects.sql")
LONG_TERM = "long_term"


class EffectWriter:
    """Writes the effects of messages. One object serves all transactions of a store."""

    def __init__(
        self,
        makers: Makers,
        limits: Mapping[str, int],
        *,
        on_unindexed: Callable[[], None],
        forget_turn: ForgetTurn | None = None,
    ) -> None:
        """`limits` maps a tier to the most items of a tenant in it.

        `on_unindexed` is called when an item is left to the indexer, before that is committed. `forget_turn`
        removes the words of a deleted turn from a queue in the same file.
        """
        self.makers = makers
        self.limits = limits
        self.on_unindexed = on_unindexed
        self.forget_turn = forget_turn

    def write(self, connection: apsw.Connection, messages: Sequence[EffectsOf], now: int) -> None:
        """Write the effects of messages, in their order, inside the transaction that the connection is in.

        `VersionConflictError` if an item has another version than the handler has read; ValueError if an
        effect cannot be written. After an error, the caller must roll back what was written so far, of all of
        these messages.
        """
        group = EffectGroup(self, connection, now)
        for message, effects, prepared in messages:
            step = EffectStep(group, message, prepared)
            for kind, alike in groupby(effects, key=type):
                if kind not in COLLECTED:
                    group.write_new()  # the effects may concern them
                for given in [list(alike)] if kind in TOGETHER else alike:
                    if not step.is_void:
                        WRITERS[kind](step, given)
        group.write_new()


class EffectStep:
    """The effects of one message while they are written."""

    def __init__(self, group: EffectGroup, message: Message, prepared: Prepared | None) -> None:
        self._connection = group.connection
        self._writer = group.writer
        self.group = group
        self.index = group.index
        self.prepared = prepared
        self.message = message
        self.owner: Tenant = (message.user_id, message.mem_cube_id)
        self.now = group.now
        self._tenant: int | None = None
        self._changed: dict[str, int] = {}
        """Item that this message has already changed → its version before: both versions are no conflict."""
        self.unwritten: set[str] = set()
        """Items that were deleted before, or by this message: its later effects pass them over."""
        self.pass_log: passes.PassLog | None = None
        """Keeps what the message changes, if the message belongs to a pass of upkeep."""
        self.is_void = False
        """Whether the rest of the message is not written, because its pass was taken back."""

    @property
    def always(self) -> dict[str, Any]:
        """What every statement may need."""
        return {
            "user_id": self.message.user_id,
            "project_id": self.message.mem_cube_id,
            "now": self.now,
            "importance_ms": IMPORTANCE_MS,
        }

    @property
    def tenant(self) -> int:
        """The number of the message's tenant."""
        if self._tenant is None:
            self._tenant = self.group.tenant(self.owner)
        return self._tenant

    def note(self, change: passes.Change, memory_id: str, other: str, relation: str | None = None) -> None:
        """Note a change for the pass of upkeep that the message belongs to, if any."""
        if self.pass_log is not None:
            self.pass_log.note(change, memory_id, other, relation)

    def rows(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        """Run one statement for an item of the message's tenant."""
        return self.run(SQL[statement], **bindings)

    def run(self, statement: str, **bindings: Any) -> list[tuple[Any, ...]]:
        """Run the text of a statement; user_id, project_id and the time are bound."""
        return self._connection.execute(statement, self.always | bindings).fetchall()

    def check_version(self, memory_id: str, version: int) -> int:
        """The row number of an item; `VersionConflictError` if its version is not the one that was read."""
        rows = self.rows("version_of", id=memory_id)
        found = rows[0][1] if rows else None
        if found is None or version not in {found, self._changed.get(memory_id)}:
            raise VersionConflictError(memory_id, version, found)
        seq: int = rows[0][0]
        self.note_version(seq)
        return seq

    def note_version(self, seq: int) -> None:
        """Remember the version of an item that is about to be changed."""
        ((memory_id, version),) = self.rows("id_of", seq=seq)
        self.note_changed(memory_id, version)

    def note_changed(self, memory_id: str, version: int) -> None:
        """Remember that an item of this version is changed."""
        self._changed.setdefault(memory_id, version)

    def check_known(self, *memory_ids: str) -> None:
        """Refuse an effect that names an item which the tenant does not have."""
        wanted = set(memory_ids)
        if wanted and self.rows("count_items", ids=to_json(list(wanted)))[0][0] != len(wanted):
            raise ValueError(f"there is no memory {' or '.join(map(repr, memory_ids))} of this tenant")

    def known(self, seq: int) -> Known:
        """An item, its tier and its successor. An item of an earlier version is indexed first."""
        row = self.rows("known", seq=seq)[0]
        if row[1] is None:
            adopt(self._connection, self.index, row, self.prepared)
            row = self.rows("known", seq=seq)[0]
        return known_of(row)

    def move(self, seq: int, tier: str) -> None:
        """Write the tier of an item, and the counts of both tiers."""
        item = self.known(seq)
        if self.pass_log is not None:
            self.note("moved", self.rows("id_of", seq=seq)[0][0], item.tier)
        self.rows("keep_version", seq=seq, change="move")
        self.rows("move", seq=seq, tier=tier)
        if item.successor is None and tier != item.tier:
            self.index.count(item.entry.tenant, item.tier, -1)
            self.index.move(seq, past=tier == ARCHIVE)
            self.add_to_tier(item.entry.tenant, tier)

    def add_to_tier(self, tenant: int, tier: str) -> None:
        """Count an item in a tier, and evict others if the tier is over its limit."""
        self.index.count(tenant, tier, 1)
        self.evict(tenant, tier)

    def evict(self, tenant: int, tier: str) -> None:
        """Archive the items of least worth of a tier that is over its limit."""
        limit = self._writer.limits.get(tier)
        if limit is None:
            return
        excess = self.index.counts_of([tenant]).get((tenant, tier), 0) - limit
        if excess > 0:
            for (seq,) in self.rows("least_worth", tenant=tenant, tier=tier, limit=excess):
                self.note_version(seq)
                self.move(seq, ARCHIVE)

    def remove(self, seq: int, memory_id: str, *, with_members: bool = False) -> None:
        """Remove an item and every trace of its text, and keep its id from being written again.

        An item that it was merged into contains its text. That item is removed, too, and the other items that
        were merged come back. So is an item that was derived from nothing else. Items that were merged into
        the removed one come back, or are removed `with_members`.
        """
        item = self.known(seq)
        self.unwritten.add(memory_id)  # later effects of this message find it gone, and that is no conflict
        derived = [
            (other, name)
            for other, name, others in self.rows("derived_items", id=memory_id)
            if not others or name == item.successor
        ]
        if item.successor is None:
            self.index.count(item.entry.tenant, item.tier, -1)
        self.index.remove(seq)
        if item.entry.texts.speaker is not None:
            self.index.forget_name(item.entry.tenant, item.entry.texts.speaker)
        if self.rows("has_old_index"):
            self.rows("delete_old_words", seq=seq)
        for statement in ("delete_item", "delete_unindexed"):  # before others come back and may evict it
            self.rows(statement, seq=seq)
        members = self.rows("merged_items", id=memory_id)
        self.bury(memory_id)
        for member, name in members:
            if with_members:
                self.remove(member, name, with_members=True)
            else:
                self.revive(member)
        for other, name in derived:
            if self.rows("text_of", id=name):
                self.remove(other, name)

    def bury(self, memory_id: str) -> None:
        """Remove what is kept under an id besides its item, and keep the id from being written again."""
        for statement in ("delete_links", "delete_versions", "delete_buffered", "bury_id"):
            self.rows(statement, id=memory_id)
        item_id, _, turn = memory_id.rpartition(".")
        if self._writer.forget_turn is not None and item_id and turn.isascii() and turn.isdigit():
            self._writer.forget_turn(self._connection, self.message.user_id, item_id, int(turn))

    def revive(self, seq: int) -> None:
        """Let an item take its place again that another one had taken."""
        self.note_version(seq)
        self.rows("revive", seq=seq)
        self.rows("restore_sources", seq=seq)
        item = self.known(seq)
        self.index.move(seq, past=item.tier == ARCHIVE)
        self.add_to_tier(item.entry.tenant, item.tier)


class Known(NamedTuple):
    """What the index and the counts need to know of an item."""

    entry: Entry
    tier: str
    successor: str | None
    """The item that has superseded it; a superseded item counts in no tier."""


def known_of(row: tuple[Any, ...]) -> Known:
    """The item of a row of `known`."""
    seq, tenant, tier, successor, session, kind, held_at, importance, *texts = row
    text, title, narrative, facts, sources, when = texts
    speaker = speaker_of(_decode_sources(sources))
    indexable = Indexable(text, title, narrative, _decode_facts(facts) if facts else (), speaker, when)
    is_past = successor is not None or tier == ARCHIVE
    return Known(Entry(seq, tenant, is_past, session, kind, held_at, importance, indexable), tier, successor)


def adopt(connection: apsw.Connection, index: Index, row: tuple[Any, ...], prepared: Prepared | None) -> None:
    """Count and index an item that an earlier version has written; `row` is its row of `known`."""
    item = known_of(row)
    rows: list[tuple[Any, ...]] = connection.execute(SQL["tenant_of"], (item.entry.seq,)).fetchall()
    ((user_id, cube),) = rows
    tenant = tenant_of(connection, user_id, cube)
    bindings = {"seq": item.entry.seq, "tenant": tenant, "importance_ms": IMPORTANCE_MS}
    connection.execute(SQL["adopt"], bindings)
    index.put(item.entry._replace(tenant=tenant), prepared)
    if item.successor is None:
        index.count(tenant, item.tier, 1)


def remember(step: EffectStep, effect: Remember) -> None:
    """Let a new item wait until the new items of its group are written."""
    step.group.new.append(NewItem(step, effect))


def revise(step: EffectStep, effect: Revise) -> None:
    """Change the given fields of an item, keep what it was, and index it anew.

    If the fields are as given already, nothing is written.
    """
    if effect.memory_id in step.unwritten:
        return
    seq = step.check_version(effect.memory_id, effect.version)
    given = {
        "seq": seq,
        "text": effect.text,
        "kind": effect.kind,
        "title": effect.title,
        "tags": _json_or_null(effect.tags),
        "info": _json_or_null(effect.info),
        "sources": _json_or_null(effect.sources),
        "importance": effect.importance,
        "valid_from": effect.valid_from,
        "valid_to": effect.valid_to,
    }
    if not step.rows("is_revised", **given):
        return
    before = step.known(seq).entry.texts
    step.rows("keep_version", seq=seq, change="revise")
    step.rows("revise", **given)
    if effect.text not in {None, before.text}:
        step.rows("read_again", seq=seq, id=effect.memory_id)
    entry = step.known(seq).entry
    if any(part is not None for part in (effect.text, effect.title, effect.sources, effect.valid_from)):
        step.index.put(entry, step.prepared, step.index.remove(seq))
        if before.speaker is not None and before.speaker != entry.texts.speaker:
            step.index.forget_name(entry.tenant, before.speaker)
    else:
        step.index.note(seq, entry.kind, entry.held_at, entry.importance)


def supersede(step: EffectStep, effect: Supersede) -> None:
    """Let the successor take the place of an item, and link the successor to it."""
    if {effect.memory_id, effect.successor} & step.unwritten:
        return
    seq = step.check_version(effect.memory_id, effect.version)
    if effect.successor_version is not None:
        step.check_version(effect.successor, effect.successor_version)
    step.check_known(effect.successor)
    later: str | None = effect.successor
    held_at = None
    while later is not None:  # a circle of successors would have no end
        if later == effect.memory_id:
            raise ValueError(f"the memory {effect.memory_id!r} cannot supersede itself")
        rows = step.rows("successor_of", id=later)
        held_at = rows[0][2] if held_at is None else held_at
        later = rows[0][1] if rows else None
    item = step.known(seq)
    if item.successor is None:
        step.index.count(item.entry.tenant, item.tier, -1)
    step.rows("keep_version", seq=seq, change="supersede")
    step.rows("supersede", seq=seq, successor=effect.successor, held_at=held_at)
    step.rows("shorten_sources", seq=seq, successor=effect.successor)
    step.index.move(seq, past=True)
    step.rows("link", source_id=effect.successor, relation="supersedes", target_id=effect.memory_id)
    step.note("superseded", effect.memory_id, effect.successor)


def move(step: EffectStep, effects: Sequence[Move]) -> None:
    """Write the tiers of items, with few statements for all that do not go to or from the archive."""
    places = _places_of(step, effects)
    if places is None:
        for effect in effects:
            if effect.memory_id not in step.unwritten:
                step.move(step.check_version(effect.memory_id, effect.version), effect.tier)
        return
    step.rows("keep_versions", seqs=to_json([place.seq for place in places]), change="move")
    moved = zip(places, effects, strict=True)
    step.rows("move_all", moves=to_json([(place.seq, effect.tier) for place, effect in moved]))
    counts: Counter[str] = Counter()
    for place, effect in zip(places, effects, strict=True):
        step.note_changed(effect.memory_id, place.version)
        counts.update({effect.tier: 1})
        counts.subtract({place.tier: 1})
    step.index.count_all({(step.tenant, tier): count for tier, count in counts.items()})
    for tier, count in counts.items():
        if count > 0:
            step.evict(step.tenant, tier)


class _Place(NamedTuple):
    """Where an item is that is to be moved."""

    id: str
    seq: int
    version: int
    tier: str


def _places_of(step: EffectStep, effects: Sequence[Move]) -> list[_Place] | None:
    """The places of the items in the order of the moves; None if they must be moved one by one.

    That is so for one that is named twice, is deleted, superseded or not counted yet, has another version, or
    goes to or from the archive, and for all moves of a pass of upkeep, which keeps each of them.
    """
    ids = [effect.memory_id for effect in effects]
    if step.pass_log is not None or len(effects) == 1 or len(set(ids)) < len(ids):
        return None
    found = {place[0]: _Place(*place) for place in step.rows("places", ids=to_json(ids))}
    if len(found) < len(ids) or step.unwritten.intersection(ids):
        return None
    places = [found[memory_id] for memory_id in ids]
    fits = all(
        ARCHIVE not in {place.tier, effect.tier} and place.version == effect.version
        for place, effect in zip(places, effects, strict=True)
    )
    return places if fits else None


def touch(step: EffectStep, effects: Sequence[Touch]) -> None:
    """Count accesses, and bring archived items back."""
    ids = to_json([effect.memory_id for effect in effects])
    touched = step.rows("touch", ids=ids)
    step.rows("touch_cards", ids=ids)
    for seq, is_archived in touched:
        if is_archived:
            step.note_version(seq)
            step.move(seq, LONG_TERM)


def link(step: EffectStep, effects: Sequence[Link]) -> None:
    """Write links between items of the tenant, but none of an item that was deleted meanwhile."""
    ids = {memory_id for effect in effects for memory_id in (effect.source_id, effect.target_id)}
    deleted = step.unwritten.union(*step.rows("deleted_among", ids=to_json(list(ids))))
    links = [effect for effect in effects if not {effect.source_id, effect.target_id} & deleted]
    step.check_known(*(memory_id for one in links for memory_id in (one.source_id, one.target_id)))
    if step.pass_log is None:
        rows = [(one.source_id, one.relation, one.target_id) for one in links]
        step.rows("link_all", links=to_json(rows))
        return
    for one in links:
        if step.rows("link", source_id=one.source_id, relation=one.relation, target_id=one.target_id):
            step.note("linked", one.source_id, one.target_id, one.relation)


def delete(step: EffectStep, effect: Delete) -> None:
    """Remove an item, and keep its id from being written again.

    Version 0 deletes an item that is not written yet: its id is kept from being written at all.
    """
    if effect.memory_id in step.unwritten:
        return
    if effect.version == 0 and not step.rows("text_of", id=effect.memory_id):
        step.bury(effect.memory_id)
    else:
        seq = step.check_version(effect.memory_id, effect.version)
        step.remove(seq, effect.memory_id, with_members=effect.with_members)


WRITERS: dict[type, Callable[[EffectStep, Any], None]] = {
    Remember: remember,
    Revise: revise,
    Supersede: supersede,
    Move: move,
    Touch: touch,
    Link: link,
    Delete: delete,
    Buffer: buffers.collect_row,
    BufferDone: buffers.finish_rows,
    Extracted: extracted,
    NoteQuery: note_query,
    NoteAnswer: note_answer,
    KeepSearch: keep_search,
    KeepStatistics: keep_statistics,
    InPass: passes.in_pass,
    PassDone: passes.pass_done,
    Judged: passes.judged,
    UndoPass: passes.undo_pass,
    PutSession: put_session,
}
"""Effect kind → its writer. A new kind of effect adds an entry."""
COLLECTED = frozenset({Remember, Buffer})
"""Kinds whose effects wait until many of them can be written together."""
TOGETHER = frozenset({Link, Move, Touch})
"""Kinds whose writer takes a list of effects that follow each other."""


def _json_or_null(value: Any) -> str | None:
    return None if value is None else to_json(value)


_decode_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_decode_facts = msgspec.json.Decoder(tuple[str, ...]).decode
