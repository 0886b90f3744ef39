"""Registration of handlers, timed tasks and middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

from reverie.dispatch.registry import label_options
from reverie.errors import InvalidSettingError
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reverie.dispatch.middleware import Middleware
    from reverie.dispatch.registry import Orchestrator
    from reverie.message import Message
    from reverie.runtime import Runtime

__all__ = ["Registration"]

F = TypeVar("F", bound="Callable[..., Any] | str")
M = TypeVar("M", bound="Middleware")
T = TypeVar("T", bound="Callable[..., Any]")


class Registration:
    """Registers handlers, triggers and middleware, for both schedulers."""

    runtime: Runtime

    def handler(
        self,
        label: str,
        *,
        batch: bool | int = False,
        cpu: bool | None = None,
        level: int | None = None,
        ordered: bool | None = None,
        concurrency: int | None = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff_s: float | None = None,
        max_backoff_s: float | None = None,
        min_idle_ms: int | None = None,
        credential: str | Callable[[Message], str] | None = None,
        role: Literal["user", "service", "admin"] | None = None,
    ) -> Callable[[F], F]:
        """Let the decorated function handle `label`.

        The function takes (message, ctx), with `batch=True` (messages, ctx) and at most `worker.batch`
        messages, with `batch=100` at most a hundred; it may leave `ctx` out. With `cpu=True` it runs in
        processes that can be killed, so it must be defined at the top level of a module. An import path may
        be given instead of a function: `handler("thumbnail", cpu=True)("images:thumbnail")`. Options that are
        not given follow the settings.

        `credential` is the name of the credential that the work is paid or signed with, or a function that
        returns the name for a message. When the quota of a credential is used up, only work with the same
        credential is paused. Default: each label has a credential of its own.

        `role` is the weakest role whose API keys may submit the label over HTTP; default `user`.
        """
        options = label_options(
            label,
            cpu=cpu,
            level=level,
            ordered=ordered,
            concurrency=concurrency,
            batch=batch if batch is not True and batch else None,
            timeout_s=timeout,
            max_attempts=max_attempts,
            backoff_s=backoff_s,
            max_backoff_s=max_backoff_s,
            min_idle_ms=min_idle_ms,
            credential=None if callable(credential) else credential,
            role=role,
        )
        credential_of = credential if callable(credential) else None

        def register(function: F) -> F:
            self.runtime.registry.add(
                label, function, batch=bool(batch), options=options, credential_of=credential_of
            )
            return function

        return register

    def register_handlers(self, handlers: Mapping[str, Callable[..., Any] | str]) -> None:
        """Let functions, or those at import paths, handle their labels; each takes a list of messages."""
        for label, function in handlers.items():
            self.runtime.registry.add(label, function, batch=True)

    def middleware(self, function: M) -> M:
        """Let the decorated function wrap every run: `async def around(batch, proceed)`.

        The function runs the batch by `await proceed(batch)` and returns the outcomes, one for each message
        of `batch.messages` in their order. The function that was added first is the outermost.
        """
        self.runtime.middleware.append(function)
        self.runtime.worker.use(self.runtime.middleware)
        return function

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator: levels (`tasks_priorities`) and rests (`tasks_min_idle_ms`) by label."""
        return self.runtime.registry.orchestrator

    def trigger(
        self,
        task_type: str,
        *,
        mode: Literal["user_activity", "periodic", "cron"] = "user_activity",
        debounce: bool = False,
        **options: Any,
    ) -> Callable[[T], T]:
        """Let the decorated function do the work of a timed task: `def digest(user_id, device_id, agent_id)`.

        `mode` says what starts a run. The options are those of `scheduler.tasks` in the settings: interval,
        timeout, max_retries, cron, timezone, max_wait, misfire, jitter, level, depends_on … If the settings
        have this type, they win. A run fails, and is tried again, if the function returns False or raises.
        """
        given = {
            "enabled": True,
            "trigger_mode": mode,
            "mode": "debounce" if debounce else "throttle",
            **options,
        }
        try:
            settings = TaskSettings(**given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "options"
            raise InvalidSettingError(
                f"trigger({task_type!r}, {where})", first.get("input"), first["msg"]
            ) from error

        def register(function: T) -> T:
            self.runtime.triggers.define(task_type, settings)
            self.runtime.triggers.handle(task_type, function)
            return function

        return register
