"""Reverie, the memory scheduler for AI agents.

Names are loaded when they are first used, so that importing the package costs nothing: a hook of an agent
imports it for each event.
"""

from __future__ import annotations

from reverie.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from reverie.dispatch.context import Context
    from reverie.effect import Delete, Link, Move, Remember, Revise, Source, Supersede, Touch
    from reverie.errors import ReverieError
    from reverie.face.global_scheduler import mem_scheduler
    from reverie.face.scheduler import AsyncScheduler, Scheduler
    from reverie.face.task_scheduler import TaskScheduler, get_scheduler
    from reverie.face.timed_work import create_cleanup_handler, create_compression_handler
    from reverie.failures import (
        BudgetError,
        CredentialsError,
        InvalidWorkError,
        QuotaError,
        RateLimitedError,
        TransientError,
    )
    from reverie.message import Message
    from reverie.message import Message as ScheduleMessageItem
    from reverie.outcome import Bury, Cancel, Done, Retry, Snooze
    from reverie.settings import Settings
    from reverie.turn import Turn

__all__ = [
    "AsyncScheduler",
    "BudgetError",
    "Bury",
    "Cancel",
    "Context",
    "CredentialsError",
    "Delete",
    "Done",
    "InvalidWorkError",
    "Link",
    "Message",
    "Move",
    "QuotaError",
    "RateLimitedError",
    "Remember",
    "Retry",
    "ReverieError",
    "Revise",
    "ScheduleMessageItem",
    "Scheduler",
    "Settings",
    "Snooze",
    "Source",
    "Supersede",
    "TaskScheduler",
    "Touch",
    "TransientError",
    "Turn",
    "__version__",
    "create_cleanup_handler",
    "create_compression_handler",
    "get_scheduler",
    "mem_scheduler",
]

_HOMES = {
    "AsyncScheduler": "reverie.face.scheduler:AsyncScheduler",
    "BudgetError": "reverie.failures:BudgetError",
    "Bury": "reverie.outcome:Bury",
    "Cancel": "reverie.outcome:Cancel",
    "Context": "reverie.dispatch.context:Context",
    "CredentialsError": "reverie.failures:CredentialsError",
    "Delete": "reverie.effect:Delete",
    "Done": "reverie.outcome:Done",
    "InvalidWorkError": "reverie.failures:InvalidWorkError",
    "Link": "reverie.effect:Link",
    "Message": "reverie.message:Message",
    "Move": "reverie.effect:Move",
    "QuotaError": "reverie.failures:QuotaError",
    "RateLimitedError": "reverie.failures:RateLimitedError",
    "Remember": "reverie.effect:Remember",
    "Retry": "reverie.outcome:Retry",
    "Revise": "reverie.effect:Revise",
    "ReverieError": "reverie.errors:ReverieError",
    "ScheduleMessageItem": "reverie.message:Message",
    "Scheduler": "reverie.face.scheduler:Scheduler",
    "Settings": "reverie.settings:Settings",
    "Snooze": "reverie.outcome:Snooze",
    "Source": "reverie.effect:Source",
    "Supersede": "reverie.effect:Supersede",
    "Touch": "reverie.effect:Touch",
    "TaskScheduler": "reverie.face.task_scheduler:TaskScheduler",
    "TransientError": "reverie.failures:TransientError",
    "Turn": "reverie.turn:Turn",
    "create_cleanup_handler": "reverie.face.timed_work:create_cleanup_handler",
    "create_compression_handler": "reverie.face.timed_work:create_compression_handler",
    "get_scheduler": "reverie.face.task_scheduler:get_scheduler",
    "mem_scheduler": "reverie.face.global_scheduler:mem_scheduler",
}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    from importlib import import_module  # noqa: PLC0415  a hook uses none of these names

    if name not in _HOMES:
        raise AttributeError(f"module 'reverie' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return __all__
