"""Readiness: whether each thing that this process depends on works, and if not, what is wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from reverie.runtime import Runtime

__all__ = ["Dependency", "check_dependencies"]

PATIENCE_S = 5.0
"""Seconds after which a dependency that has not answered counts as missing."""


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the process depends on."""

    name: str
    ok: bool
    why: str | None = None
    """What is wrong with the dependency; None if it works."""


async def check_dependencies(runtime: Runtime, *, with_worker: bool) -> list[Dependency]:
    """Try each dependency now; `with_worker` says whether this process should run a worker."""
    checks: dict[str, Awaitable[str | None]] = {"queue": _queue(runtime), "memory": _memory(runtime)}
    if with_worker:
        checks["worker"] = _worker(runtime)
    if runtime.databases.files:
        checks["disk"] = _disk(runtime)
    if runtime.does("ingest"):
        checks["spool"] = asyncio.to_thread(runtime.spool.check)
    return list(await asyncio.gather(*(_try(name, check) for name, check in checks.items())))


async def _try(name: str, check: Awaitable[str | None]) -> Dependency:
    try:
        async with asyncio.timeout(PATIENCE_S):
            why = await check
    except TimeoutError:
        why = f"did not answer within {PATIENCE_S:g} s"
    except (ReverieError, OSError) as error:
        why = str(error)
    return Dependency(name=name, ok=why is None, why=why)


async def _queue(runtime: Runtime) -> None:
    await runtime.open()
    await runtime.backend.views.labels()
    await runtime.backend.queue.submit([])  # a full server or a replica can be read, but takes no message


async def _memory(runtime: Runtime) -> None:
    await runtime.open()
    await runtime.store.get("", "")


async def _worker(runtime: Runtime) -> str | None:
    alive = {presence.worker for presence in await runtime.backend.views.workers()}
    here = runtime.settings.scheduler_startup_mode == "thread"
    if runtime.worker.name in alive if here else alive:
        hanging = runtime.abandoned_alert()
        return None if hanging is None else f"{hanging.message}: {hanging.remedy}"
    return "no worker of this process is alive: read its log, then start the process again"


async def _disk(runtime: Runtime) -> None:
    for database in runtime.databases.files:
        await database.check_disk()
