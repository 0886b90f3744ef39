"""`scheduler.capture`: what hooks of coding agents capture, from Python and over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import msgspec

from reverie.backends.views import StatusQuery
from reverie.base.bridge import Bridge, blocking
from reverie.base.clock import from_epoch_ms, to_epoch_ms
from reverie.capture.hook_record import LONGEST_TITLE
from reverie.capture.privacy import clean_text
from reverie.errors import BackendUnavailableError, InvalidMessageError
from reverie.memory.sessions import SessionNote
from reverie.message import Message, check_ids, current_ids, new_item_id
from reverie.observation import Observation, SessionContent, Summary, write_content
from reverie.turn import Turn, write_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Submitted
    from reverie.face.scheduler import AsyncScheduler, MessageFields

__all__ = ["AsyncCapture", "Capture", "SessionEvent"]

SessionEvent = Literal["started", "prompt", "answer", "summary", "ended", "failed"]
"""What can be told about a session; prompt, answer and summary carry a text."""
WITH_TEXT = frozenset({"prompt", "answer"})


class AsyncCapture:
    """Captures what an agent sees and does, as part of an `AsyncScheduler`."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def __call__(self, label: str, *, user_id: str, **fields: Unpack[MessageFields]) -> Submitted:
        """Submit one message; if the backend is away, the message waits on disk and the answer is `spooled`.

        A worker or a server that uses the same data folder submits it when the backend is back.
        """
        return await self._scheduler.capture_message(label, user_id=user_id, **fields)

    async def observation(
        self,
        *,
        user_id: str,
        session_id: str,
        title: str,
        mem_cube_id: str = "",
        type: str = "observation",  # noqa: A002  the name of the field everywhere
        narrative: str = "",
        facts: Sequence[str] = (),
        concepts: Sequence[str] = (),
        files_read: Sequence[str] = (),
        files_modified: Sequence[str] = (),
        item_id: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Submitted:
        """Capture something that an agent did or saw. When this returns, it is kept."""
        if not title.strip():
            raise InvalidMessageError("title", title, "has nothing to remember")
        content = Observation(
            memory_session_id=session_id,
            project_id=mem_cube_id or user_id,
            type=type,
            title=title,
            narrative=narrative,
            facts=tuple(facts),
            concepts=tuple(concepts),
            files_read=tuple(files_read),
            files_modified=tuple(files_modified),
        )
        message = self._message("observation", content, user_id, session_id, mem_cube_id, info)
        if item_id is not None:
            message = msgspec.structs.replace(message, item_id=item_id)
        return (await self._submit([message], self._scheduler.runtime.clock.now()))[0]

    async def session(
        self,
        event: SessionEvent,
        *,
        user_id: str,
        session_id: str,
        mem_cube_id: str = "",
        text: str = "",
        reason: str | None = None,
        agent: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Submitted:
        """Tell what happens in a session: it starts, a person says something, the agent answers, it ends.

        The answer is the receipt of the first message that this becomes. A later call for the same session
        makes it active again.
        """
        if event not in get_args(SessionEvent):
            raise InvalidMessageError("event", event, f"must be one of {', '.join(get_args(SessionEvent))}")
        if event in WITH_TEXT and not text.strip():
            raise InvalidMessageError("text", text, f"is needed: what the {event} says")
        now = self._scheduler.runtime.clock.now()
        messages = self._messages(
            event, text, reason, agent, (user_id, session_id, mem_cube_id, info), now=now
        )
        return (await self._submit(messages, now, agent=agent, event=event, text=text))[0]

    def _messages(
        self,
        event: SessionEvent,
        text: str,
        reason: str | None,
        agent: str | None,
        where: tuple[Any, ...],
        *,
        now: int,
    ) -> list[Message]:
        """The messages of an event.

        In a request that may be repeated no content names the time of the call, because the queue compares
        the contents of the same request.
        """
        user_id, session_id, mem_cube_id, _ = where
        ids = {"memory_session_id": session_id, "project_id": mem_cube_id or user_id}
        summary = Summary(**ids)
        is_repeatable = current_ids.get() is not None
        said_at = None if is_repeatable else from_epoch_ms(now).isoformat(timespec="milliseconds")
        match event:
            case "started":
                return [self._message("session_init", SessionContent(**ids, agent=agent), *where)]
            case "prompt":
                said = write_turns([Turn(content=text, role="user", chat_time=said_at)])
                asked = {"query": text, "session_id": session_id}
                return [self._message("add", said, *where), self._message("query", asked, *where)]
            case "answer":
                said = write_turns([Turn(content=text, role="assistant", chat_time=said_at)])
                return [
                    self._message("add", said, *where),
                    self._message("answer", {"answer": text}, *where),
                    self._message("summary", summary, *where),
                ]
            case "summary":
                given = Summary(**ids, type="given", text=text) if text.strip() else summary
                return [self._message("summary", given, *where)]
            case _:
                status: Literal["completed", "failed"] = "failed" if event == "failed" else "completed"
                end = SessionContent(**ids, agent=agent, status=status, reason=reason)
                return [
                    self._message("summary", summary, *where),
                    self._message("session_complete", end, *where),
                ]

    def _message(self, label: str, content: Any, *where: Any) -> Message:
        user_id, session_id, mem_cube_id, info = where
        check_ids(self._scheduler.runtime.limits, user_id=user_id, session_id=session_id)
        if isinstance(content, dict):
            content = msgspec.json.encode(content).decode()
        return Message(
            user_id=user_id,
            mem_cube_id=mem_cube_id,
            label=label,
            content=content if isinstance(content, str) else write_content(content),
            item_id=new_item_id(),
            session_id=session_id,
            info=info,
            timestamp=from_epoch_ms(self._scheduler.runtime.clock.now()),
        )

    async def _submit(
        self,
        messages: Sequence[Message],
        at: int,
        *,
        agent: str | None = None,
        event: str = "",
        text: str = "",
    ) -> list[Submitted]:
        """Submit the messages, then note their session, as the ingester does for hooks.

        `at` is the time of the call. Messages and note have the same one, because a note that is later than
        the end of a session makes it active again. While the backend is away the messages wait on disk, and
        their session is not noted.
        """
        runtime = self._scheduler.runtime
        try:
            await self._scheduler.open()
            await runtime.door.check_project(messages[0].user_id, messages[0].mem_cube_id)
            (waiting,) = await runtime.door.waiting([messages])
            answers = await self._scheduler.submit_messages(list(waiting))
        except BackendUnavailableError:
            return await runtime.intake.submit(messages, spools=True)
        first = messages[0]
        if answers[0].status == "duplicate":
            told = await self._told_at(first)
            if told is None:
                return answers
            at = told
        if runtime.settings.capture.redact:
            text = clean_text(text)
        note = SessionNote(
            user_id=first.user_id,
            session_id=first.session_id or "",
            mem_cube_id=first.mem_cube_id,
            at=at,
            agent=agent,
            prompt=" ".join(text.split())[:LONGEST_TITLE] if event == "prompt" else None,
            is_end=event in {"ended", "failed"},
            items={f"{message.mem_cube_id}/{message.label}": message.item_id for message in waiting},
        )
        await runtime.door.note([note])
        return answers

    async def _told_at(self, message: Message) -> int | None:
        """When a message was first submitted, so that a repeated call is noted as the first was.

        None if the queue has only its status left: its work is done, and the first call was noted.
        """
        query = StatusQuery(user_id=message.user_id, item_id=message.item_id, with_message=True)
        rows = (await self._scheduler.runtime.backend.views.read(query)).rows
        known = rows[0].message if rows else None
        return None if known is None or known.timestamp is None else to_epoch_ms(known.timestamp)


class Capture:
    """Like `AsyncCapture`, for code that blocks."""

    def __init__(self, inner: AsyncCapture, bridge: Bridge, submit: Callable[..., Submitted]) -> None:
        self._inner = inner
        self._bridge = bridge
        self._submit = submit

    def __call__(self, label: str, *, user_id: str, **fields: Unpack[MessageFields]) -> Submitted:
        """See `AsyncCapture.__call__`."""
        return self._submit(label, user_id=user_id, **fields)

    observation = blocking(AsyncCapture.observation)
    session = blocking(AsyncCapture.session)
