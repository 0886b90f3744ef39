"""How fast a backend takes in and works off messages, with full status tracking, at the shipped defaults."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from reverie import AsyncScheduler, Message
from reverie.settings import load_settings

BATCH = 500
SINGLES = 2000
PROBES = 200


def measure(backend: str, messages: int, lanes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        url = "memory://" if backend == "memory" else f"sqlite:///{Path(folder) / 'bench.db'}"
        figures = asyncio.run(_measure(url, messages, lanes))
    return {"backend": backend, "messages": messages, "lanes": lanes, **figures}


async def _measure(url: str, messages: int, lanes: int) -> dict[str, Any]:
    scheduler = AsyncScheduler(settings=load_settings(queue={"url": url}))
    done = asyncio.Event()
    handled = 0
    goal = messages
    starts: dict[str, float] = {}

    @scheduler.handler("noop")
    def noop(message: Message) -> None:
        nonlocal handled
        handled += 1
        if handled == goal:
            loop.call_soon_threadsafe(done.set)

    @scheduler.handler("probe")
    async def probe(message: Message) -> None:
        starts[message.item_id] = time.perf_counter()

    loop = asyncio.get_running_loop()
    await scheduler.open()
    figures = {}

    began = time.perf_counter()
    for n in range(SINGLES):
        await scheduler.submit("single", user_id=f"user-{n % lanes}")
    figures["submit_one_rate"] = round(SINGLES / (time.perf_counter() - began))

    all_messages = [Message(user_id=f"user-{n % lanes}", label="noop", content="{}") for n in range(messages)]
    began = time.perf_counter()
    for start in range(0, messages, BATCH):
        await scheduler.submit_messages(all_messages[start : start + BATCH])
    figures["submit_batch_rate"] = round(messages / (time.perf_counter() - began))

    began = time.perf_counter()
    async with scheduler:
        await done.wait()
        await scheduler.wait(all_messages[-1].item_id, user_id=all_messages[-1].user_id)
        figures["drain_rate"] = round(messages / (time.perf_counter() - began))

        latencies = []
        for _ in range(PROBES):
            sent = time.perf_counter()
            receipt = await scheduler.submit("probe", user_id="prober")
            await scheduler.wait(receipt.item_id, user_id="prober")
            latencies.append((starts[receipt.item_id] - sent) * 1000)
    figures["latency_p50_ms"] = round(statistics.median(latencies), 2)
    figures["latency_p99_ms"] = round(statistics.quantiles(latencies, n=100)[98], 2)
    return figures
