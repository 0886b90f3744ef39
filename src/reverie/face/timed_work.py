"""The work of timed tasks as functions: submit it, wait for it, say whether it has succeeded.

`create_compression_handler` and `create_cleanup_handler` make functions of (user, device, agent) of it, which
`TaskScheduler.register_handler` takes.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

from reverie.backends.views import StatusQuery
from reverie.base.logs import get_logger
from reverie.errors import ReverieError, WaitTimeoutError
from reverie.memory.housekeeping import KeepsHouse, changed_cubes
from reverie.memory.tenants import tenants_of
from reverie.message import Message, check_ids, new_item_id
from reverie.observe.status import ALL_ITEMS
from reverie.triggers.settings import ACTIVITY_INTERVAL_S, TaskSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reverie.backends.moves import Status
    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.interface import Tenant

__all__ = ["TimedWork", "create_cleanup_handler", "create_compression_handler"]

log = get_logger(__name__)

COMPRESSION = "memory_compression"
CLEANUP = "data_cleanup"
AT_ONCE = 500
"""How many tenants are read, or get a message, in one step."""


class TimedWork:
    """Submits the work of timed tasks and waits for it, outside of any worker."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def compress(
        self, user_id: str, device_id: str | None, agent_id: str | None, interval_seconds: float
    ) -> bool:
        """Compress each cube of a user that has changed; see `AsyncScheduler`."""
        runtime = self._scheduler.runtime
        check_ids(runtime.limits, user_id=user_id, device_id=device_id, agent_id=agent_id)
        await self._scheduler.open()
        cubes = await changed_cubes(runtime.store, user_id, COMPRESSION)
        named = {"device_id": device_id, "agent_id": agent_id}
        info = {name: value for name, value in named.items() if value is not None}
        content = {"interval_seconds": interval_seconds}
        task_id = new_item_id()
        for cube in cubes:
            await self._scheduler.submit(
                COMPRESSION, user_id=user_id, mem_cube_id=cube, content=content, task_id=task_id, info=info
            )
        return await self._ended_well(COMPRESSION, {user_id} if cubes else set(), task_id)

    async def clean_up(self) -> bool:
        """Remove what is expired, of all tenants; see `AsyncScheduler`."""
        await self._scheduler.open()
        task_id = new_item_id()
        messages: list[Message] = []
        users: set[str] = set()
        async for user_id, cube in self._to_clean():
            users.add(user_id)
            messages.append(Message(user_id=user_id, mem_cube_id=cube, label=CLEANUP, task_id=task_id))
            if len(messages) == AT_ONCE:
                await self._scheduler.submit_messages(messages)
                messages = []
        if messages:
            await self._scheduler.submit_messages(messages)
        return await self._ended_well(CLEANUP, users, task_id)

    async def _to_clean(self) -> AsyncIterator[Tenant]:
        """The tenants that may have something to remove."""
        runtime = self._scheduler.runtime
        store = runtime.store
        if not isinstance(store, KeepsHouse):
            raise ReverieError(f"the memory store {type(store).__name__} cannot be cleaned up (KeepsHouse)")
        if runtime.settings.memory.retention_s:
            async for tenant in tenants_of(store):
                yield tenant
            return
        after: Tenant | None = None
        while found := await store.some_tenants("expired", after, runtime.clock.now(), AT_ONCE):
            for tenant in found:
                yield tenant
            after = found[-1]

    async def _ended_well(self, label: str, users: set[str], task_id: str) -> bool:
        """Wait for all messages of a business task, also for those that follow; whether all completed."""
        tasks = self._scheduler.runtime.settings.scheduler.tasks
        deadline = time.monotonic() + (tasks.get(label) or TaskSettings()).timeout
        states: set[Status] = set()
        for user_id in sorted(users):
            query = StatusQuery(user_id=user_id, task_id=task_id, limit=ALL_ITEMS)
            while True:
                rows = (await self._scheduler.runtime.backend.views.read(query)).rows
                waiting = next((row for row in rows if not row.status.ended), None)
                if waiting is None:
                    break
                left = deadline - time.monotonic()
                try:
                    await self._scheduler.wait(waiting.item_id, user_id=user_id, timeout=max(0.0, left))
                except WaitTimeoutError as error:
                    log.warning("timed_work.late", label=label, user_id=user_id, error=str(error))
                    return False
            states |= {row.status for row in rows}
        return all(state == "completed" for state in states)


def create_compression_handler(merger: Any) -> Callable[..., Any]:
    """A function of (user, device, agent) that compresses the memories of a user and answers with success.

    `merger` is a scheduler, or anything else that has `periodic_memory_compression_for_user`.
    """
    work = merger.periodic_memory_compression_for_user
    return _handler(
        COMPRESSION,
        work,
        lambda user_id, device_id, agent_id: work(
            user_id=user_id,
            device_id=device_id,
            agent_id=agent_id,
            interval_seconds=round(ACTIVITY_INTERVAL_S),
        ),
    )


def create_cleanup_handler(storage: Any) -> Callable[..., Any]:
    """A function of (user, device, agent) that removes what is expired and answers with success.

    `storage` is a scheduler, or anything else that has `cleanup_expired_data`. The three ids are not used.
    """
    work = storage.cleanup_expired_data
    return _handler(CLEANUP, work, lambda *_: work())


def _handler(label: str, work: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """The function that calls `work`: False if it answers False or raises. It names the label of the work."""
    if inspect.iscoroutinefunction(work):

        async def handle_async(user_id: str | None, device_id: str | None, agent_id: str | None) -> bool:
            try:
                return await call(user_id, device_id, agent_id) is not False
            except Exception:
                log.exception("timed_work.failed", label=label)
                return False

        handle_async.submits = label  # type: ignore[attr-defined]
        return handle_async

    def handle(user_id: str | None, device_id: str | None, agent_id: str | None) -> bool:
        try:
            return call(user_id, device_id, agent_id) is not False
        except Exception:
            log.exception("timed_work.failed", label=label)
            return False

    handle.submits = label  # type: ignore[attr-defined]
    return handle
