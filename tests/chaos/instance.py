"""An instance whose timed tasks remember each run, each time anew: what is done twice is remembered twice."""

from __future__ import annotations

import asyncio
import sys
import uuid

from reverie import AsyncScheduler, Done, Message, Remember, ReverieError
from reverie.cli.daemon.run import run_until_stopped

scheduler = AsyncScheduler()


async def remember(message: Message) -> Done:
    return Done(effects=[Remember(memory_id=str(uuid.uuid4()), text=message.item_id)])


for task_type in scheduler.runtime.settings.scheduler.tasks:
    scheduler.handler(task_type)(remember)

if __name__ == "__main__":
    try:
        asyncio.run(run_until_stopped(scheduler))
    except ReverieError as error:
        sys.exit(str(error))
