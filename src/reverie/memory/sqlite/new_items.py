"""New items: collected while the effects of messages are written, and then written with few statements."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.memory.prepare import Indexable
from reverie.memory.sqlite.buffers import put_rows
from reverie.memory.sqlite.index import Entry, Fresh, Index, tenants_of
from reverie.memory.sqlite.rows import decode_json, to_json
from reverie.storage.many_rows import write_rows
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import apsw

    from reverie.effect import Buffer, Remember
    from reverie.memory.interface import Tenant
    from reverie.memory.sqlite.effects import EffectStep, EffectWriter
    from reverie.message import Message

__all__ = ["ARCHIVE", "IMPORTANCE_MS", "EffectGroup", "NewItem"]

SQL = load_queries(__package__ or "", "effects.sql")
IMPORTANCE_MS = 90 * 24 * 3600 * 1000
"""How much longer than one of importance 0 an unused item of importance 1 stays before it is evicted."""
ARCHIVE = "archive"


class EffectGroup:
    """The effects of some messages while they are written.

    New items wait in `new`, and new rows of buffers in `rows`: many are written with few statements.
    """

    def __init__(self, writer: EffectWriter, connection: apsw.Connection, now: int) -> None:
        self.writer = writer
        self.connection = connection
        self.now = now
        self.index = Index(connection, writer.makers, writer.on_unindexed)
        self.new: list[NewItem] = []
        self.rows: list[tuple[Message, Buffer]] = []
        self._tenants: dict[Tenant, int] = {}

    def tenant(self, tenant: Tenant) -> int:
        """The number of a tenant; a new tenant gets one."""
        if tenant not in self._tenants:
            self._tenants |= tenants_of(self.connection, [tenant])
        return self._tenants[tenant]

    def write_new(self) -> None:
        """Write the new items and rows that wait.

        If a tier of a tenant may be full, the items of this tenant are written one by one: each of them may
        evict another one.
        """
        if self.rows:
            put_rows(self.connection, self.rows, self.now)
            self.rows = []
        new, self.new = self.new, []
        if not new:
            return
        unknown = {one.step.owner for one in new} - self._tenants.keys()
        if unknown:
            self._tenants |= tenants_of(self.connection, unknown)
        full = self._full_tenants(new)
        self._insert([one for one in new if one.step.tenant not in full])
        for one in new:
            if one.step.tenant in full and self._insert([one]):
                one.step.evict(one.step.tenant, one.effect.tier)

    def _full_tenants(self, new: Sequence[NewItem]) -> set[int]:
        """The tenants who may have too many items in a tier after these are added."""
        added = Counter((one.step.tenant, one.effect.tier) for one in new)
        limited = [key for key in added if key[1] in self.writer.limits]
        counts = self.index.counts_of({tenant for tenant, _ in limited})
        return {
            tenant
            for tenant, tier in limited
            if counts.get((tenant, tier), 0) + added[tenant, tier] > self.writer.limits[tier]
        }

    def _insert(self, new: Sequence[NewItem]) -> bool:
        """Write and index new items, and count them in their tiers; False if nothing was written.

        A known id with the same text changes nothing.
        """
        if not new:
            return False
        last: int = self.connection.execute(SQL["last_seq"]).get
        rows = [one.row(seq) for seq, one in enumerate(new, last + 1)]
        written: Container[int] = range(last + 1, last + 1 + len(new))
        if write_rows(self.connection, SQL, "insert_items", rows) != len(new):
            written = set(decode_json(self.connection.execute(SQL["seqs_after"], (last,)).get))
        fresh = []
        counts: Counter[tuple[int, str]] = Counter()
        for seq, one in enumerate(new, last + 1):
            if seq not in written:
                one.check_known()
            else:
                fresh.append(Fresh(one.entry(seq), one.step.prepared))
                counts[one.step.tenant, one.effect.tier] += 1
                one.step.note("created", one.effect.memory_id, one.effect.tier)
        if fresh:
            self.index.put_all(fresh)
            self.index.count_all(counts)
            added = Counter(one.entry.tenant for one in fresh)
            self.connection.execute(SQL["count_additions"], (to_json(list(added.items())),))
        return bool(fresh)


class NewItem(NamedTuple):
    """An item to be remembered, and the message that it belongs to."""

    step: EffectStep
    effect: Remember

    @property
    def session(self) -> str | None:
        """The session of the item; by default that of its message."""
        return self.effect.session_id or self.step.message.session_id

    @property
    def learned_at(self) -> int:
        """When the item was learned, in epoch milliseconds."""
        return self.step.now if self.effect.learned_at is None else self.effect.learned_at

    def row(self, seq: int) -> tuple[Any, ...]:
        """The item as `insert_items` takes it."""
        effect, message, now = self.effect, self.step.message, self.step.now
        return (
            seq, message.user_id, effect.memory_id, message.mem_cube_id, self.step.tenant, self.session,
            effect.kind, effect.tier, effect.type, effect.title, effect.narrative,
            to_json(effect.facts) if effect.facts else None,
            to_json(effect.concepts) if effect.concepts else None,
            effect.device_id, effect.agent_id, effect.domain, effect.text,
            to_json(effect.tags) if effect.tags else "[]",
            None if effect.info is None else to_json(effect.info),
            to_json(effect.sources), effect.importance, effect.valid_from, effect.valid_to,
            effect.expires_at, self.learned_at, now,
            now + int(float(effect.importance) * IMPORTANCE_MS),
        )  # fmt: skip

    def entry(self, seq: int) -> Entry:
        """The item as the index needs it."""
        effect = self.effect
        held_at = self.learned_at if effect.valid_from is None else effect.valid_from
        is_past = effect.tier == ARCHIVE
        texts = Indexable.of(effect)
        return Entry(
            seq, self.step.tenant, is_past, self.session, effect.kind, held_at, effect.importance, texts
        )

    def check_known(self) -> None:
        """Look why the item was not written: it is known or deleted, or ValueError if the id is taken."""
        memory_id = self.effect.memory_id
        known = self.step.rows("text_of", id=memory_id)
        if not known:
            self.step.unwritten.add(memory_id)
        elif known[0] != (self.step.message.mem_cube_id, self.effect.text):
            raise ValueError(f"the memory id {memory_id!r} is taken by another text or cube")
