"""Watch the trigger types: which are late, missed, failing, or configured in two ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.errors import InvalidSettingError
from reverie.observe.trigger_rules import TriggerHealth, TypeHealth
from reverie.triggers.types import settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.interface import Backend
    from reverie.backends.triggers import KnownType, TypeStatistics
    from reverie.triggers.types import TriggerTypes

__all__ = ["TriggerWatch"]

MISSED_MS = 600_000
"""Missed due times are reported for ten minutes."""


class TriggerWatch:
    """Compares the statistics of the types in force with those of its last look."""

    def __init__(self, backend: Backend, types: TriggerTypes) -> None:
        self._backend = backend
        self._types = types
        self._before: dict[str, _Before] = {}

    async def look(self, late_s: float) -> TriggerHealth:
        """The health of all types. The lateness of each type is measured only if one is late by `late_s`."""
        store = self._backend.triggers
        known = await store.types()
        statistics = {one.task_type: one for one in await store.statistics()}
        handled = {label for worker in await self._backend.views.workers() for label in worker.labels}
        watched = {one.name: _depends_on(one) for one in known if one.enabled and one.name in handled}
        now, late = await self._late(watched, late_s)
        found = []
        for one in known:
            if one.name in statistics:
                before = self._before.setdefault(one.name, _Before(statistics[one.name]))
                found.append(before.compare(statistics[one.name], now, late.get(one.name, 0.0)))
        return TriggerHealth(
            types=found, differing=self._types.differing, version=self._types.settings.version
        )

    async def _late(self, types: Mapping[str, Sequence[str]], late_s: float) -> tuple[int, dict[str, float]]:
        """The present time, and the lateness of each type in seconds if a trigger is late by `late_s`."""
        due = await self._backend.triggers.due(types, 1)
        late_ms = late_s * 1000
        if not due.triggers or due.now - due.triggers[0].scheduled_at <= late_ms:
            return due.now, {}
        late = {}
        for name, depends_on in types.items():
            own = await self._backend.triggers.due({name: depends_on}, 1)
            if own.triggers:
                late[name] = (own.now - own.triggers[0].scheduled_at) / 1000
        return due.now, late


class _Before:
    """The statistics of a type at the last look."""

    def __init__(self, seen: TypeStatistics) -> None:
        """If every run of a type so far has failed, all of them count as failures in a row."""
        self._skipped = seen.skipped
        self._missed, self._missed_at = 0, 0
        self._ended_well = seen.runs - seen.failures
        self._failures = seen.failures if self._ended_well else 0

    def compare(self, seen: TypeStatistics, now: int, late_s: float) -> TypeHealth:
        ended_well = seen.runs - seen.failures
        if ended_well != self._ended_well or seen.failures < self._failures:
            self._ended_well, self._failures = ended_well, seen.failures
        if now - self._missed_at > MISSED_MS:
            self._missed = 0
        if seen.skipped > self._skipped:
            self._missed, self._missed_at = self._missed + seen.skipped - self._skipped, now
        self._skipped = seen.skipped
        return TypeHealth(
            task_type=seen.task_type,
            late_s=late_s,
            missed=self._missed,
            failures=seen.failures - self._failures,
            last_error=seen.last_error,
        )


def _depends_on(known: KnownType) -> Sequence[str]:
    try:
        return settings_of(known).depends_on
    except InvalidSettingError:
        return ()  # a newer instance has configured it, and watches it
