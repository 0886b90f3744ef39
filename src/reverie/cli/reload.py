"""Read the settings anew while a process runs; only the section `scheduler` comes into force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.logs import get_logger
from reverie.errors import InvalidSettingError, InvalidSettingsError, ReverieError
from reverie.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.configuration.reading import Reading
    from reverie.runtime import Runtime
    from reverie.triggers.settings import TriggerSettings

__all__ = ["Reloaded", "Reloader"]

log = get_logger(__name__)

SECTION = "scheduler"


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading the settings anew."""

    problems: list[str] = []
    """Why the settings were refused, each reason with its place; if any, the old settings stay in force."""
    changed: bool = False
    """Whether the section differs from the one before."""
    not_in_force: str = ""
    """Why the section is not in force; empty if it is."""
    need_restart: list[str] = []
    """Settings of other sections that differ from those that the process was started with."""


class Reloader:
    """Reads the settings of a process anew."""

    def __init__(self, runtime: Runtime) -> None:
        """Remember the settings as they are now: the process was started with them."""
        self._runtime = runtime
        self._begun = read_settings().settings
        self._section = self._begun.scheduler

    async def reload(self) -> Reloaded:
        """Read the settings, bring the section into force if they are valid, and log the result."""
        try:
            answer = await self._reload()
        except InvalidSettingsError as error:
            answer = Reloaded(problems=[str(problem) for problem in error.problems])
        except InvalidSettingError as error:
            answer = Reloaded(problems=[str(error)])
        for problem in answer.problems:
            log.error("settings.refused", problem=problem, hint="the old ones stay in force")
        if answer.not_in_force:
            log.error("settings.not_in_force", section=SECTION, reason=answer.not_in_force)
        if answer.need_restart:
            log.warning("settings.need_restart", settings=", ".join(answer.need_restart))
        if not answer.problems:
            log.info("settings.reloaded", section=SECTION, changed=answer.changed)
        return answer

    async def _reload(self) -> Reloaded:
        reading = read_settings()
        section = reading.settings.scheduler
        changed = section != self._section
        if changed:
            self._replace(reading, section)
        return Reloaded(
            changed=changed,
            not_in_force=await self._bring_into_force(section),
            need_restart=sorted(_differing(self._begun, reading.settings)),
        )

    def _replace(self, reading: Reading[Settings], section: TriggerSettings) -> None:
        try:
            self._runtime.triggers.reload(section)
        except InvalidSettingError as error:
            place = tuple(error.setting.split("."))
            raise InvalidSettingError(
                error.setting, error.value, error.reason, reading.where(place)
            ) from error
        self._section = section

    async def _bring_into_force(self, section: TriggerSettings) -> str:
        """Tell the backend about the section; return why it is not in force, or an empty text."""
        if not section.enabled:
            return ""
        triggers = self._runtime.triggers
        try:
            await triggers.ready()
            known = await triggers.known_types()
        except ReverieError as error:
            return f"{error}; it will be tried again"
        if differing := triggers.types.differing:
            return (
                f"{', '.join(differing)} are in force otherwise, and both are of scheduler.version = "
                f"{section.version}: to let these settings hold, give them scheduler.version = "
                f"{section.version + 1}"
            )
        highest = max((one.version for one in known), default=0)
        if highest > section.version:
            return (
                f"settings with scheduler.version = {highest} are in force, these have {section.version}: "
                f"to let these hold, give them scheduler.version = {highest + 1}"
            )
        return ""


def _differing(before: Settings, now: Settings) -> Iterator[str]:
    """The names of settings outside the section that differ."""
    return _names(before.model_dump(exclude={SECTION}), now.model_dump(exclude={SECTION}))


def _names(before: dict[str, Any], now: dict[str, Any], above: str = "") -> Iterator[str]:
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _names(one, other, f"{above}{name}.")
        elif one != other:
            yield f"{above}{name}"
