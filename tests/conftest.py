"""Fixtures that every test may use."""

from __future__ import annotations

import pytest

from reverie.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_800_000_000_000)
