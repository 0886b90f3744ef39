"""A user over many days: sizes stay within limits, nothing is lost, and what was contradicted is told apart.

`python -m benchmarks handlers` does the same for a hundred days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.simulation import growth, simulate

from reverie.settings import load_settings
from support.scale import scaled

if TYPE_CHECKING:
    from pathlib import Path

DAYS = max(20, scaled(100))
LIMIT = 4 * DAYS
"""Fewer items than half of the turns and facts of the days: only upkeep keeps them from being archived."""


@pytest.mark.scaled
def test_some_days_of_a_user(tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path,
        queue={"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"},
        memory={"long_term_limit": LIMIT, "working_limit": 5},
        scheduler={"enabled": False},
    )
    with simulate(settings, DAYS) as life:
        life.live(upkeep=True)
        assert max(life.course.items) <= LIMIT
        assert life.course.items[-1] < life.course.turns[-1] / 2
        assert life.lost() == []
        assert life.wrong_homes() == []
        assert growth(life.course.tokens, life.course.turns) < 1.4
        assert min(recall for _, recall in life.course.recall) > 0.95
        assert {item.tier for item in life.everything()} <= {"working", "long_term"}
        merged = [item for item in life.everything() if item.kind == "summary"]
        sizes = life.scheduler.run(life.scheduler.runtime.models.count_tokens([item.text for item in merged]))
        assert sizes
        assert max(sizes) <= 512
