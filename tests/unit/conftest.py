"""What several of these tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.capture.spool import Spool
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client
from support.redis_bench import Bench, open_bench
from support.schedulers import new_scheduler
from support.spooling import ingester_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from reverie import Scheduler
    from reverie.capture.ingester import SpoolIngester
    from reverie.testing import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Scheduler]:
    """An empty scheduler that runs nothing by itself."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    opened = new_scheduler(url, clock)
    yield opened
    opened.close()


@pytest.fixture
async def client(scheduler: AsyncScheduler) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP face of a scheduler; each answer must be one that the document names."""
    app = create_app(scheduler, run_worker=False)
    async with documented_client(app, raise_app_exceptions=False) as opened:
        yield opened


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    """An empty queue on a Redis server."""
    async with open_bench(redis_url) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a spool."""
    return tmp_path / "data" / "spool"


@pytest.fixture
def spool(folder: Path) -> Spool:
    """The spool of that folder."""
    return Spool(folder)


@pytest.fixture
async def idle_scheduler(tmp_path: Path) -> AsyncIterator[AsyncScheduler]:
    """The scheduler of that spool, which looks into it only when it is told."""
    settings = load_settings(data_dir=tmp_path / "data", queue={"url": None}, spool={"look_s": 3600})
    scheduler = AsyncScheduler(settings=settings)
    await scheduler.open()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
def ingester(idle_scheduler: AsyncScheduler, folder: Path) -> SpoolIngester:
    """What takes files of that spool to the queue of that scheduler."""
    return ingester_of(idle_scheduler, folder)
