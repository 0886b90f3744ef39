"""What handlers make of the content of a message that is no JSON object: it is the text itself."""

from __future__ import annotations

import pytest

from reverie.backends.moves import Status
from support.upkeep_home import home

LABELS = ("add", "mem_read", "query", "answer", "mem_feedback", "pref_add", "api_mix_search")


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("content", ["2024", "true", "null", '"said so"', "{so it was}"])
async def test_any_text_will_do(label: str, content: str) -> None:
    async with home() as here:
        await here.run(label, content)
        states = {item.task_type: item.status for item in await here.scheduler.status("ann")}
        assert states[label] is Status.COMPLETED


@pytest.mark.parametrize("label", LABELS[1:])
async def test_an_object_of_another_shape_is_refused(label: str) -> None:
    async with home() as here:
        await here.run(label, {"queri": 1, "memory_ids": 5})
        (item,) = await here.scheduler.status("ann")
        assert item.status is Status.FAILED
