"""`scheduler.webhooks`: who is told of which events, in an async and a blocking form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.bridge import Bridge, blocking
from reverie.errors import InvalidSelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.base.posting import Posted
    from reverie.runtime import Runtime
    from reverie.webhooks.records import NewWebhook, Webhook

__all__ = ["AsyncWebhooks", "Webhooks"]

MOST_LISTED = 1000
"""The most webhooks on one page."""


class AsyncWebhooks:
    """Makes, lists, tests and deletes webhooks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create(
        self,
        url: str,
        events: Sequence[str],
        *,
        name: str = "",
        users: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        include_content: bool = False,
    ) -> NewWebhook:
        """Make a webhook; `secret` of the answer is what deliveries are signed with, and is shown only here.

        It is told of `events`, only of these `users` and from messages of these `labels` if they are given.
        With `include_content`, a delivery has texts of memories and errors of tasks, too. `docs/webhooks.md`
        explains all of it.
        """
        await self._runtime.open()
        return await self._runtime.webhooks.create(
            url, events, name=name, users=users, labels=labels, include_content=include_content
        )

    async def page(self, *, after: str = "", limit: int = 100) -> list[Webhook]:
        """The webhooks after the id `after`, by id, without their secrets."""
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidSelectionError(f"limit={limit}: must be 1 to {MOST_LISTED}")
        await self._runtime.open()
        return await self._runtime.webhooks.page(after=after, limit=limit)

    async def get(self, webhook_id: str) -> Webhook:
        """One webhook without its secret; `UnknownWebhookError` if there is none."""
        await self._runtime.open()
        return await self._runtime.webhooks.get(webhook_id)

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook. What waits for it is not sent any more."""
        await self._runtime.open()
        await self._runtime.webhooks.delete(webhook_id)

    async def test(self, webhook_id: str) -> Posted:
        """Send a `webhook.test` event now, once; `problem` of the answer is None if it was accepted."""
        await self._runtime.open()
        return await self._runtime.deliveries.test(webhook_id)


class Webhooks:
    """`AsyncWebhooks` for code that blocks."""

    def __init__(self, inner: AsyncWebhooks, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    create = blocking(AsyncWebhooks.create)
    page = blocking(AsyncWebhooks.page)
    get = blocking(AsyncWebhooks.get)
    delete = blocking(AsyncWebhooks.delete)
    test = blocking(AsyncWebhooks.test)
