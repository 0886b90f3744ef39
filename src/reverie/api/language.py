"""The language model: the routes that say what is extracted for a cube, and what the calls have cost."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.answers import UsageAndBudgets
from reverie.api.envelope import answer
from reverie.api.models import Cursor, Text
from reverie.api.routing import Example, Route, Touched
from reverie.errors import BackendUnavailableError, InvalidMessageError, InvalidSelectionError
from reverie.face.extraction import ExtractionInForce
from reverie.face.scheduler import AsyncScheduler
from reverie.memory.extraction import Extraction
from reverie.principal import Role

__all__ = ["ROUTES"]


class ExtractionRequest(BaseModel):
    """What to extract for a cube. Fields that are missing or null follow the settings."""

    user_id: Text
    mem_cube_id: Text = Field("", description="the cube; default: the user's own")
    mission: Text | None = Field(None, description="in one sentence: what the memories are for")
    categories: list[Text] | None = Field(
        None, description="the only categories that a fact may have, each of up to 60 characters; empty: any"
    )
    include: list[Text] | None = Field(None, description="what is worth remembering")
    exclude: list[Text] | None = Field(None, description="what must not be remembered")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="the JSON schema of an object that each fact carries in info"
    )

    def touched(self) -> list[Touched]:
        """The user and the cube."""
        return [Touched(self.user_id, (self.mem_cube_id,))]

    def extraction(self) -> Extraction:
        """The value that is set."""
        lists = {"categories": self.categories, "include": self.include, "exclude": self.exclude}
        given = {name: None if texts is None else tuple(texts) for name, texts in lists.items()}
        return Extraction(mission=self.mission, schema=self.schema_, **given)


async def get_extraction(scheduler: AsyncScheduler, user_id: str, mem_cube_id: str = "") -> JSONResponse:
    """Read what is extracted for a cube. `own` names the fields that were set for the cube itself."""
    return answer(await scheduler.extraction.in_force(user_id=user_id, mem_cube_id=mem_cube_id))


async def put_extraction(scheduler: AsyncScheduler, request: ExtractionRequest) -> JSONResponse:
    """Set what is extracted for a cube from now on, in place of all that was set for it before."""
    whose = {"user_id": request.user_id, "mem_cube_id": request.mem_cube_id}
    await scheduler.extraction.set(request.extraction(), **whose)
    return answer(await scheduler.extraction.in_force(**whose))


async def get_usage(
    scheduler: AsyncScheduler,
    *,
    user_id: str | None = None,
    mem_cube_id: str | None = None,
    days: Annotated[int, Query(ge=1, le=3650)] = 7,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> JSONResponse:
    """Read what the language model has cost by tenant, label and day, and the budgets spent today."""
    whose = {"user_id": user_id, "mem_cube_id": mem_cube_id}
    page = await scheduler.observe.usage_page(**whose, days=days, after=cursor, limit=limit)
    spent = await scheduler.observe.budgets_spent(**whose)
    return answer(UsageAndBudgets(usage=page.rows, budgets_spent=spent, next=page.next))


ROUTES = (
    Route(
        "GET",
        "/product/extraction",
        get_extraction,
        role=Role.READ_ONLY,
        answer=ExtractionInForce,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(query={"user_id": "ann"}),
    ),
    Route(
        "PUT",
        "/product/extraction",
        put_extraction,
        role=Role.USER,
        answer=ExtractionInForce,
        errors=(InvalidMessageError, BackendUnavailableError),
        example=Example(
            body={"user_id": "ann", "mission": "A diary of meals.", "categories": ["food", "drink"]}
        ),
    ),
    Route(
        "GET",
        "/product/usage",
        get_usage,
        role=Role.READ_ONLY,
        answer=UsageAndBudgets,
        errors=(InvalidMessageError, InvalidSelectionError, BackendUnavailableError),
        example=Example(query={"user_id": "ann", "days": 30}),
    ),
)
