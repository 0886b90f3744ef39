"""Long reads in the background let searches go first."""

from __future__ import annotations

import threading

import pytest

from reverie.storage import right_of_way
from reverie.storage.right_of_way import RightOfWay


def test_a_step_waits_until_the_last_search_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "MOST_S", 60.0)
    way, order = RightOfWay(), []

    def step() -> None:
        way.give()
        order.append("step")

    background = threading.Thread(target=step)
    with way:
        with way:
            background.start()
        order.append("one search has ended")
    background.join(30)
    assert order == ["one search has ended", "step"]


def test_a_step_goes_on_though_somebody_searches_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "MOST_S", 0.001)
    way = RightOfWay()
    with way:
        way.give()
