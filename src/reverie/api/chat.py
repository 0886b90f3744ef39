"""Talking with the language model, which knows what is remembered."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.adding import submit_new
from reverie.api.answers import ChatAnswer, ChatFrame
from reverie.api.asking import MODEL_FAILURES, one_line, prompt_of, reason_of
from reverie.api.chat_models import ChatRequest
from reverie.api.envelope import answer, words_of
from reverie.api.product import find
from reverie.api.routing import Example, Route
from reverie.api.streams import EventStream, unless_gone
from reverie.api.thinking import Thinking
from reverie.base.logs import get_logger
from reverie.capture.intake import add_message
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    ModelFailedError,
    NotSupportedError,
    ReverieError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.failures import BudgetError
from reverie.message import new_item_id
from reverie.models.interface import ChatMessage, ModelMissingError
from reverie.models.openai_chat import model_name
from reverie.models.tokens import tokens_in
from reverie.principal import Role
from reverie.turn import DEFAULT_SESSION, Turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reverie.memory.query import Found, Hit
    from reverie.models.interface import AnswerPart
    from reverie.settings import Settings

__all__ = ["ROUTES", "Talk", "talk"]

log = get_logger(__name__)

LABEL = "chat"
"""Under which label the ledger has the costs."""
ALWAYS = 3
"""How many of the best memories the model sees, whatever their scores."""
ROLES = frozenset({"system", "user", "assistant"})
"""The roles of turns in `history` that the model sees."""
PLACE = "{memories}"
"""Where memories stand in the system prompt of a client."""


class Talk(NamedTuple):
    """A whole answer of the model."""

    response: str
    reasoning: str
    not_kept: str | None
    """Why question and answer are not remembered; None if they are, or need not be."""


async def chat_complete(scheduler: AsyncScheduler, client: Request, request: ChatRequest) -> JSONResponse:
    """Answer a question with the language model, which sees the memories that fit it.

    Question and answer are remembered, unless `add_message_on_answer` is false.
    """
    done = await unless_gone(client, talk(scheduler, request))
    data: ChatAnswer = {"response": done.response, "reasoning": done.reasoning or None}
    return answer(data, "ok" if done.not_kept is None else f"answered, but not remembered: {done.not_kept}")


async def chat_stream(scheduler: AsyncScheduler, client: Request, request: ChatRequest) -> EventStream:
    """Answer a question part by part, as server-sent events.

    An event is `{"type": "reasoning" | "text", "data"}`; if the answer breaks off, the last one is
    `{"type": "error", "content"}`.
    """
    parts = _answer(scheduler, request)
    first = await anext(parts)  # an error is answered with its status, because no stream has begun yet
    return EventStream(client, _frames(scheduler, request, first, parts))


async def talk(scheduler: AsyncScheduler, request: ChatRequest) -> Talk:
    """Answer a question, and remember question and answer if asked."""
    response, reasoning = "", ""
    async with aclosing(_answer(scheduler, request)) as parts:
        async for part in parts:
            response += part.text
            reasoning += part.reasoning
    return Talk(response, reasoning, await _keep(scheduler, request, response))


async def _frames(
    scheduler: AsyncScheduler, request: ChatRequest, first: AnswerPart, parts: AsyncGenerator[AnswerPart]
) -> AsyncGenerator[dict[str, Any]]:
    response = first.text
    async with aclosing(parts):
        yield _frame(first)
        try:
            async for part in parts:
                response += part.text
                yield _frame(part)
        except ReverieError as error:
            yield {"type": "error", "content": str(error)}
            return
    await _keep(scheduler, request, response)


def _frame(part: AnswerPart) -> dict[str, Any]:
    if part.reasoning:
        return {"type": "reasoning", "data": part.reasoning}
    return {"type": "text", "data": part.text}


async def _answer(scheduler: AsyncScheduler, request: ChatRequest) -> AsyncGenerator[AnswerPart]:
    """The parts of an answer; `ModelFailedError` or `BudgetError` if the model gives none, or breaks off."""
    runtime = scheduler.runtime
    if not runtime.gateway.has_model:
        raise ModelMissingError("language model", "llm.preset")
    _check_model(request, runtime.settings)
    found = await find(scheduler, request.search)
    cubes = request.search.cubes
    thinking = Thinking()
    try:
        async with aclosing(
            runtime.gateway.converse(
                _prompt(request, found, runtime.settings),
                request.sampling,
                tenant=(request.user_id, cubes[0] if cubes else request.user_id),
                label=LABEL,
                key=new_item_id(),
            )
        ) as parts:
            async for part in parts:
                for known in thinking.take(part):
                    yield known
    except BudgetError:
        raise
    except MODEL_FAILURES as error:
        retry_after: float | None = getattr(error, "retry_after", None)
        raise ModelFailedError(reason_of(error, runtime.settings.llm.timeout_s), retry_after) from error
    for known in thinking.end():
        yield known


def _check_model(request: ChatRequest, settings: Settings) -> None:
    known = model_name(settings.llm)
    if request.model_name_or_path and known and request.model_name_or_path != known:
        raise InvalidMessageError(
            "model_name_or_path", request.model_name_or_path, f"is not known: leave it out, or give {known!r}"
        )


def _prompt(request: ChatRequest, found: Found, settings: Settings) -> list[ChatMessage]:
    """The system prompt with the memories, as much of the history as fits, and the question."""
    room = settings.llm.window_tokens - settings.llm.max_output_tokens - tokens_in(request.query)
    system = request.system_prompt or prompt_of("chat").strip()
    room -= tokens_in(system)
    memories = _memories(request, found, room // 2)
    room -= tokens_in(memories)
    if PLACE in system:
        system = system.replace(PLACE, memories)
    elif memories:
        system = f"{system}\n\n{memories}"
    history: list[ChatMessage] = []
    for turn in reversed(request.history or []):
        room -= tokens_in(turn.content)
        if room < 0:
            break
        if turn.role in ROLES and turn.content.strip():
            history.append(ChatMessage(turn.role, turn.content))
    return [ChatMessage("system", system), *reversed(history), ChatMessage("user", request.query)]


def _memories(request: ChatRequest, found: Found, room: int) -> str:
    """The memories and preferences for the prompt, the best first, as many as there is room for."""
    least = request.threshold or 0
    hits = [hit for place, hit in enumerate(found.hits) if place < ALWAYS or hit.score >= least]
    parts = []
    for title, some in (("Preferences:", found.preferences), ("Memories:", hits)):
        lines = [title]
        for hit in some:
            line = _line(hit)
            room -= tokens_in(line)
            if room < 0:
                break
            lines.append(line)
        if len(lines) > 1:
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(hit: Hit) -> str:
    source = hit.sources[0] if hit.sources else None
    speaker = (source.name or source.role) if source is not None and hit.item.kind == "turn" else None
    return f"- {speaker}: {one_line(hit.text)}" if speaker else f"- {one_line(hit.text)}"


async def _keep(scheduler: AsyncScheduler, request: ChatRequest, response: str) -> str | None:
    """Let question and answer be remembered; the answer is why that failed, or None."""
    if not request.add_message_on_answer or not response.strip():
        return None
    turns: Sequence[Turn] = [Turn(content=request.query), Turn(content=response, role="assistant")]
    messages = [
        add_message(
            turns,
            user_id=request.user_id,
            mem_cube_id=cube,
            item_id=new_item_id(),
            session_id=request.session_id or DEFAULT_SESSION,
        )
        for cube in request.cubes
    ]
    try:
        await submit_new(scheduler, messages, spools=scheduler.runtime.settings.spool.submits)
    except ReverieError as error:  # the answer has cost money, and is given all the same
        log.warning("chat.not_kept", kind=type(error).__name__)  # its words may be those of the user
        return words_of(error)
    return None


ERRORS = (
    InvalidMessageError,
    NotSupportedError,
    BudgetError,
    ModelFailedError,
    ModelMissingError,
    BackendUnavailableError,
)
EXAMPLE = Example(body={"user_id": "ann", "query": "What do I like to drink?"})

ROUTES = (
    Route(
        "POST",
        "/product/chat/complete",
        chat_complete,
        role=Role.USER,
        answer=ChatAnswer,
        errors=ERRORS,
        example=EXAMPLE,
    ),
    Route(
        "POST",
        "/product/chat/stream",
        chat_stream,
        role=Role.USER,
        answer=ChatFrame,
        errors=ERRORS,
        plain=True,
        media_type="text/event-stream",
        example=EXAMPLE,
    ),
)
