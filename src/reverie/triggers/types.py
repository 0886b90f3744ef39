"""Trigger types: those that this process is configured with, and those in force for all on the backend."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import msgspec
from pydantic import ValidationError

from reverie.backends.triggers import GLOBAL_KEY, Definition, KnownType
from reverie.base.logs import get_logger
from reverie.errors import InvalidSettingError
from reverie.triggers.plan import jitter_ms
from reverie.triggers.schedule import schedule_of
from reverie.triggers.settings import TaskSettings, TriggerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.interface import Backend

__all__ = ["TriggerTypes", "settings_of"]

log = get_logger(__name__)

FRESH_S = 0.1
"""How long to trust what the backend has answered; after that, others may have changed it."""


class TriggerTypes:
    """Trigger types by name. A type in the settings wins over one that the program defines."""

    def __init__(self, settings: TriggerSettings, backend: Backend, dimensions: Sequence[str]) -> None:
        """`dimensions` are the names of the ids that user keys are made of."""
        self._configured = settings
        self._defined: dict[str, TaskSettings] = {}
        self._backend = backend
        self._dimensions = ":".join(dimensions)
        self._is_known = False
        self._only_looks = False
        self._learned_at = float("-inf")
        self.in_force: Mapping[str, TaskSettings] = {}
        """The types that are enabled, as they are in force for everyone."""
        self._all: dict[str, TaskSettings] = {}
        self.differing: tuple[str, ...] = ()
        """Types that another instance has configured otherwise, under the same version."""

    @property
    def settings(self) -> TriggerSettings:
        """The section `scheduler` that this process is configured with."""
        return self._configured

    def only_look(self) -> None:
        """From now on, only follow the types in force, and never bring this process's own into force."""
        self._only_looks = True

    def define(self, task_type: str, settings: TaskSettings) -> None:
        """Add a type, unless the settings name it."""
        self._defined[task_type] = settings
        self._is_known = False

    def replace(self, settings: TriggerSettings) -> None:
        """Take other settings. `bring_into_force` tells the backend."""
        self._configured = settings
        self._is_known = False

    def get(self, task_type: str) -> TaskSettings | None:
        """A type as it is in force; if it is not in force yet, as it is configured here."""
        return self._all.get(task_type) or self._own.get(task_type)

    @property
    def names(self) -> set[str]:
        """The types in force, and those that this process is configured with."""
        return self._own.keys() | self._all.keys()

    def configured(self) -> list[KnownType]:
        """The types that this process is configured with, by name, in force or not."""
        version = self._configured.version
        return [
            KnownType(name=name, fields=self._fields(name, own), enabled=own.enabled, version=version)
            for name, own in sorted(self._own.items())
        ]

    @property
    def _own(self) -> dict[str, TaskSettings]:
        return self._defined | self._configured.tasks

    async def bring_into_force(self) -> None:
        """Put this process's types to the backend, once, and learn which are in force."""
        if self._is_known or self._only_looks:
            if time.monotonic() - self._learned_at >= FRESH_S:
                await self.refresh()
            return
        if not self._configured.enabled:
            return
        await self._check_dimensions()
        now = (await self._backend.triggers.due({}, 1)).now
        definitions = [self._definition(name, own, now) for name, own in self._own.items()]
        known = await self._backend.triggers.put(definitions, whole=True)
        self.differing = tuple(one.name for one in known if one.differs)
        if self.differing:
            log.error(
                "trigger.configurations_differ",
                task_types=self.differing,
                version=self._configured.version,
                hint="give the configuration that is right a higher scheduler.version",
            )
        self._learn(known)
        self._is_known = True

    async def refresh(self) -> None:
        """Learn which types are in force, including those that only other instances have."""
        known = await self._backend.triggers.types()
        self._learn(known)
        same = {one.name for one in known if one.version == self._configured.version}
        self.differing = tuple(name for name in self.differing if name in same)

    def _learn(self, known: Sequence[KnownType]) -> None:
        self._all = {one.name: settings_of(one) for one in known}
        self.in_force = {one.name: self._all[one.name] for one in known if one.enabled}
        self._learned_at = time.monotonic()

    async def _check_dimensions(self) -> None:
        """Refuse to mix user keys that are made of different ids."""
        others = {
            one.name: one.fields["user_key"]
            for one in await self._backend.triggers.types()
            if one.fields.get("user_key", self._dimensions) != self._dimensions
        }
        if not others:
            return
        waiting = {
            one.task_type: one.pending + one.running
            for one in await self._backend.triggers.statistics()
            if one.task_type in others and others[one.task_type] and one.pending + one.running
        }
        for name, count in waiting.items():
            reason = (
                f"{count} tasks of {name} wait under keys of {others[name]}: let them run, or cancel them "
                "(`reverie triggers cancel`), before the ids that tell users apart change"
            )
            raise InvalidSettingError("scheduler.user_key_config", self._dimensions, reason)

    def _definition(self, name: str, settings: TaskSettings, now: int) -> Definition:
        schedule = schedule_of(settings)
        first = None if schedule is None else schedule.first(now)
        return Definition(
            name=name,
            fields=self._fields(name, settings),
            enabled=settings.enabled,
            version=self._configured.version,
            first_due=None if first is None else first + jitter_ms(settings, GLOBAL_KEY, first),
        )

    def _fields(self, name: str, settings: TaskSettings) -> dict[str, str]:
        """The fields of a type for people to read; `settings` has all that is not a default."""
        own = settings.model_dump(mode="json", exclude_defaults=True, exclude={"enabled"})
        return {
            "name": name,
            "description": settings.description,
            "trigger_mode": settings.trigger_mode,
            "interval": f"{settings.interval_s:.15g}",
            "timeout": f"{settings.timeout:.15g}",
            "task_ttl": f"{settings.task_ttl:.15g}",
            "max_retries": str(settings.max_retries),
            "user_key": self._dimensions if settings.trigger_mode == "user_activity" else "",
            "settings": msgspec.json.encode(own, order="sorted").decode(),
        }


def settings_of(known: KnownType) -> TaskSettings:
    """The settings of a type in force. Another instance may have configured it, even a newer one."""
    try:
        return _parse(known.fields["settings"], enabled=known.enabled)
    except (KeyError, TypeError, msgspec.DecodeError, ValidationError) as error:
        reason = "was configured by an instance that this one does not understand: upgrade this one"
        raise InvalidSettingError(f"scheduler.tasks.{known.name}", known.fields, reason) from error


@functools.lru_cache(maxsize=1000)
def _parse(text: str, *, enabled: bool) -> TaskSettings:
    """Parse the field `settings` of a type; cached, because the clock asks at every turn."""
    return TaskSettings(**msgspec.json.decode(text), enabled=enabled)
