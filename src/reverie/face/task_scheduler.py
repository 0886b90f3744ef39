"""`TaskScheduler` and `get_scheduler()`: timed tasks only, under the names of the seed document."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reverie.assembly import trigger_options
from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.base.logs import get_logger
from reverie.dispatch.registry import Registry
from reverie.face.global_scheduler import mem_scheduler
from reverie.triggers.handlers import FAILED
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Claim
    from reverie.backends.triggers import KnownType, TriggerState
    from reverie.face.scheduler import Scheduler

__all__ = ["TaskScheduler", "get_scheduler"]

log = get_logger(__name__)


class TaskScheduler:
    """The timed tasks of one scheduler, for synchronous programs."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        """Use the timed tasks of `scheduler`; default: the scheduler that the whole process shares."""
        self._scheduler = scheduler or mem_scheduler
        self._pulled: dict[tuple[str, str, str], Claim] = {}

    def register_handler(self, task_type: str, handler: Callable[..., Any]) -> None:
        """Let `handler(user_id, device_id, agent_id)`, sync or async, do the work of a task type."""
        self._scheduler.runtime.triggers.handle(task_type, handler)

    def schedule_user_task(
        self, task_type: str, user_id: str, device_id: str | None = None, agent_id: str | None = None
    ) -> bool:
        """See `Scheduler.schedule_user_task`."""
        return self._scheduler.schedule_user_task(task_type, user_id, device_id, agent_id)

    def schedule_user_tasks(
        self, task_type: str, whose: Sequence[tuple[str, str | None, str | None]]
    ) -> list[bool]:
        """See `Scheduler.schedule_user_tasks`."""
        return self._scheduler.schedule_user_tasks(task_type, whose)

    async def start(self) -> None:
        """Run due tasks from now on."""
        await asyncio.to_thread(self._scheduler.start)

    async def stop(self) -> None:
        """Stop the scheduler cleanly."""
        await asyncio.to_thread(self._scheduler.stop)

    def get_pending_task(self, task_type: str) -> dict[str, Any] | None:
        """Take a due task of a type that has no handler anywhere; None if nothing is due.

        The caller holds the task for the type's timeout, and ends it by `complete_task` with its
        `lock_token`. A task that is not ended in time can be taken again.
        """
        claim = self._scheduler.run(self._pull(task_type))
        if claim is None:
            return None
        message = claim.message
        user_key, info = message.user_key or "", message.info or {}
        self._pulled[task_type, user_key, claim.claim_id] = claim
        return {
            "task_type": task_type,
            "user_key": user_key,
            "user_id": message.user_id if user_key else None,
            "device_id": info.get("device_id"),
            "agent_id": info.get("agent_id"),
            "lock_token": claim.claim_id,
        }

    def complete_task(
        self,
        task_type: str,
        user_key: str,
        lock_token: str,
        success: bool = True,  # noqa: FBT001, FBT002  as programs call it
    ) -> bool:
        """End a task from `get_pending_task`; False, and nothing changes, if the caller has lost it.

        A failed task is tried again, up to the type's `max_retries`.
        """
        claim = self._pulled.pop((task_type, user_key, lock_token), None)
        return claim is not None and self._scheduler.run(self._settle(claim, success=success))

    def types(self) -> list[KnownType]:
        """See `scheduler.triggers.types`."""
        return self._scheduler.triggers.types()

    def list_tasks(self, task_type: str, *, after: str = "", limit: int = 100) -> list[TriggerState]:
        """See `scheduler.triggers.tasks`."""
        return self._scheduler.triggers.tasks(task_type, after=after, limit=limit)

    def cancel_task(
        self, task_type: str, user_id: str, device_id: str | None = None, agent_id: str | None = None
    ) -> bool:
        """See `scheduler.triggers.cancel`."""
        return self._scheduler.triggers.cancel(
            task_type, user_id=user_id, device_id=device_id, agent_id=agent_id
        )

    def run_task(
        self,
        task_type: str,
        user_id: str | None = None,
        device_id: str | None = None,
        agent_id: str | None = None,
    ) -> bool:
        """See `scheduler.triggers.run`."""
        return self._scheduler.triggers.run(
            task_type, user_id=user_id, device_id=device_id, agent_id=agent_id
        )

    def enable(self, task_type: str) -> None:
        """See `scheduler.triggers.enable`."""
        self._scheduler.triggers.enable(task_type)

    def disable(self, task_type: str) -> None:
        """See `scheduler.triggers.disable`."""
        self._scheduler.triggers.disable(task_type)

    async def _pull(self, task_type: str) -> Claim | None:
        runtime = self._scheduler.runtime
        settings = await runtime.triggers.fire_for_puller(task_type)
        if settings is None:
            return None
        level = runtime.registry.orchestrator.level(task_type)
        want = Want(slots=1, quantum=1, level=level, max_attempts=settings.max_retries)
        lease_ms = round(settings.timeout * 1000)
        request = ClaimRequest(worker=runtime.worker.name, wants={task_type: want}, lease_ms=lease_ms)
        return next(iter(await runtime.backend.queue.claim(request)), None)

    def _failed(self, claim: Claim) -> Settlement:
        """Make the settlement of a failed run that had no handler."""
        runtime, label = self._scheduler.runtime, claim.message.label
        options = trigger_options(runtime.triggers.types.get(label) or TaskSettings())
        handler = Registry(runtime.settings.worker).add(label, bool, options=options)
        return runtime.policy.failed(claim, handler, FAILED)

    async def _settle(self, claim: Claim, *, success: bool) -> bool:
        runtime = self._scheduler.runtime
        settlement = Settlement(claim=claim, move=Move.COMPLETE) if success else self._failed(claim)
        (settled,) = await runtime.backend.queue.settle([settlement])
        return settled.state == "applied"


def get_scheduler() -> TaskScheduler | None:
    """Return the timed tasks of the process's shared scheduler; None if `scheduler.enabled` is false."""
    return TaskScheduler(mem_scheduler) if mem_scheduler.runtime.triggers.enabled else None
