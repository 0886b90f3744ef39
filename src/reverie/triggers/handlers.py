"""Make a handler of messages from a function of a user, a device and an agent."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from reverie.errors import InvalidSettingError
from reverie.outcome import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.message import Message

__all__ = ["FAILED", "message_handler"]

NAMES = ("user_id", "device_id", "agent_id")
FAILED = "the handler answered False"


def message_handler(task_type: str, function: Callable[..., Any]) -> Callable[[Message], Any]:
    """Make a handler that calls `function(user_id, device_id, agent_id)`; without a user, all are None.

    If the function answers False, the run has failed, as after an exception. Any other answer is success.
    """
    by_name = _takes_names(task_type, function)

    def arguments(message: Message) -> tuple[tuple[Any, ...], dict[str, Any]]:
        info = message.info or {}
        ids = (
            (message.user_id, info.get("device_id"), info.get("agent_id"))
            if message.user_key
            else (None,) * 3
        )
        return ((), dict(zip(NAMES, ids, strict=True))) if by_name else (ids, {})

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        async def handle_async(message: Message) -> None:
            given, named = arguments(message)
            _check(await function(*given, **named))

        return handle_async

    def handle(message: Message) -> None:
        given, named = arguments(message)
        _check(function(*given, **named))

    return handle


def _check(answer: object) -> None:
    if answer is False:
        raise Retry(reason=FAILED)


def _takes_names(task_type: str, function: Callable[..., Any]) -> bool:
    """Whether the function takes the three ids by name; refuse one that cannot take them at all."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return False
    for given, named in ((NAMES, {}), ((), dict.fromkeys(NAMES))):
        try:
            signature.bind(*given, **named)
        except TypeError:
            continue
        return bool(named)
    raise InvalidSettingError(
        f"handler of {task_type}", function, "must take user_id, device_id and agent_id"
    )
