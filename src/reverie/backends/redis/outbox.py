"""The outbox: gathers submits that come while others are on their way, and sends them together."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from reverie.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.backends.moves import Submitted
    from reverie.message import Message

__all__ = ["Outbox"]

CALLS = 2
"""Calls of one event loop that are on their way at once: while the server works on one, the next is built."""
MOST_MESSAGES = 256
"""Messages of one call: all other clients of the server wait until it is done."""
MOST_CHARACTERS = 1024 * 1024
"""Characters of content of one call; a submit that is larger goes alone."""


@dataclass
class _Submission:
    """The messages of one submit, and the future of its answer."""

    messages: Sequence[Message]
    answer: asyncio.Future[list[Submitted]]


@dataclass
class _Waiting:
    """The submits of one event loop that are not sent yet, and the tasks that send them."""

    submissions: deque[_Submission] = field(default_factory=deque)
    senders: set[asyncio.Task[None]] = field(default_factory=set)

    def take(self) -> list[_Submission]:
        """The next submits that fit into one call."""
        taken: list[_Submission] = []
        messages = characters = 0
        while self.submissions:
            given = self.submissions[0].messages
            messages += len(given)
            characters += sum(len(message.content) for message in given)
            if taken and (messages > MOST_MESSAGES or characters > MOST_CHARACTERS):
                break
            taken.append(self.submissions.popleft())
        return taken


class Outbox:
    """Takes submits on any event loop. Each is accepted whole or refused, whatever happens to the others."""

    def __init__(self, send: Callable[[Sequence[Message]], Awaitable[list[Submitted]]]) -> None:
        """`send` submits messages with one call."""
        self._send = send
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = WeakKeyDictionary()

    async def put(self, messages: Sequence[Message]) -> list[Submitted]:
        """Submit messages, with others that wait."""
        loop = asyncio.get_running_loop()
        waiting = self._loops.get(loop)
        if waiting is None:
            waiting = self._loops[loop] = _Waiting()
        submission = _Submission(messages, loop.create_future())
        waiting.submissions.append(submission)
        if len(waiting.senders) < CALLS:
            sender = loop.create_task(self._send_waiting(waiting), name="reverie-redis-outbox")
            waiting.senders.add(sender)
            sender.add_done_callback(waiting.senders.discard)
        return await submission.answer

    async def _send_waiting(self, waiting: _Waiting) -> None:
        while taken := waiting.take():
            await self._deliver(taken)

    async def _deliver(self, taken: Sequence[_Submission]) -> None:
        """Submit and answer. After a refusal, each submit is sent alone: it may be meant for another one."""
        try:
            answers = iter(await self._send([message for one in taken for message in one.messages]))
        except asyncio.CancelledError:  # the event loop ends
            for one in taken:
                one.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  the submits get it
            if len(taken) > 1 and not isinstance(error, BackendUnavailableError):
                for one in taken:
                    await self._deliver([one])
                return
            for one in taken:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one in taken:
            its_own = [next(answers) for _ in one.messages]
            if not one.answer.done():  # nobody waits any more
                one.answer.set_result(its_own)
