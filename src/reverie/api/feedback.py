"""Feedback: what users think of an answer changes the memories behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.adding import submit_new
from reverie.api.answers import Feedback, FeedbackRecord, UpdatedText
from reverie.api.envelope import answer
from reverie.api.models import Cubes, Text, TurnModel
from reverie.api.routing import Example, Route, Touched
from reverie.api.settling import Waiting, check_worker
from reverie.backends.moves import Status
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ItemTakenError,
    NotSupportedError,
    NoWorkerError,
    QueueFullError,
)
from reverie.face.feedback import governed_feedback
from reverie.face.scheduler import AsyncScheduler
from reverie.memory.feedback import FeedbackInput, correction_id
from reverie.message import Message, new_item_id
from reverie.principal import Role
from reverie.turn import DEFAULT_SESSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.api.answers import Added
    from reverie.api.models import AddRequest

__all__ = ["LABEL", "ROUTES", "FeedbackRequest", "add_feedback", "feedback_messages", "record_of"]

LABEL = "mem_feedback"
HISTORY = 10
"""How many of the last turns before a feedback are handed over with it."""


class FeedbackRequest(BaseModel):
    """What a user thinks of an answer, and the memories that the answer was made with."""

    user_id: Text
    history: list[TurnModel] | None = Field(description="the conversation that the feedback is about")
    feedback_content: Text | None = Field(description="praise, criticism, or what is right")
    session_id: Text | None = None
    task_id: Text | None = None
    retrieved_memory_ids: list[Text] | None = Field(None, max_length=100)
    feedback_time: Text | None = Field(None, description="when it was given, in words or as a date")
    writable_cube_ids: Cubes | None = None
    mem_cube_id: Text | None = None
    async_mode: Literal["async", "sync"] = "async"
    corrected_answer: bool = Field(
        default=False, description="whether the feedback says what the answer should have been"
    )
    item_id: Text | None = Field(None, description="repeat a request with the same id and it counts once")
    info: dict[str, Any] | None = None

    def touched(self) -> list[Touched]:
        """The user and the cubes that are changed."""
        return [Touched(self.user_id, tuple(self.cubes))]

    @property
    def cubes(self) -> list[str]:
        """The cubes whose memories are changed, each once; an empty name means the user's own cube."""
        return list(dict.fromkeys(self.writable_cube_ids or [self.mem_cube_id or ""]))


async def feedback(scheduler: AsyncScheduler, client: Request, request: FeedbackRequest) -> JSONResponse:
    """Let feedback change memories: praise and criticism their importance, a correction what they say.

    With `async_mode` sync, the answer says what was written; without it, `data` has an empty list for each
    cube.
    """
    messages = await feedback_messages(scheduler, request)
    if request.async_mode == "async":
        await submit_new(scheduler, messages, spools=scheduler.runtime.settings.spool.submits)
        return answer([[] for _ in request.cubes])
    if not messages:
        return answer([Feedback(record={"add": [], "update": []}) for _ in request.cubes])
    applied = await _apply(scheduler, client, messages)
    if applied is None:
        return answer([[] for _ in request.cubes], "resolving")
    return answer([Feedback(record=record) for record in applied.records], applied.message)


async def add_feedback(scheduler: AsyncScheduler, client: Request, request: AddRequest) -> JSONResponse:
    """Take the last turn of the user in an `add` as feedback to what was said before it."""
    turns = [*(model.turn() for model in request.chat_history or ()), *request.turns]
    spoken = [number for number, turn in enumerate(turns) if turn.role == "user" and turn.content.strip()]
    if not spoken:
        raise InvalidMessageError("messages", request.messages, "is_feedback needs words of the user")
    words = turns[spoken[-1]].content
    messages = await _messages(
        scheduler,
        FeedbackInput(feedback_content=words, history=tuple(turns[: spoken[-1]][-HISTORY:])),
        request.cubes,
        request.item_id,
        user_id=request.user_id,
        session_id=request.session_id or DEFAULT_SESSION,
        task_id=request.task_id,
        info=request.full_info,
    )
    if not request.waits:
        spools = scheduler.runtime.settings.spool.submits
        receipts = await submit_new(scheduler, messages, spools=spools)
        pairs = zip(messages, receipts, strict=True)
        return answer([_entry(message, words, receipt.status) for message, receipt in pairs])
    applied = await _apply(scheduler, client, messages)
    if applied is None:
        return answer([_entry(message, words, "resolving") for message in messages])
    written = [
        _entry(message, text, "activated")
        for message, record in zip(messages, applied.records, strict=True)
        for text in dict.fromkeys(one["text"] for one in (*record["add"], *record["update"]))
    ]
    return answer(written, applied.message)


