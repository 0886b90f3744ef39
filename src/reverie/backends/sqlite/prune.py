"""Pruning: removing drained lanes, and dating statuses by a retention that has become shorter.

A pass goes through all rows in bounded steps. `Pruned.after` is the place that it has reached, as JSON: the
date and row of a status, or the number of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.moves import Pruned
from reverie.backends.sqlite.rows import decode_json, to_json
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from reverie.backends.sqlite.step import Step

__all__ = ["prune"]

SQL = load_queries(__package__ or "", "prune.sql")
FIRST_LANE = to_json([0])
"""The `after` with which the lanes begin."""


def prune(step: Step, limit: int, after: str | None) -> Pruned:
    """Look through the next `limit` rows: first the statuses, if their dates are too late, then the lanes."""
    place = [0, 0] if after is None else decode_json(after)
    if len(place) == 1:
        return _drop_lanes(step, limit, *place)
    retention_ms = step.limits.retention_ms
    ((dated_by,),) = step.rows(SQL["dated_by"])
    if dated_by is None or dated_by > retention_ms:
        pruned = _date_earlier(step, limit, *place)
        if pruned.after is not None:
            return pruned
    else:
        pruned = Pruned()
    if dated_by != retention_ms:
        step.rows(SQL["set_dated_by"], {"retention_ms": retention_ms})
    return Pruned(changed=pruned.changed, after=FIRST_LANE)


def _date_earlier(step: Step, limit: int, moment: int, row: int) -> Pruned:
    """Date the statuses after this one by the retention that holds now."""
    rows = step.rows(SQL["dated"], {"moment": moment, "row": row, "limit": limit})
    numbers = to_json([number for _, number in rows])
    step.rows(SQL["date_earlier"], {"rows": numbers, "retention_ms": step.limits.retention_ms})
    changed = step.connection.changes() if rows else 0
    if changed:
        step.expect(step.now)  # some may have to go at once
    return Pruned(changed=changed, after=to_json(rows[-1]) if len(rows) == limit else None)


def _drop_lanes(step: Step, limit: int, after: int) -> Pruned:
    """Remove the drained ones of the lanes after this one."""
    ((last, found),) = step.rows(SQL["next_lanes"], {"after": after, "limit": limit})
    if not found:
        return Pruned()
    before = step.now - step.limits.retention_ms
    step.rows(SQL["drop_lanes"], {"after": after, "last": last, "before": before})
    return Pruned(changed=step.connection.changes(), after=to_json([last]) if found == limit else None)
