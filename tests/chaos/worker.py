"""A worker process that can be killed at any moment: remembers each message it handles, in order."""

from __future__ import annotations

import asyncio
import sys

from reverie import AsyncScheduler, Done, Message, Remember, ReverieError
from reverie.cli.daemon.run import run_until_stopped
from support.living import passes

scheduler = AsyncScheduler()


@scheduler.handler("note", concurrency=16)
async def note(message: Message) -> Done:
    await passes()
    return Done(effects=[Remember(memory_id=f"note-{message.content}", text=f"note {message.content}")])


if __name__ == "__main__":
    try:
        asyncio.run(run_until_stopped(scheduler))
    except ReverieError as error:
        sys.exit(str(error))