async def feedback_messages(scheduler: AsyncScheduler, request: FeedbackRequest) -> list[Message]:
    """One message for each cube, about memories that the caller may read; none if there is no feedback."""
    if request.feedback_content is None or not request.feedback_content.strip():
        return []
    given = FeedbackInput(
        feedback_content=request.feedback_content,
        history=tuple(model.turn() for model in (request.history or ())[-HISTORY:]),
        retrieved_memory_ids=tuple(request.retrieved_memory_ids or ()),
        feedback_time=request.feedback_time,
        corrected_answer=request.corrected_answer,
    )
    return await _messages(
        scheduler,
        given,
        request.cubes,
        request.item_id,
        user_id=request.user_id,
        session_id=request.session_id or DEFAULT_SESSION,
        task_id=request.task_id,
        info=request.info,
    )


async def _messages(
    scheduler: AsyncScheduler,
    given: FeedbackInput,
    cubes: Sequence[str],
    item_id: str | None,
    **fields: Any,
) -> list[Message]:
    if item_id and len(cubes) > 1:
        raise InvalidMessageError("item_id", item_id, "can be given for one cube only")
    try:
        content = msgspec.json.encode(given).decode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError("history", "…", "is not valid Unicode text") from error
    messages = [
        Message(mem_cube_id=cube, label=LABEL, content=content, item_id=item_id or new_item_id(), **fields)
        for cube in cubes
    ]
    return await governed_feedback(scheduler, messages)


class _Applied(NamedTuple):
    """What feedback has written in each cube, and a sentence about it."""

    records: list[FeedbackRecord]
    message: str


async def _apply(scheduler: AsyncScheduler, client: Request, messages: Sequence[Message]) -> _Applied | None:
    """Submit feedback, and wait until it has changed memories; None if that takes too long."""
    await check_worker(scheduler, LABEL)
    waiting = Waiting(scheduler, client)
    await submit_new(scheduler, messages)
    ended = await waiting.settled(messages)
    if len(ended) < len(messages):
        return None
    records = [await record_of(scheduler, message) for message in messages]
    failed = [item for item in ended.values() if item.status is not Status.COMPLETED]
    return _Applied(records, f"the feedback has {failed[0].status}: {failed[0].error}" if failed else "ok")


def _entry(message: Message, text: str, status: str) -> Added:
    return {
        "memory": text,
        "memory_id": correction_id(message),
        "memory_type": "LongTermMemory",
        "cube_id": message.mem_cube_id,
        "item_id": message.item_id,
        "status": status,
    }


async def record_of(scheduler: AsyncScheduler, message: Message) -> FeedbackRecord:
    """What a feedback that has ended has written: a correction, and the memories that it supersedes."""
    reads, memory_id = scheduler.runtime.reads, correction_id(message)
    item = await reads.get(message.user_id, memory_id)
    if item is None:
        return {"add": [], "update": []}
    links = await reads.links(message.user_id, memory_id)
    wrong = [link.item for link in links if link.relation == "supersedes" and link.outgoing]
    if not wrong:
        return {"add": [{"id": item.id, "text": item.text}], "update": []}
    updates: list[UpdatedText] = [
        {"id": item.id, "text": item.text, "archived_id": old.id, "origin_memory": old.text} for old in wrong
    ]
    return {"add": [], "update": updates}


ROUTES = (
    Route(
        "POST",
        "/product/feedback",
        feedback,
        role=Role.USER,
        answer=list[list[Any] | Feedback],
        errors=(
            InvalidMessageError,
            ItemTakenError,
            QueueFullError,
            NotSupportedError,
            NoWorkerError,
            BackendUnavailableError,
        ),
        example=Example(
            body={
                "user_id": "ann",
                "history": [
                    {"role": "user", "content": "What do I like?"},
                    {"role": "assistant", "content": "You like green tea."},
                ],
                "feedback_content": "No, I like black tea",
                "retrieved_memory_ids": ["tea.0"],
            }
        ),
    ),
)
