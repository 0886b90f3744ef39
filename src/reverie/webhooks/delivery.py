"""Delivery: the handler of the label `webhook`. It sends one event to one webhook."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.views import StatusQuery
from reverie.base.escapes import escape_json
from reverie.base.logs import get_logger
from reverie.base.posting import Posted, post
from reverie.base.threads import ThreadPool
from reverie.errors import InvalidSelectionError, UnknownWebhookError
from reverie.failures import without_traceback
from reverie.message import SYSTEM_USER, new_item_id
from reverie.observe.alert import Alert
from reverie.observe.rules import WEBHOOK_FAILING
from reverie.outcome import Bury, Cancel, Done, Retry, Snooze
from reverie.webhooks.addresses import ForbiddenAddressError, UnknownHostError, read_target
from reverie.webhooks.notices import Notice
from reverie.webhooks.records import TEST

if TYPE_CHECKING:
    from reverie.backends.interface import QueueViews
    from reverie.base.clock import Clock
    from reverie.memory.interface import MemoryStore
    from reverie.message import Message
    from reverie.webhooks.notices import Change
    from reverie.webhooks.records import KeptWebhook, Webhooks
    from reverie.webhooks.settings import WebhookSettings

__all__ = ["AT_ONCE", "Deliveries"]

log = get_logger(__name__)

AT_ONCE = 16
"""Deliveries that one process makes at once. Those of one webhook are made one after the other."""
LOOK_AGAIN_S = 0.2
"""Seconds until a delivery looks again for the change that it tells of."""
LONGEST_ERROR = 2000
"""Characters of an error that a delivery has with `include_content`."""
LONGEST_TEXT = 10_000
"""Characters of each memory that a delivery has with `include_content`."""
LONGEST_RETRY_AFTER_S = 3600.0
"""The longest pause that a receiver can ask for."""
GONE = 410


class Deliveries:
    """Delivers events, and knows which webhooks fail."""

    def __init__(
        self,
        webhooks: Webhooks,
        store: MemoryStore,
        views: QueueViews,
        clock: Clock,
        settings: WebhookSettings,
    ) -> None:
        self._webhooks = webhooks
        self._store = store
        self._views = views
        self._clock = clock
        self._settings = settings
        self._threads = ThreadPool(AT_ONCE, "reverie-webhook")
        self._failing: dict[str, tuple[int, str]] = {}
        """Webhook id → since when all tries have failed, and why the last one has."""
        self.handler = self.deliver
        """Always the same object, by which the registry knows the built-in handler."""

    async def deliver(self, message: Message) -> Done:
        """Send the event of a message to its webhook, or raise the outcome that says why not."""
        if message.user_id != SYSTEM_USER:
            raise Bury("messages of this label are made by Reverie alone")
        webhook_id = message.mem_cube_id
        try:
            webhook = await self._webhooks.kept(webhook_id)
        except UnknownWebhookError as error:
            self._failing.pop(webhook_id, None)
            raise Cancel(str(error)) from error
        notice = msgspec.json.decode(message.content, type=Notice)
        if notice.change is not None:
            await self._see(notice.data["user_id"], notice.change)
        data = notice.data
        if webhook.include_content:
            data = data | await self._content(notice)
        body = _body(message.item_id, notice.type, notice.at, data)
        posted = await self.post(webhook, message.item_id, body)
        if posted.problem is None:
            self._failing.pop(webhook_id, None)
            return Done()
        since, _ = self._failing.get(webhook_id, (self._clock.now(), ""))
        self._failing[webhook_id] = (since, posted.problem)
        log.warning("webhook.failed", webhook=webhook_id, attempt=message.attempts + 1, error=posted.problem)
        reason = f"the webhook {webhook_id} was not delivered: {posted.problem}"
        if posted.status == GONE:
            raise Bury(reason)
        after = posted.retry_after_s
        raise Retry(after=None if after is None else min(after, LONGEST_RETRY_AFTER_S), reason=reason)

    async def test(self, webhook_id: str) -> Posted:
        """Send a `webhook.test` event now, once; the answer says how it has ended."""
        webhook = await self._webhooks.kept(webhook_id)
        delivery_id = new_item_id()
        body = _body(delivery_id, TEST, self._clock.now(), {"webhook_id": webhook_id})
        try:
            return await self.post(webhook, delivery_id, body)
        except Bury as refused:
            return Posted(refused.reason)

    async def post(self, webhook: KeptWebhook, delivery_id: str, body: bytes) -> Posted:
        """Make one request, to addresses that were checked just now. `Bury` if it must not be made."""
        timeout_s = self._settings.timeout_s
        try:
            target = read_target(webhook.url, self._settings.allowed_hosts)
            async with asyncio.timeout(timeout_s):
                addresses = await target.resolve()
        except (InvalidSelectionError, ForbiddenAddressError) as error:
            raise Bury(f"the webhook {webhook.id} must not be sent: {error}") from error
        except UnknownHostError as error:
            return Posted(str(error))
        except TimeoutError:
            return Posted(f"its host was not resolved within {timeout_s:g} s")
        send = partial(
            post,
            target.url,
            body,
            delivery_id=delivery_id,
            secret=webhook.secret,
            timeout_s=timeout_s,
            addresses=addresses,
        )
        return await asyncio.wrap_future(self._threads.submit(send))

    def alerts(self) -> list[Alert]:
        """The alerts about webhooks that this process has not reached for long."""
        now = self._clock.now()
        return [
            Alert(
                rule=WEBHOOK_FAILING,
                level="warning",
                subject=webhook_id,
                message=f"the webhook {webhook_id} has failed for {(now - since) / 1000:.0f} s: {problem}",
                remedy=f"repair its receiver, or type `reverie webhooks delete {webhook_id}`; `reverie dead "
                "requeue --label webhook --all` sends again what was given up",
            )
            for webhook_id, (since, problem) in sorted(self._failing.items())
            if now - since >= self._settings.alert_after_s * 1000
        ]

    def close(self) -> None:
        """End the threads when their requests have ended. Deliveries may be made again afterwards."""
        self._threads.close()

    async def _see(self, user_id: str, change: Change) -> None:
        """Go on when a person's change can be seen; raise the outcome of a delivery without a change."""
        if await self._store.is_deleted(user_id, change.memory_id):
            return
        item = await self._store.get(user_id, change.memory_id)
        if item is not None and item.version > change.version:
            return
        if self._clock.now() < change.until:
            raise Snooze(LOOK_AGAIN_S, "the change is not made yet")
        raise Cancel("the change was not made")

    async def _content(self, notice: Notice) -> dict[str, Any]:
        """The texts and errors that an event is about, as they are now; nothing of what was deleted since."""
        data = notice.data
        if ids := data.get("memory_ids"):
            tenant = (data["user_id"], data["mem_cube_id"])
            items = await self._store.items(tenant, [*ids, *data.get("successors", ())])
            return {
                "memories": [
                    {"id": item.id, "kind": item.kind, "text": item.text[:LONGEST_TEXT]} for item in items
                ]
            }
        if notice.type == "task.failed":
            query = StatusQuery(user_id=data["user_id"], item_id=data["item_id"])
            rows = (await self._views.read(query)).rows
            return {"error": without_traceback(rows[0].error or "")[-LONGEST_ERROR:] if rows else ""}
        return {}


def _body(delivery_id: str, event: str, at: int, data: dict[str, Any]) -> bytes:
    body = {"id": delivery_id, "type": event, "at": at, "data": data}
    return escape_json(msgspec.json.encode(body))
