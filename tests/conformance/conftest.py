"""Every backend, opened empty, with its clock in the test's hand.

A new backend joins by one entry in BACKENDS; it is done when the whole folder passes.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pytest

from reverie.backends.control import Selection
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, QueueLimits, Settlement, Want
from reverie.backends.redis import RedisBackend
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.views import StatusQuery
from reverie.message import Message
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock
from support.servers import RedisClock, delete_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.backends.interface import Backend
    from reverie.backends.moves import Claim

LIMITS = QueueLimits(max_losses=3, retention_ms=60_000)
"""What a queue is opened with, unless a test says otherwise: `@pytest.mark.limits(refuse_unhandled=True)`."""


@dataclass
class Bench:
    """A backend, its clock, and short words for what the tests do with them."""

    backend: Backend
    clock: ManualClock | RedisClock

    def __post_init__(self) -> None:
        self.kind = type(self.backend).__name__.removesuffix("Backend").lower()
        self.queue = self.backend.queue
        self.views = self.backend.views

    async def submit(self, *messages: Message) -> list[str]:
        return [answer.status for answer in await self.queue.submit(messages)]

    async def claim(self, label: str = "work", lease_ms: int = 30_000, **want) -> list[Claim]:
        wants = {label: Want(**{"slots": 100, "per_slot": 10, **want})}
        request = ClaimRequest(worker="w", wants=wants, lease_ms=lease_ms)
        return await self.queue.claim(request)

    async def status(self, message: Message):
        page = await self.views.read(StatusQuery(user_id=message.user_id, item_id=message.item_id))
        return page.rows[0] if page.rows else None

    async def control(self, command, **which):
        """Do what a person asks for with the items that fit."""
        return await self.queue.control(command(Selection(**which)))

    async def run_all(self, label: str = "work") -> list[str]:
        """Claim and complete until nothing is left; the ids in the order of their start."""
        order: list[str] = []
        while claims := await self.claim(label):
            order += ids(claims)
            await self.queue.settle([done(claim) for claim in claims])
        return order

    async def advance(self, seconds: float = 0):
        self.clock.advance(seconds)
        return await self.queue.advance(100)


def limits(request: pytest.FixtureRequest) -> QueueLimits:
    marker = request.node.get_closest_marker("limits")
    return msgspec.structs.replace(LIMITS, **marker.kwargs) if marker else LIMITS


@asynccontextmanager
async def memory(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Bench]:
    yield Bench(MemoryBackend(clock, limits(request)), clock)


@asynccontextmanager
async def sqlite(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Bench]:
    path = request.getfixturevalue("tmp_path") / "queue.db"
    backend = SqliteBackend(Database(str(path), "normal"), clock, limits(request))
    await backend.open()
    yield Bench(backend, clock)
    await backend.close()


@asynccontextmanager
async def redis(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Bench]:
    url, name = request.getfixturevalue("redis_url"), f"test-{uuid.uuid4()}"
    backend = RedisBackend(url, limits(request), prefix=name, allow_volatile=True)
    server_clock = RedisClock(url, name, clock.now())
    await backend.open()
    yield Bench(backend, server_clock)
    await backend.close()
    server_clock.close()
    delete_keys(url, name)


BACKENDS = {"memory": memory, "sqlite": sqlite, "redis": redis}


@pytest.fixture(params=BACKENDS)
async def bench(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Bench]:
    async with BACKENDS[request.param](request, clock) as opened:
        await opened.backend.open()
        yield opened


def ids(claims) -> list[str]:
    return [claim.message.item_id for claim in claims]


def done(claim: Claim, **fields) -> Settlement:
    return Settlement(claim=claim, move=Move.COMPLETE, **fields)


async def settle(bench: Bench, *settlements: Settlement) -> list[str]:
    return [answer.state for answer in await bench.queue.settle(settlements)]


def message(item_id: str, user_id: str = "ann", label: str = "work", **fields) -> Message:
    return Message(item_id=item_id, user_id=user_id, label=label, content=item_id, **fields)
