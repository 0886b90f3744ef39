"""A step: one write transaction of the queue, with the changes it has collected so far.

The moves are in the modules beside this one. A move notes which lanes it changes and which messages it ends.
`finish` then writes the lanes, and handles the triggers and dependants of the ended messages.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from reverie.backends.moves import Status
from reverie.backends.sqlite.attempts import note_end
from reverie.backends.sqlite.counts import SQL as COUNTS_SQL
from reverie.backends.sqlite.rows import decode_json, to_json
from reverie.backends.sqlite.trigger_rows import write_runs
from reverie.backends.trigger_state import Run
from reverie.errors import InvalidMessageError, QueueFullError
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reverie.backends.moves import QueueLimits
    from reverie.effect import Effect
    from reverie.message import Message

    ApplyEffects = Callable[[apsw.Connection, Sequence[tuple[Message, Sequence[Effect], Any]], int], None]
    """Writes the effects of messages in the settling transaction, in the order of the messages. If it raises,
    the caller rolls back whatever was written. Arguments: connection; of each message the message, its
    effects and what the store has prepared for them; now."""

__all__ = ["ANY_DEPENDANTS", "UNWRITABLE", "Step"]

SQL = load_queries(__package__ or "", "lanes.sql")
ANY_DEPENDANTS = SQL["any_dependants"]
"""Asks whether any message depends on another, and whether any memo is kept."""
UNWRITABLE = (
    apsw.ConstraintError,
    apsw.MismatchError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    InvalidMessageError,
    QueueFullError,
)
"""Errors whose cause is the values to be written, not the file."""
COLUMNS = {
    Status.WAITING: 0,
    Status.IN_PROGRESS: 1,
    Status.COMPLETED: 2,
    Status.FAILED: 3,
    Status.CANCELLED: 4,
}
EVER = {Status.COMPLETED: 5, Status.FAILED: 6}
COMPLETED = EVER[Status.COMPLETED]
"""The column that counts all messages ever completed."""


@dataclass(slots=True)
class Counters:
    """The last place given in any lane, the last turn given to any lane, the number of messages not ended."""

    place: int
    turn: int
    depth: int


class Counts(dict[str, list[int]]):
    """Label → by how much each of its counts changes; one number for each column.

    The changes are collected while the step moves messages, and written once at its end.
    """

    def move(self, label: str, before: Status | None, after: Status | None, count: int = 1) -> None:
        """Move `count` messages from one status to another; None means that they are new, or removed."""
        change = self.get(label)
        if change is None:
            change = self[label] = [0] * (len(COLUMNS) + len(EVER))
        if before is not None:
            change[COLUMNS[before]] -= count
        if after is not None:
            change[COLUMNS[after]] += count
            if after in EVER:
                change[EVER[after]] += count


class LaneChange(msgspec.Struct):
    """The change of one lane in a step; `depth` and `running` are differences."""

    depth: int = 0
    running: int = 0
    delay_ms: int | None = None
    ordered: bool | None = None
    min_idle_ms: int | None = None

    def release(self, delay_ms: int, count: int = 1) -> None:
        """Note that `count` claims of the lane have ended, and that it rests for `delay_ms`."""
        self.running -= count
        self.delay_ms = max(self.delay_ms or 0, delay_ms)


class Step:
    """One write transaction of the queue. `woken` and `earliest` say which waits to wake after the commit."""

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        limits: QueueLimits,
        apply_effects: ApplyEffects | None,
        known_labels: set[str],
    ) -> None:
        """`known_labels` are labels that the queue has counts of; every step adds those that it finds."""
        self.connection = connection
        self.now = now
        self.limits = limits
        self.apply_effects = apply_effects
        self.known_labels = known_labels
        self._lanes: dict[int, LaneChange] = {}
        self._before: dict[int, LaneChange | None] | None = None
        """Inside a savepoint: the lanes that it has changed, as they were; None: they had no change."""
        self.ended: list[tuple[str, str, Status]] = []
        """Messages that have ended. `finish` frees or fails the messages that depend on them."""
        self.runs: list[Run] = []
        """Runs of triggers that have ended or wait again. `finish` updates their triggers."""
        self._loaded: Counters | None = None
        self.counts = Counts()
        """The changes of the counts of each label."""
        self.woken: set[str] = set()
        """Labels of which a lane has entered the ring of ready lanes."""
        self.earliest: int | None = None
        """The earliest time at which something that this step has set up is due."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Keep all changes made inside, or (if it raises) none."""
        touched: dict[int, LaneChange | None] = {}
        lanes, ended, runs = self._lanes, self.ended, self.runs
        counters, counted = self._loaded, self.counts
        outer, self._before = self._before, touched
        self.ended, self.runs = list(ended), list(runs)
        self._loaded = None if counters is None else replace(counters)
        self.counts = Counts((label, list(change)) for label, change in counted.items())
        try:
            with self.connection:
                yield
        except BaseException:
            for lane, before in touched.items():
                if before is None:
                    lanes.pop(lane, None)
                else:
                    lanes[lane] = before
            self._lanes, self.ended, self.runs = lanes, ended, runs
            self._loaded, self.counts = counters, counted
            self._before = outer
            raise
        self._before = outer
        if outer is not None:
            for lane, before in touched.items():
                outer.setdefault(lane, before)

    def know_counters(self, place: int, turn: int, depth: int) -> None:
        """Take the counters from a statement that has read them along with other values."""
        if self._loaded is None:
            self._loaded, self._stored = Counters(place, turn, depth), Counters(place, turn, depth)

    @property
    def counters(self) -> Counters:
        """The counters. They include the changes of lanes once `write_lanes` has run."""
        if self._loaded is None:
            self.know_counters(*self.rows(SQL["read_counters"])[0])
        assert self._loaded is not None
        return self._loaded

    def close(self) -> None:
        """Write the counters and counts, at the end of the transaction."""
        counters = self._loaded
        if counters is not None and counters != self._stored:
            any_completed = any(change[COMPLETED] for change in self.counts.values())
            completed_at = self.now if any_completed else None
            self.rows(SQL["write_counters"], (counters.place, counters.turn, counters.depth, completed_at))
        for label, change in self.counts.items():  # mostly one label; JSON would cost more
            if any(change):
                self.rows(COUNTS_SQL["write_counts"], (label, *change))

    def rows(self, query: str, bindings: dict[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and read all its rows."""
        return self.connection.execute(query, bindings).fetchall()

    def many(self, query: str, bindings: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Run one statement for each of `bindings`, and read all rows."""
        return self.connection.executemany(query, bindings).fetchall() if bindings else []

    def lane(self, lane: int) -> LaneChange:
        """The change of a lane. Asking for it makes `finish` look at the lane."""
        change = self._lanes.get(lane)
        if self._before is not None and lane not in self._before:
            self._before[lane] = copy(change)
        if change is None:
            change = self._lanes[lane] = LaneChange()
        return change

    def end_waiting(self, row: int, user_id: str, item_id: str, lane: int, error: str) -> None:
        """End a message that waits: as cancelled, or as a dead letter with this error."""
        status = Status.CANCELLED if error == "cancelled" else Status.FAILED
        expires = self.now + self.limits.retention_ms if status is Status.CANCELLED else None
        ((label, user_key, attempts),) = self.rows(SQL["end_waiting"], (row, error, self.now, expires))
        note_end(self, user_id, item_id, status, None if status is Status.CANCELLED else error)
        self.counts.move(label, Status.WAITING, status)
        self.lane(lane).depth -= 1
        self.ended.append((user_id, item_id, status))
        if user_key is not None:
            self.runs.append(Run(label, user_key, item_id, status, attempts, error))
        self.expect(expires)

    def expect(self, moment: int | None) -> None:
        """Note that something is due at `moment`; None means nothing."""
        if moment is not None and (self.earliest is None or moment < self.earliest):
            self.earliest = moment

    def take_places(self, count: int) -> range:
        """Reserve places at the ends of lanes."""
        counters = self.counters
        counters.place += count
        return range(counters.place - count + 1, counters.place + 1)

    def finish(self) -> None:
        """Handle the dependants and triggers of ended messages, then write the changed lanes."""
        if self.ended:
            kept_ms = self.limits.dead_retention_ms
            if kept_ms is not None and any(status is Status.FAILED for *_, status in self.ended):
                self.expect(self.now + kept_ms)
            self._look_after_dependants()
        if self.runs:
            runs, self.runs = self.runs, []
            write_runs(self, runs)
        self.write_lanes()

    def write_lanes(self) -> None:
        """Write the changed lanes. Those that may be served enter the ring."""
        if not self._lanes:
            return
        counters, changes = self.counters, self._lanes
        if self._before is not None:
            for lane, change in changes.items():
                self._before.setdefault(lane, copy(change))
        counters.depth += sum(change.depth for change in changes.values())
        counters.turn += 1
        self._lanes = {}
        self._write(changes, None)
        most = self.limits.tenant.concurrency
        if most is not None:
            # The limit of a tenant holds for all of its lanes, so all of them are checked again.
            others = self.rows(SQL["lanes_of_tenants"], {"lanes": to_json(list(changes))})
            self._write({lane: LaneChange() for (lane,) in others}, most)

    def _write(self, changes: dict[int, LaneChange], most_running: int | None) -> None:
        if self.limits.total.concurrency is not None:
            self.woken.update(label for (label,) in self.rows(SQL["ready"]))
        turn = self.counters.turn
        alike: defaultdict[tuple[int | None, ...], list[int]] = defaultdict(list)
        for lane, change in changes.items():
            alike[msgspec.structs.astuple(change)].append(lane)
        always = {"turn": turn, "now": self.now, "most_running": most_running}
        for values, lanes in alike.items():
            change_of_all = dict(zip(LaneChange.__struct_fields__, values, strict=True))
            self.rows(SQL["write_lanes"], {**always, **change_of_all, "lanes": to_json(lanes)})
        bindings = {"turn": turn, "lanes": to_json(list(changes))}
        ((labels, rest_until),) = self.rows(SQL["look_at_lanes"], bindings)
        self.woken.update(label for label in decode_json(labels) if label is not None)
        self.expect(rest_until)

    def _look_after_dependants(self) -> None:
        """Free or fail the messages that depend on ended ones; repeat for the messages that fail."""
        dependants, memos = self.rows(ANY_DEPENDANTS)[0]
        if memos:
            self.rows(SQL["drop_memos"], {"ended": to_json(self.ended)})
        while dependants and self.ended:
            ended = {"ended": to_json(list(dict.fromkeys(self.ended)))}
            self.ended = []
            children = self.rows(SQL["dependants"], ended)
            self.rows(SQL["drop_dependencies"], ended)
            by_row: dict[int, list[tuple[Any, ...]]] = {}
            for child in children:
                by_row.setdefault(child[0], []).append(child)
            for edges in by_row.values():
                self._parents_ended(edges)
        self.ended = []

    def _parents_ended(self, edges: list[tuple[Any, ...]]) -> None:
        """Free or fail one message some of whose parents have ended; `edges` has a row for each of them."""
        row, user_id, item_id, lane, waits_for, due, extra, *_ = edges[0]
        anyway = decode_json(extra).get("if_dependency_fails") == "run"
        failed = [(parent, status) for *_, parent, status in edges if status != Status.COMPLETED]
        if failed and not anyway:
            self.end_waiting(row, user_id, item_id, lane, "dependency: {} {}".format(*failed[0]))
            return
        left = waits_for - len(edges)
        eligible = left == 0 and (due is None or due <= self.now)
        place = self.take_places(1)[0] if eligible else None
        self.rows(SQL["free_dependant"], (row, left, place, self.now))
        if eligible:
            self.lane(lane)
        elif left == 0:
            self.expect(due)
