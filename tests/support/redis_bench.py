"""A queue on Redis, and the server as anyone else sees it."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from redis import Redis

from reverie.backends.control import Selection
from reverie.backends.moves import ClaimRequest, Move, QueueLimits, Settlement, Want
from reverie.backends.redis import RedisBackend
from reverie.backends.redis.keys import Keys
from reverie.base.clock import from_epoch_ms
from reverie.message import Message
from support.servers import RedisClock, delete_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

NOW = 1_800_000_000_000


@dataclass
class Bench:
    """A backend, and the server as anyone else sees it."""

    backend: RedisBackend
    server: Redis
    prefix: str
    clock: RedisClock

    def __post_init__(self) -> None:
        self.queue = self.backend.queue

    async def claim(self, label: str = "work", worker: str = "w", **want) -> list:
        wants = {label: Want(**{"slots": 10_000, "quantum": 10_000, **want})}
        return await self.queue.claim(ClaimRequest(worker=worker, wants=wants))

    async def settle(self, *claims, move: Move = Move.COMPLETE, **fields) -> None:
        settlements = [Settlement(claim=claim, move=move, **fields) for claim in claims]
        assert {answer.state for answer in await self.queue.settle(settlements)} == {"applied"}

    async def control(self, command, **which):
        return await self.queue.control(command(Selection(**which)))

    def key_names(self) -> set[str]:
        """What the queue has on the server, without the names' common beginning."""
        found = {key.decode().removeprefix(self.prefix) for key in self.server.scan_iter(f"{self.prefix}*")}
        return found - {":clock", ":wake_clock", ":wake_horizon", ":version", ":prefixes"}

    def lane_keys(self) -> set[str]:
        """Those that are there because of a lane that has work."""
        others = {":labels", ":unordered", ":horizon", ":expiry", ":dead", ":failed", ":cancelled"}
        of_items = (":wake", ":history", "-status")
        return {key for key in self.key_names() - others if not key.startswith(of_items)}

    async def cost(self, work: Awaitable[object]) -> int:
        """How many commands some work is for the server, which nobody else may use meanwhile."""
        before = self._commands()
        await work
        return self._commands() - before

    def _commands(self) -> int:
        return sum(command["calls"] for command in self.server.info("commandstats").values())

    def tokens(self, label: str) -> int:
        return self.server.llen(f"{self.prefix}:wake:{label}")

    def meta(self, message: Message) -> dict:
        keys = Keys(self.prefix)
        return msgspec.json.decode(self.server.hget(keys.task_meta(message.user_id), message.item_id))


@asynccontextmanager
async def open_bench(url: str, limits: QueueLimits | None = None) -> AsyncIterator[Bench]:
    prefix = f"test-{uuid.uuid4()}"
    backend = RedisBackend(
        url,
        limits or QueueLimits(retention_ms=60_000),
        prefix=prefix,
        allow_volatile=True,
    )
    clock = RedisClock(url, prefix, NOW)
    await backend.open()
    with Redis.from_url(url) as server:
        yield Bench(backend, server, prefix, clock)
    await backend.close()
    clock.close()
    delete_keys(url, prefix)


def message(item_id: str, user_id: str = "ann", **fields) -> Message:
    return Message(**{"item_id": item_id, "user_id": user_id, "label": "work", "content": item_id, **fields})


def within(seconds: float) -> datetime:
    """So many seconds after the clock's first moment."""
    return from_epoch_ms(NOW) + timedelta(seconds=seconds)
