"""Trigger types: what this process knows of those in force, and how often it reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import QueueLimits
from reverie.backends.triggers import KnownType, SwitchType
from reverie.errors import InvalidSettingError
from reverie.triggers.settings import TaskSettings, TriggerSettings
from reverie.triggers.types import TriggerTypes, settings_of

if TYPE_CHECKING:
    from reverie.testing import ManualClock


def configured(version: int = 1, **fields) -> TriggerSettings:
    digest = TaskSettings(enabled=True, interval=60, depends_on=["clean"], **fields)
    return TriggerSettings(version=version, tasks={"clean": TaskSettings(enabled=True), "digest": digest})


async def test_a_type_is_parsed_again_only_if_it_has_changed(clock: ManualClock) -> None:
    backend = MemoryBackend(clock, QueueLimits())
    types = TriggerTypes(configured(), backend, ("user_id",))
    await types.bring_into_force()
    first = dict(types.in_force)
    await types.refresh()
    assert [types.in_force[name] is first[name] for name in first] == [True, True]
    types.replace(configured(version=2, timeout=5))
    await types.bring_into_force()
    assert types.in_force["clean"] is first["clean"]
    assert (types.in_force["digest"].timeout, types.in_force["digest"].depends_on) == (5, ["clean"])
    await backend.triggers.control(SwitchType("clean", enabled=False))
    await types.refresh()
    assert types.in_force.keys() == {"digest"}
    assert types.get("clean") == first["clean"].model_copy(update={"enabled": False})


@pytest.mark.parametrize("text", ["", "[1]", '{"interval": -1}', '{"of_a_newer_version": 1}'])
def test_what_a_newer_instance_has_configured_is_refused_each_time(text: str) -> None:
    known = KnownType(name="digest", fields={"settings": text}, enabled=True, version=1)
    for _ in range(2):
        with pytest.raises(InvalidSettingError, match="upgrade this one"):
            settings_of(known)
