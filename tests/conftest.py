"""Fixtures that every test may use."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from reverie.testing import ManualClock
from support.places import PLACES
from support.servers import valkey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.places import Place


def pytest_configure() -> None:
    """A shell that starts something in the background lets it, and all it starts, ignore Ctrl-C: not here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


settings.register_profile("untimed", deadline=None)  # how long an example takes depends on what else runs
settings.load_profile("untimed")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: the sockets beside a file need theirs to be under a hundred characters."""
    name = re.sub(r"\W", "_", request.node.name.removeprefix("test_"))
    return tmp_path_factory.mktemp(name[:16])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_800_000_000_000)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One Redis server for all tests: each uses keys of its own."""
    given = os.environ.get("REVERIE_TEST_REDIS_URL")
    if given:
        yield given
    else:
        with valkey() as url:
            yield url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A whole product; parametrize it indirectly with the kinds of `places.PLACES`."""
    with PLACES[request.param](tmp_path) as opened:
        yield opened
