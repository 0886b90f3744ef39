"""What several of these tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from schedulers import new_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reverie import Scheduler
    from reverie.testing import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Scheduler]:
    """An empty scheduler that runs nothing by itself."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    opened = new_scheduler(url, clock)
    yield opened
    opened.close()
