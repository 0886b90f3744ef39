"""`TaskScheduler` and `get_scheduler()`: timed tasks only, under the names of the seed document."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from reverie.assembly import trigger_options
from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.base.logs import get_logger
from reverie.dispatch.registry import Registry
from reverie.errors import InvalidSettingError
from reverie.face.global_scheduler import mem_scheduler
from reverie.face.scheduler import Scheduler
from reverie.observe.recorder import Recorder
from reverie.settings import load_settings
from reverie.triggers.handlers import FAILED
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from reverie.backends.moves import Claim
    from reverie.backends.triggers import KnownType, TriggerState

__all__ = ["TaskScheduler", "get_scheduler"]

log = get_logger(__name__)


class Stopping:
    """A stop that was begun; await it to wait until the scheduler has stopped."""

    def __init__(self, done: Future[None]) -> None:
        self._done = done

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(asyncio.wrap_future(self._done)).__await__()


class TaskScheduler:
    """The timed tasks of one scheduler, for synchronous programs."""

    def __init__(self, redis_cache: Any = None, config: Mapping[str, Any] | None = None) -> None:
        """Use the timed tasks of `redis_cache`: a scheduler, or the URL of a queue (redis://…, sqlite:///…).

        Default: the scheduler that the whole process shares. `config` is the section `scheduler` of the
        settings; with it, or with a URL, this object has a scheduler of its own.
        """
        self._scheduler: Scheduler = mem_scheduler
        if isinstance(redis_cache, Scheduler):
            if config is not None:
                reason = "the scheduler has its settings already: give the URL of its queue instead"
                raise InvalidSettingError("config", config, reason)
            self._scheduler = redis_cache
        elif redis_cache is not None and not isinstance(redis_cache, str):
            reason = "must be a Scheduler, or the URL of a queue such as redis://127.0.0.1:6379/0"
            raise InvalidSettingError("redis_cache", redis_cache, reason)
        elif redis_cache is not None or config is not None:
            given = {} if config is None else {"scheduler": dict(config)}
            self._scheduler = Scheduler(redis_cache, settings=load_settings(**given))
        self._switching = threading.Lock()
        """Held while the scheduler starts or stops."""
        self._loops: set[Future[None]] = set()
        """One for each `start` that has not ended; a stop ends them all."""

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
        """Run due tasks until `stop`: await this call, or make it a task. Its cancellation is a stop, too."""
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # only `stop` ends it
        self._loops.add(ended)
        try:
            await asyncio.to_thread(self._begin, ended)
            await asyncio.wrap_future(ended)
        finally:
            if ended in self._loops:  # it was cancelled, or could not start
                self._loops.discard(ended)
                if not self._loops:
                    await self.stop()

    def stop(self) -> Stopping:
        """Stop the scheduler cleanly, and end `start`.

        A plain call waits for the stop. Inside an event loop it returns at once, and may be awaited.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        threading.Thread(target=self._end, args=(done,), name="reverie-stop").start()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            done.result()
        return Stopping(done)

    def _begin(self, ended: Future[None]) -> None:
        with self._switching:
            if not ended.done():
                self._scheduler.start()

    def _end(self, done: Future[None]) -> None:
        failure: Exception | None = None
        with self._switching:
            try:
                self._scheduler.stop()
            except Exception as error:
                log.exception("task_scheduler.not_stopped")
                failure = error
            loops, self._loops = self._loops, set()
            for ended in loops:
                ended.set_result(None)
        # Told last: the caller may start again at once, and this stop must not end that start.
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)

    def get_pending_task(self, task_type: str) -> dict[str, Any] | None:
        """Take a due task of a type that has no handler anywhere; None if nothing is due.

        The caller holds the task for the type's timeout, and ends it by `complete_task`, in this process or
        another. A task that has failed or was not ended in time is taken again by a later call.
        """
        claim = self._scheduler.run(self._pull(task_type))
        if claim is None:
            return None
        message = claim.message
        user_key, info = message.user_key or "", message.info or {}
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
        lock_token: str | None = None,
        success: bool = True,  # noqa: FBT001, FBT002  as programs call it
    ) -> bool:
        """End a task that any instance has taken; False, and nothing changes, if it is not held.

        With a `lock_token`, only the task that was taken with this token is ended: if it was handed on since,
        the answer is False. Without one, the task of its present holder is ended. A failed task is tried
        again, up to the type's `max_retries`.
        """
        return self._scheduler.run(self._complete(task_type, user_key, lock_token, success=success))

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
        settings = await runtime.triggers.pulled_type(task_type)
        if settings is None:
            return None
        await runtime.worker.advance()  # no worker may run that hands on tasks and ends their rests
        await runtime.triggers.clock.fire_due({task_type: settings})
        level = runtime.registry.orchestrator.level(task_type)
        want = Want(slots=1, quantum=1, level=level, max_attempts=settings.max_retries)
        request = ClaimRequest(
            worker=runtime.worker.name, wants={task_type: want}, lease_ms=round(settings.timeout * 1000)
        )
        claims = await runtime.backend.queue.claim(request)
        recorder = self._recorder(request.lease_ms)
        if recorder.dequeued(claims, request.worker):
            recorder.started(claims, request.worker)
        return next(iter(claims), None)

    async def _complete(
        self, task_type: str, user_key: str, lock_token: str | None, *, success: bool
    ) -> bool:
        runtime = self._scheduler.runtime
        await runtime.triggers.ready()
        claim = await runtime.backend.triggers.held(task_type, user_key)
        if claim is None or (lock_token is not None and lock_token != claim.claim_id):
            return False
        if lock_token is None and await runtime.triggers.pulled_type(task_type) is None:
            return False  # a worker may hold it
        task = runtime.triggers.types.get(task_type) or TaskSettings()
        settlement = Settlement(claim=claim, move=Move.COMPLETE) if success else self._failed(claim, task)
        (settled,) = await runtime.backend.queue.settle([settlement])
        if settled.state == "applied":
            lease_ms = round(task.timeout * 1000)
            took_ms = max(0, runtime.clock.now() - (claim.lease_until - lease_ms))
            took = {id(claim): took_ms / 1000}
            self._recorder(lease_ms).finished([settlement], runtime.worker.name, took)
            runtime.finishes.announce([claim.key])
        return settled.state == "applied"

    def _failed(self, claim: Claim, task: TaskSettings) -> Settlement:
        """Make the settlement of a failed run that had no handler."""
        runtime = self._scheduler.runtime
        options = trigger_options(task)
        handler = Registry(runtime.settings.worker).add(claim.message.label, bool, options=options)
        return runtime.policy.failed(claim, handler, FAILED)

    def _recorder(self, lease_ms: int) -> Recorder:
        """The recorder of events about claims with this lease."""
        runtime = self._scheduler.runtime
        return Recorder(runtime.bus, runtime.clock, lease_ms)


@functools.cache
def _shared() -> TaskScheduler:
    return TaskScheduler(mem_scheduler)


def get_scheduler() -> TaskScheduler | None:
    """Return the timed tasks of the process's shared scheduler; None if `scheduler.enabled` is false."""
    return _shared() if mem_scheduler.runtime.triggers.enabled else None
