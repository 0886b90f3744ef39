"""Webhooks, under `/admin/webhooks`: make, list, test and delete them."""

from __future__ import annotations

from typing import TypedDict

import msgspec
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.api.envelope import answer
from reverie.api.models import Cursor, PageLimit, Text
from reverie.api.routing import Example, Route
from reverie.errors import BackendUnavailableError, InvalidSelectionError, UnknownWebhookError
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role
from reverie.webhooks.records import Webhook

__all__ = ["ROUTES"]

EXAMPLE_ID = "wh_0123456789abcdef"


class WebhookRequest(BaseModel):
    """A webhook to make."""

    url: Text = Field(description="where events are sent by POST: https, or a host of webhooks.allowed_hosts")
    events: list[Text] = Field(description="such as memory.added and task.failed; docs/webhooks.md has all")
    name: Text = Field("", description="what people call the webhook")
    users: list[Text] | None = Field(None, description="only events of these users; null: of all")
    labels: list[Text] | None = Field(
        None, description="only events that come from messages of these labels; null: all events"
    )
    include_content: bool = Field(
        default=False, description="whether deliveries have texts of memories and errors of tasks, too"
    )


class CreatedWebhook(Webhook, frozen=True, kw_only=True):
    """A webhook that was just made."""

    secret: str
    """What deliveries are signed with. No other answer shows it."""


class WebhookPage(TypedDict):
    """A page of webhooks, by id."""

    webhooks: list[Webhook]
    next: str | None
    """The `cursor` of the next page; None on the last one."""


class DeletedWebhook(TypedDict):
    """A webhook that was deleted."""

    id: str


class TestedWebhook(TypedDict):
    """How a test delivery has ended."""

    id: str
    delivered: bool
    status: int | None
    """The HTTP status of the receiver; None if it has not answered."""
    problem: str | None
    """What went wrong; None if the receiver has accepted the delivery."""


async def create_webhook(scheduler: AsyncScheduler, request: WebhookRequest) -> JSONResponse:
    """Make a webhook. The answer has the secret of its signatures, which cannot be read again."""
    webhook, secret = await scheduler.webhooks.create(
        request.url,
        request.events,
        name=request.name,
        users=request.users,
        labels=request.labels,
        include_content=request.include_content,
    )
    return answer(CreatedWebhook(**msgspec.structs.asdict(webhook), secret=secret))


async def list_webhooks(
    scheduler: AsyncScheduler,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> JSONResponse:
    """The webhooks, by id, without their secrets."""
    found = await scheduler.webhooks.page(after=cursor or "", limit=limit)
    page: WebhookPage = {"webhooks": found, "next": found[-1].id if len(found) == limit else None}
    return answer(page)


async def get_webhook(scheduler: AsyncScheduler, webhook_id: str) -> JSONResponse:
    """One webhook, without its secret."""
    return answer(await scheduler.webhooks.get(webhook_id))


async def delete_webhook(scheduler: AsyncScheduler, webhook_id: str) -> JSONResponse:
    """Delete a webhook. What waits for it is not sent any more."""
    await scheduler.webhooks.delete(webhook_id)
    deleted: DeletedWebhook = {"id": webhook_id}
    return answer(deleted)


async def test_webhook(scheduler: AsyncScheduler, webhook_id: str) -> JSONResponse:
    """Send a `webhook.test` event now, once, and answer how that has ended."""
    posted = await scheduler.webhooks.test(webhook_id)
    tested: TestedWebhook = {
        "id": webhook_id,
        "delivered": posted.problem is None,
        "status": posted.status,
        "problem": posted.problem,
    }
    return answer(tested)


UNKNOWN = (UnknownWebhookError, BackendUnavailableError)
ONE = Example(path={"webhook_id": EXAMPLE_ID})

ROUTES = (
    Route(
        "POST",
        "/admin/webhooks",
        create_webhook,
        role=Role.ADMIN,
        reach="all",
        answer=CreatedWebhook,
        errors=(InvalidSelectionError, BackendUnavailableError),
        example=Example(body={"url": "https://example.org/reverie", "events": ["memory.added"]}),
    ),
    Route(
        "GET",
        "/admin/webhooks",
        list_webhooks,
        role=Role.ADMIN,
        reach="all",
        answer=WebhookPage,
        example=Example(query={"limit": 10}),
    ),
    Route(
        "GET",
        "/admin/webhooks/{webhook_id}",
        get_webhook,
        role=Role.ADMIN,
        reach="all",
        answer=Webhook,
        errors=UNKNOWN,
        example=ONE,
    ),
    Route(
        "DELETE",
        "/admin/webhooks/{webhook_id}",
        delete_webhook,
        role=Role.ADMIN,
        reach="all",
        answer=DeletedWebhook,
        errors=UNKNOWN,
        example=ONE,
    ),
    Route(
        "POST",
        "/admin/webhooks/{webhook_id}/test",
        test_webhook,
        role=Role.ADMIN,
        reach="all",
        answer=TestedWebhook,
        errors=UNKNOWN,
        example=ONE,
    ),
)
