"""The triggers that one step of the queue changes, read and written with few statements."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from reverie.backends.sqlite.rows import decode_json, to_json
from reverie.backends.trigger_state import OPEN, Trigger, added, is_news, move_run
from reverie.backends.triggers import TRIGGERS, TypeStatistics
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.backends.sqlite.step import Step
    from reverie.backends.trigger_state import Moved, Run
    from reverie.backends.triggers import TriggerStatus

    Key = tuple[str, str | None]
    """The type and the user key of a trigger."""

__all__ = ["TriggerRows", "write_runs"]

SQL = load_queries(__package__ or "", "trigger_rows.sql")

_decode_triggers = msgspec.json.Decoder(list[Trigger]).decode


class TriggerRows:
    """Triggers as a step has read them, and as its moves have changed them. `write` writes the changes."""

    def __init__(self, step: Step, keys: Iterable[Key]) -> None:
        self._step = step
        wanted = to_json(list(dict.fromkeys(keys)))
        ((triggers, enabled),) = step.rows(SQL["read_triggers"], {"keys": wanted})
        self._before: dict[Key, Trigger] = {
            (one.task_type, one.user_key): one for one in _decode_triggers(triggers)
        }
        self._after: dict[Key, Trigger | None] = {}
        self.enabled: frozenset[str] = frozenset(decode_json(enabled))
        """The types that are enabled."""
        self._statuses: defaultdict[tuple[str, TriggerStatus], int] = defaultdict(int)
        """(type, status) → by how much the number of triggers in this status changes."""
        self._counted: dict[str, TypeStatistics] = {}
        """Type → what the moves add to its statistics."""
        self._freeing: set[str | None] = set()
        """User keys of triggers for which others need not wait any longer."""

    def get(self, key: Key) -> Trigger | None:
        """A trigger as the moves so far have left it; None if there is none."""
        return self._after[key] if key in self._after else self._before.get(key)

    def keep(self, key: Key, moved: Moved) -> bool:
        """Keep the result of a move, and return its answer."""
        self._after[key] = moved.trigger
        if moved.counted is not None:
            self._count(moved.counted)
        return moved.answer

    def forget_old(self, limit: int) -> None:
        """Remove at most `limit` triggers whose last run ended long ago."""
        rows = self._step.rows(SQL["forget_triggers"], {"now": self._step.now, "limit": limit})
        for task_type, user_key, is_pending in rows:
            if is_pending:
                self._statuses[task_type, "pending"] -= 1
                self._freeing.add(user_key)

    def write(self) -> None:
        """Write the changed triggers and the statistics of their types.

        Wake the trigger clocks if a change concerns them (`is_news`).
        """
        moved: list[Trigger] = []
        quiet: list[Trigger] = []
        for key, after in self._after.items():
            before = self._before.get(key)
            if before == after:
                continue
            if before is not None:
                self._statuses[before.task_type, before.status] -= 1
                if after is None or after.status not in OPEN or after.last_exec != before.last_exec:
                    self._freeing.add(key[1])
            if after is None:
                self._step.rows(SQL["remove_trigger"], key)
            else:
                self._statuses[after.task_type, after.status] += 1
                is_quiet = before is not None and _times(before) == _times(after)
                (quiet if is_quiet else moved).append(after)
            if is_news(before, after):
                self._step.woken.add(TRIGGERS)
        if self._freeing:
            self._step.rows(SQL["put_back"], {"keys": to_json(list(self._freeing))})
        for statement, triggers in (("write_triggers", moved), ("write_quietly", quiet)):
            if triggers:
                self._step.rows(SQL[statement], {"triggers": to_json(triggers)})
        self._write_statistics()

    def _write_statistics(self) -> None:
        for task_type in {task_type for task_type, _ in self._statuses}:
            pending, running = (self._statuses[task_type, word] for word in ("pending", "running"))
            if pending or running:
                self._count(TypeStatistics(task_type=task_type, pending=pending, running=running))
        for counted in self._counted.values():
            self._step.rows(SQL["add_statistics"], msgspec.structs.asdict(counted))

    def _count(self, more: TypeStatistics) -> None:
        known = self._counted.get(more.task_type)
        self._counted[more.task_type] = more if known is None else added(known, more)


def write_runs(step: Step, runs: Sequence[Run]) -> None:
    """Update triggers after the messages of their runs have ended or wait again."""
    keys = [(run.task_type, run.user_key) for run in runs]
    triggers = TriggerRows(step, keys)
    for key, run in zip(keys, runs, strict=True):
        triggers.keep(key, move_run(triggers.get(key), run, step.now))
    triggers.write()


def _times(trigger: Trigger) -> tuple[object, ...]:
    """The fields that `write_quietly` does not write for a known trigger."""
    return (
        trigger.created_at,
        trigger.scheduled_at,
        trigger.anchor,
        trigger.item_user_id,
        trigger.item_id,
        trigger.fired_at,
        trigger.ended,
        trigger.expires_at,
        trigger.last_exec,
        trigger.previous_run,
    )
