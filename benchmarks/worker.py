"""The worker process that is measured: `python -m benchmarks.worker serve URL` or `drain URL MESSAGES WAY`.

`serve` may be given settings besides the defaults, a JSON object of sections.

It prints lines: `ready` when it can begin, then those of its mode, `serve` or `drain`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.defaults import shipped_settings
from reverie import AsyncScheduler, Message
from reverie.base.own_process import freeze_heap, run_process, set_up_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.observe.events import Event

SUBSCRIBERS = 10
EVENTS_OF_ONE = 3
"""Events of each message that was submitted before the start: dequeue, start, finish."""
LOOK_S = 0.002
"""How often the queue is asked whether all is completed, once all handlers have run."""


def main() -> None:
    mode, url, *rest = sys.argv[1:]
    set_up_process()
    run_process(serve(url, *rest) if mode == "serve" else drain(url, int(rest[0]), rest[1]))


async def serve(url: str, sections: str = "{}") -> None:
    """Answer each probe with the moment its handler began, and `cpu` with the CPU seconds used so far."""
    scheduler = AsyncScheduler(settings=shipped_settings(url, **json.loads(sections)))

    @scheduler.handler("probe")
    def probe(message: Message) -> None:
        say(f"probe {message.item_id} {time.monotonic()}")

    async with scheduler:
        freeze_heap()
        say("ready")
        while command := await asyncio.to_thread(sys.stdin.readline):
            if command == "cpu\n":
                say(f"cpu {time.process_time()}")


async def drain(url: str, messages: int, way: str) -> None:
    """Wait for a line, then print how many seconds it took until all messages were completed.

    `way` says what listens to the events: `none`, ten `subscribers`, or the `log`.
    """
    settings = shipped_settings(url)
    if way == "log":
        logging.basicConfig(filename=os.devnull, level=logging.INFO)
        settings.events.log = True
    scheduler = AsyncScheduler(settings=settings)
    heard = [0] * SUBSCRIBERS if way == "subscribers" else []
    for number in range(len(heard)):
        scheduler.observe.subscribe(partial(_count, heard, number))
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
        while (await scheduler.observe.counts()).all_tasks_summary.completed < messages:  # noqa: ASYNC110  only the queue knows
            await asyncio.sleep(LOOK_S)
        say(f"drained {time.monotonic() - began}")
    if any(count < EVENTS_OF_ONE * messages for count in heard):
        raise SystemExit(f"subscribers heard of {heard} events of {messages} messages")


def _count(heard: list[int], number: int, events: Sequence[Event]) -> None:
    heard[number] += len(events)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
