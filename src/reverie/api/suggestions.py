"""Suggestions: questions that a user may want to ask next."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import JSONResponse

from reverie.api.answers import Suggestions
from reverie.api.asking import MODEL_FAILURES, ask_for_json, in_lines, one_line, prompt_of, reason_of
from reverie.api.chat_models import SuggestionsRequest
from reverie.api.envelope import answer
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.errors import BackendUnavailableError, InvalidMessageError, NotSupportedError
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role
from reverie.turn import Turn

__all__ = ["ROUTES"]

SUGGESTED = 3
"""How many questions are suggested."""
SEEN = 20
"""How many of the newest memories they are about."""
LABEL = "suggestions"
"""Under which label the ledger has the costs."""
TITLE = 60
"""How many characters of a memory a suggestion without a model has."""
LANGUAGES = {"en": "English", "zh": "Chinese"}
SIMPLE = {"en": 'Tell me more about "{text}"', "zh": "再说说“{text}”"}
"""Suggestions without a model."""
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "minItems": 1,
            "maxItems": SUGGESTED,
        }
    },
    "required": ["query"],
}


async def suggestions(
    scheduler: AsyncScheduler, client: Request, request: SuggestionsRequest
) -> JSONResponse:
    """Suggest questions that a user may want to ask next, by the newest memories of a cube.

    A language model words them; without one they are simple.
    """
    return await unless_gone(client, _suggestions(scheduler, request))


async def _suggestions(scheduler: AsyncScheduler, request: SuggestionsRequest) -> JSONResponse:
    page = await scheduler.memory.page(
        user_id=request.user_id, mem_cube_id=request.mem_cube_id, newest_first=True, limit=SEEN
    )
    texts = list(dict.fromkeys(one_line(item.text) for item in page.items))
    said, message = _said(request), "ok"
    if scheduler.runtime.gateway.has_model and (texts or said):
        within_s = scheduler.runtime.settings.server.sync_timeout_s
        prompt = prompt_of(
            "suggest",
            language=LANGUAGES[request.language],
            memories="\n".join(f"- {text}" for text in texts) or "none",
            history=in_lines(said[-SUGGESTED:]),
        )
        tenant = (request.user_id, request.mem_cube_id)
        try:
            found = await ask_for_json(
                scheduler, prompt, SCHEMA, tenant=tenant, label=LABEL, within_s=within_s
            )
            return answer(Suggestions(query=found["query"]))
        except MODEL_FAILURES as error:
            message = f"these are simple suggestions: {reason_of(error, within_s)}"
    simple = [SIMPLE[request.language].format(text=_short(text)) for text in texts[:SUGGESTED]]
    return answer(Suggestions(query=simple), message)


def _said(request: SuggestionsRequest) -> list[Turn]:
    if isinstance(request.message, list):
        return [model.turn() for model in request.message]
    return [Turn(content=request.message)] if request.message else []


def _short(text: str) -> str:
    return text if len(text) <= TITLE else f"{text[: TITLE - 1].rstrip()}…"


ROUTES = (
    Route(
        "POST",
        "/product/suggestions",
        suggestions,
        role=Role.READ_ONLY,
        answer=Suggestions,
        errors=(InvalidMessageError, NotSupportedError, BackendUnavailableError),
        example=Example(body={"user_id": "ann", "mem_cube_id": "ann", "language": "en"}),
    ),
)
