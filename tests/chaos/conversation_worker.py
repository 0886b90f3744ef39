"""A worker process with the built-in handlers, which can be killed at any moment."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from reverie import AsyncScheduler, ReverieError
from reverie.backends.breaker_state import BreakerRules
from reverie.cli.daemon.run import run_until_stopped
from reverie.models import permits

PAUSE_MS = 300
PERMIT_LEASE_MS = 4000


def new_scheduler() -> AsyncScheduler:
    """A scheduler that waits briefly after failures of the model, and for permits of processes that died."""
    scheduler = AsyncScheduler()
    permits.LEASE_MS = PERMIT_LEASE_MS
    pool = scheduler.runtime.gateway._permits
    breaker = BreakerRules(pause_ms=PAUSE_MS, max_pause_ms=PAUSE_MS)
    pool._rules = msgspec.structs.replace(pool._rules, breaker=breaker)
    return scheduler


if __name__ == "__main__":
    try:
        asyncio.run(run_until_stopped(new_scheduler()))
    except ReverieError as error:
        sys.exit(str(error))
