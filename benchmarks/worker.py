"""The worker process that is measured: `python -m benchmarks.worker serve URL` or `drain URL MESSAGES`.

It talks in lines: `ready` when it can begin, then what its mode says.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing

import apsw

from benchmarks.defaults import shipped_settings
from reverie import AsyncScheduler, Message
from reverie.storage.queries import load_queries

COUNT = load_queries("benchmarks", "raw.sql")["count_completed"]
LOOK_S = 0.002
"""How often the rows are counted once all handlers have run."""


def main() -> None:
    mode, url, *rest = sys.argv[1:]
    asyncio.run(serve(url) if mode == "serve" else drain(url, int(rest[0])))


async def serve(url: str) -> None:
    """Answer each probe with the moment its handler began, and `cpu` with the CPU seconds used so far."""
    scheduler = AsyncScheduler(settings=shipped_settings(url))

    @scheduler.handler("probe")
    def probe(message: Message) -> None:
        say(f"probe {message.item_id} {time.monotonic()}")

    async with scheduler:
        say("ready")
        while command := await asyncio.to_thread(sys.stdin.readline):
            if command == "cpu\n":
                say(f"cpu {time.process_time()}")


async def drain(url: str, messages: int) -> None:
    """After a line comes in: say how many seconds it took until all rows were completed."""
    scheduler = AsyncScheduler(settings=shipped_settings(url))
    loop = asyncio.get_running_loop()
    handled = asyncio.Event()
    left = messages

    @scheduler.handler("noop")
    def noop(message: Message) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            loop.call_soon_threadsafe(handled.set)

    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    async with scheduler:
        await handled.wait()
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
            while connection.execute(COUNT).get < messages:  # noqa: ASYNC110  a file sends no events
                await asyncio.sleep(LOOK_S)
        say(f"drained {time.monotonic() - began}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
