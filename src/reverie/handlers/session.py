"""The handlers of the labels `session_init` and `session_complete`: the begin and the end of a session.

A `session_complete` waits for the earlier messages of its session, so that what it reports as completed is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.clock import to_epoch_ms
from reverie.effect import PutSession
from reverie.failures import InvalidWorkError
from reverie.observation import SessionContent, read_content
from reverie.outcome import Bury, Done

if TYPE_CHECKING:
    from reverie.message import Key, Message

__all__ = ["session_complete", "session_init"]


async def session_init(messages: list[Message]) -> dict[Key, Done | Bury]:
    """Let sessions begin. A session that is known already stays as it is."""
    return {message.key: _put(message, begins=True) for message in messages}


async def session_complete(messages: list[Message]) -> dict[Key, Done | Bury]:
    """Let sessions end, unless a later hook has come meanwhile."""
    return {message.key: _put(message, begins=False) for message in messages}


def _put(message: Message, *, begins: bool) -> Done | Bury:
    try:
        told = read_content(message.content, SessionContent)
    except InvalidWorkError as error:
        return Bury(str(error))
    at = told.at or (to_epoch_ms(message.timestamp) if message.timestamp else 0)
    put = PutSession(
        session_id=told.memory_session_id,
        status="created" if begins else told.status,
        at=at,
        agent=told.agent,
        error=told.reason if told.status == "failed" and not begins else None,
    )
    return Done(effects=[put])
