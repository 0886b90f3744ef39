"""Bringing the index of a file up to date, batch by batch, while searches and writes go on.

There is one reason to index an item, however it came about: its card is missing, or was made by another
tokenizer or embedder. An item may have no card because an earlier version has written it; it may have no
vector because the embedder was late; all items are looked at after a change of the embedder or tokenizer, or
because the vectors were damaged. What was done is in the file, so that a pass goes on where it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.base.failpoints import failpoint
from reverie.memory.interface import IndexProgress
from reverie.memory.sqlite.effects import adopt, known_of
from reverie.memory.sqlite.index import Index, identity
from reverie.memory.sqlite.rows import to_json
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Collection

    import apsw

    from reverie.memory.prepare import Indexable, Prepared
    from reverie.memory.sqlite.index import Makers

__all__ = [
    "Batch",
    "IndexState",
    "ask_for_rebuild",
    "finish",
    "has_old_index",
    "named_batch",
    "next_batch",
    "read_state",
    "write_batch",
]

SQL = load_queries(__package__ or "", "indexing.sql")
LEASE_MS = 30_000
"""How long an indexer that has taken the work keeps it without a sign of life."""
DROPPED_AT_ONCE = 500
"""How many rows of an old index are removed in one transaction."""


class IndexState(NamedTuple):
    """What the file says about its index."""

    models: str | None
    """The tokenizer and embedder of the store that has last decided by what all items are indexed."""
    cursor: int | None
    """The last item that the present pass over all items has looked at; None: no pass is under way."""
    rebuild: bool
    """Whether the present pass makes all vectors anew."""
    has_old_index: bool
    """Whether the text index of an earlier version can be used."""
    holder: str | None
    """The indexer that does the work."""
    held_until: int

    def fits(self, makers: Makers) -> bool:
        """Whether items are indexed by these models; a store without an embedder needs no vectors."""
        if makers.embedder is None and self.models is not None:
            return self.models.partition("/")[0] == str(makers.tokenizer)
        return self.models == identity(makers)

    def is_complete(self, makers: Makers) -> bool:
        """Whether all items were looked at, and are indexed by these models."""
        return self.cursor is None and self.fits(makers)


class Batch(NamedTuple):
    """Items to index next."""

    rows: list[tuple[Any, ...]]
    """Rows of `known`."""
    state: IndexState
    """What the file said when the items were chosen."""
    cursor: int | None
    """The last item, if the batch belongs to a pass over all items."""
    ends_pass: bool

    @property
    def texts(self) -> list[Indexable]:
        """The texts of its items."""
        return [known_of(row[:-2]).entry.texts for row in self.rows]


def read_state(connection: apsw.Connection) -> IndexState:
    """What the file says about its index."""
    rows: list[tuple[Any, ...]] = connection.execute(SQL["state"]).fetchall()
    state = dict(rows)
    holder, until = msgspec.json.decode(state.get("indexer", "[null, 0]"))
    cursor = state.get("cursor")
    return IndexState(
        state.get("models"),
        None if cursor is None else int(cursor),
        "rebuild" in state,
        "old_index" in state,
        holder,
        int(until),
    )


def has_old_index(connection: apsw.Connection) -> bool:
    """Whether the text index of an earlier version, or a part of it, is still in the file."""
    return bool(connection.execute(SQL["has_old_index"]).get)


def take_work(connection: apsw.Connection, holder: str, now: int) -> bool:
    """Become the one that indexes, or stay it; False if another one is at work."""
    state = read_state(connection)
    if state.holder not in {None, holder} and now < state.held_until <= now + LEASE_MS:
        return False
    connection.execute(SQL["set_state"], ("indexer", to_json([holder, now + LEASE_MS])))
    return True


def leave_work(connection: apsw.Connection, holder: str) -> None:
    """Let another one index at once."""
    if read_state(connection).holder == holder:
        connection.execute(SQL["drop_state"], ("indexer",))


def progress(connection: apsw.Connection, makers: Makers) -> IndexProgress:
    """How many items are indexed, and how many are left."""
    state = read_state(connection)
    rows: list[tuple[Any, ...]] = connection.execute(SQL["counts"], {"cursor": state.cursor or 0}).fetchall()
    ((old, waiting, behind, total),) = rows
    waiting = waiting if makers.embedder is not None else 0
    left = old + waiting if state.is_complete(makers) else max(behind, old + waiting)
    return IndexProgress(total=total, left=min(left, total))


def next_batch(
    connection: apsw.Connection, makers: Makers, limit: int, skip: Collection[int] = ()
) -> Batch | None:
    """The next items to index; None if nothing is left to do. `skip` are items that have to wait.

    A store with other models than the file wants indexes only the items that have no index at all.
    """
    state = read_state(connection)
    is_wanted = state.models == identity(makers)
    if is_wanted and state.cursor is not None:
        seqs = _seqs(connection, "next_seqs", limit=limit, cursor=state.cursor)
        rows = [row for row in _known(connection, seqs) if state.rebuild or _is_stale(row, makers)]
        return Batch(rows, state, seqs[-1] if seqs else state.cursor, ends_pass=len(seqs) < limit)
    seqs = _seqs(connection, "old_items", limit=limit)
    if not seqs and is_wanted and makers.embedder is not None:
        waiting = _seqs(connection, "unindexed", limit=limit + len(skip))
        seqs = [seq for seq in waiting if seq not in skip][:limit]
    if not seqs:
        return None
    return Batch(_known(connection, seqs), state, None, ends_pass=False)


def named_batch(
    connection: apsw.Connection, makers: Makers, tenant: tuple[str, str], memory_ids: Collection[str]
) -> Batch:
    """The items of a tenant with these ids that are not up to date."""
    bindings = {"user_id": tenant[0], "project_id": tenant[1], "ids": to_json(list(memory_ids))}
    seqs = _seqs(connection, "named_seqs", **bindings)
    rows = [row for row in _known(connection, seqs) if _is_stale(row, makers)]
    return Batch(rows, read_state(connection), None, ends_pass=False)


def write_batch(connection: apsw.Connection, makers: Makers, batch: Batch, prepared: Prepared) -> set[int]:
    """Index the items of a batch as they are now; the answer are those that still need a vector."""
    index = Index(connection, makers)
    late: set[int] = set()
    state = read_state(connection)
    is_wanted = state.models == identity(makers)
    for *item, tokenizer, _ in _known(connection, [row[0] for row in batch.rows]):
        seq = item[0]
        known = known_of(tuple(item))
        vector = prepared.vectors.get(known.entry.texts.for_vector)
        if item[1] is None:
            adopt(connection, index, tuple(item), prepared)
        elif not is_wanted:
            continue
        elif tokenizer != makers.tokenizer:
            index.put(known.entry, prepared, index.remove(seq))
        elif vector is not None:
            index.set_vector(seq, vector)
        if not is_wanted:
            continue
        if vector is None and state.rebuild:
            index.drop_vector(seq)
        if vector is not None or makers.embedder is None:
            connection.execute(SQL["indexed"], (seq,))
        else:
            index.leave([seq])
            late.add(seq)
    _move_cursor(connection, batch, state)
    failpoint("inside_index")
    return late


def _move_cursor(connection: apsw.Connection, batch: Batch, state: IndexState) -> None:
    """Note how far the pass of a batch has come, unless another pass has begun meanwhile."""
    if batch.cursor is None or batch.state[:3] != state[:3]:
        return
    if batch.ends_pass:
        _end_pass(connection)
    else:
        connection.execute(SQL["set_state"], ("cursor", str(batch.cursor)))


def finish(connection: apsw.Connection) -> bool:
    """Remove the next part of the old index once nothing needs it; False if nothing is left to remove."""
    if not has_old_index(connection) or connection.execute(SQL["has_old_items"]).get:
        return False
    connection.execute(SQL["drop_state"], ("old_index",))  # a part of it is of no use to anybody
    removed = connection.execute(SQL["shrink_old_index"], {"limit": DROPPED_AT_ONCE}).fetchall()
    if len(removed) < DROPPED_AT_ONCE:
        connection.execute(SQL["drop_old_index"])
    failpoint("inside_index")
    return True


def ask_for_rebuild(connection: apsw.Connection) -> None:
    """Let the indexer make all vectors anew, because some were damaged."""
    if not read_state(connection).rebuild:
        for statement in ("drop_bits", "new_bits"):
            connection.execute(SQL[statement])
        connection.execute(SQL["set_state"], ("rebuild", "1"))
        connection.execute(SQL["set_state"], ("cursor", "0"))


def begin(connection: apsw.Connection, makers: Makers) -> None:
    """Note at the opening of a file by what its items are to be indexed, and whether to look at them all.

    A pass that was begun for other models is begun anew: the items that it has done are not up to date.
    """
    if read_state(connection).fits(makers):
        return
    connection.execute(SQL["set_state"], ("models", identity(makers)))
    if connection.execute(SQL["next_seqs"], {"cursor": 0, "limit": 1}).fetchall():
        connection.execute(SQL["set_state"], ("cursor", "0"))
    else:
        _end_pass(connection)


def _end_pass(connection: apsw.Connection) -> None:
    for name in ("cursor", "rebuild"):
        connection.execute(SQL["drop_state"], (name,))


def _is_stale(row: tuple[Any, ...], makers: Makers) -> bool:
    tokenizer, embedder = row[-2:]
    needs_vector = makers.embedder is not None and embedder != makers.embedder
    return row[1] is None or tokenizer != makers.tokenizer or needs_vector


def _seqs(connection: apsw.Connection, statement: str, **bindings: Any) -> list[int]:
    rows: list[tuple[Any, ...]] = connection.execute(SQL[statement], bindings).fetchall()
    return [seq for (seq,) in rows]


def _known(connection: apsw.Connection, seqs: Collection[int]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(SQL["known"], {"seqs": to_json(list(seqs))}).fetchall()
    return rows
