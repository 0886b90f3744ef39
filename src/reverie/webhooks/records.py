"""Webhooks as records: who is told of which events."""

from __future__ import annotations

import base64
import re
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.backends.records import Dropped, Record
from reverie.base.logs import get_logger
from reverie.base.posting import ENCODED_SECRET
from reverie.errors import (
    BackendUnavailableError,
    IdempotencyError,
    InvalidSelectionError,
    UnknownWebhookError,
)
from reverie.message import SYSTEM_USER, current_ids
from reverie.webhooks.addresses import read_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.access.audit import Audit
    from reverie.backends.interface import QueueViews, Records
    from reverie.base.clock import Clock
    from reverie.webhooks.settings import WebhookSettings

__all__ = ["EVENTS", "LABEL", "TEST", "KeptWebhook", "NewWebhook", "Webhook", "Webhooks"]

log = get_logger(__name__)

LABEL = "webhook"
"""The label of deliveries. Their user is `_system`, and their cube is the id of the webhook."""
KIND = "webhook"
ID = re.compile(r"wh_[0-9a-f]{16}")
EVENTS = (
    "memory.added",
    "memory.updated",
    "memory.superseded",
    "memory.deleted",
    "task.completed",
    "task.failed",
    "budget.reached",
)
TEST = "webhook.test"
"""The event that tests a webhook."""
CACHE_S = 1.0
"""For how many seconds a process believes what it has read: it hears of a new webhook that much later."""
MOST_READ = 1000
"""The most webhooks that are read: the largest value of `webhooks.max_webhooks`."""
MOST_NAMED = 1000
"""The most users, and the most labels, that one webhook may name."""
LONGEST_NAME = 200
FULL = "its events are dropped until its receiver answers (webhooks.max_waiting)"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook without its secret."""

    id: str
    url: str
    events: tuple[str, ...]
    name: str = ""
    """What people call the webhook."""
    users: tuple[str, ...] | None = None
    """Only events of these users; None: of all."""
    labels: tuple[str, ...] | None = None
    """Only events that come from messages of these labels; None: all events."""
    include_content: bool = False
    """Whether a delivery has the texts of memories and the errors of tasks, not only their ids."""
    created_at: int

    def wants(self, event: str, user_id: str, label: str | None) -> bool:
        """Whether the webhook is told of an event; `label` is None if the event comes from no message."""
        return (
            event in self.events
            and (self.users is None or user_id in self.users)
            and (self.labels is None or label in self.labels)
        )


class KeptWebhook(Webhook, frozen=True, kw_only=True):
    """A webhook as its record keeps it."""

    secret: str
    """What deliveries are signed with. Only the answer to its creation shows it."""


class NewWebhook(NamedTuple):
    """A webhook that was just made, with its secret, which cannot be read again."""

    webhook: Webhook
    secret: str


class Webhooks:
    """The webhooks of one queue, as one process sees them."""

    def __init__(
        self, records: Records, views: QueueViews, audit: Audit, clock: Clock, settings: WebhookSettings
    ) -> None:
        self._records = records
        self._views = views
        self._audit = audit
        self._clock = clock
        self._settings = settings
        self._cached: tuple[Webhook, ...] = ()
        self._read_at: float | None = None
        self._changes = 0
        """How often this process has made or removed a webhook."""
        self.full: frozenset[str] = frozenset()
        """The webhooks for which so many deliveries wait that further events are dropped."""

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
        """Make a webhook. Other processes hear of it within `CACHE_S` seconds.

        A request that is repeated gets the webhook that it has made, as long as there is this webhook.
        """
        ids = current_ids.get()
        derived = None if ids is None else ids.next()
        webhook = Webhook(
            id=f"wh_{secrets.token_hex(8) if derived is None else derived.replace('-', '')[:16]}",
            url=url,
            events=tuple(dict.fromkeys(events)),
            name=name,
            users=None if users is None else tuple(dict.fromkeys(users)),
            labels=None if labels is None else tuple(dict.fromkeys(labels)),
            include_content=include_content,
            created_at=self._clock.now(),
        )
        _check(webhook)
        read_target(url, self._settings.allowed_hosts)
        if derived is not None and (made := await self._made(webhook)) is not None:
            return made
        most = self._settings.max_webhooks
        if len(await self._records.page(KIND, limit=most + 1)) >= most:
            reason = f"there are {most} webhooks already (webhooks.max_webhooks): delete one first"
            raise InvalidSelectionError(reason)
        secret = ENCODED_SECRET + base64.b64encode(secrets.token_bytes(32)).decode()
        kept = KeptWebhook(**msgspec.structs.asdict(webhook), secret=secret)
        record = Record(kind=KIND, id=webhook.id, value=msgspec.to_builtins(kept))
        await self._records.change([record], [self._audit.entry("webhook.create", webhook.id)])
        self._forget()
        return NewWebhook(webhook, secret)

    async def _made(self, webhook: Webhook) -> NewWebhook | None:
        """The webhook that the same request has made before; `IdempotencyError` if it was another request."""
        record = await self._records.get(KIND, webhook.id)
        if record is None:
            return None
        known = _shown(record)
        if known != msgspec.structs.replace(webhook, created_at=known.created_at):
            raise IdempotencyError
        return NewWebhook(known, msgspec.convert(record.value, KeptWebhook).secret)

    async def page(self, *, after: str = "", limit: int = 100) -> list[Webhook]:
        """The webhooks after the id `after`, by id."""
        return [_shown(record) for record in await self._records.page(KIND, after=after, limit=limit)]

    async def get(self, webhook_id: str) -> Webhook:
        """One webhook; `UnknownWebhookError` if there is none."""
        return _shown(await self._record(webhook_id))

    async def kept(self, webhook_id: str) -> KeptWebhook:
        """One webhook with its secret; `UnknownWebhookError` if there is none."""
        return msgspec.convert((await self._record(webhook_id)).value, KeptWebhook)

    async def delete(self, webhook_id: str) -> None:
        """Remove a webhook. Its deliveries that wait are cancelled when their turn comes."""
        await self._record(webhook_id)
        await self._records.change(
            [Dropped(kind=KIND, id=webhook_id)], [self._audit.entry("webhook.delete", webhook_id)]
        )
        self._forget()

    def _forget(self) -> None:
        self._read_at = None
        self._changes += 1

    async def current(self) -> tuple[Webhook, ...]:
        """All webhooks, as they were at most `CACHE_S` seconds ago. Costs nothing while this is known."""
        now, changes = time.monotonic(), self._changes
        if self._read_at is None or now - self._read_at >= CACHE_S:
            try:
                await self._read()
            except BackendUnavailableError:
                if self._read_at is None:
                    raise
            else:
                self._read_at = now if changes == self._changes else None
        return self._cached

    async def _read(self) -> None:
        self._cached = tuple(await self.page(limit=MOST_READ))
        lanes = await self._views.lanes(SYSTEM_USER) if self._cached else ()
        most = self._settings.max_waiting
        full = frozenset(
            one.lane.mem_cube_id for one in lanes if one.lane.label == LABEL and one.waiting >= most
        )
        for webhook_id in full - self.full:
            log.warning("webhook.full", webhook=webhook_id, waiting=most, hint=FULL)
        self.full = full

    async def _record(self, webhook_id: str) -> Record:
        record = await self._records.get(KIND, webhook_id) if ID.fullmatch(webhook_id) else None
        if record is None:
            raise UnknownWebhookError(webhook_id)
        return record


def _shown(record: Record) -> Webhook:
    return msgspec.convert(record.value, Webhook)


def _check(webhook: Webhook) -> None:
    """Refuse a webhook that cannot mean what its maker wants."""
    if not webhook.events:
        raise InvalidSelectionError(f"events: name at least one of {', '.join(EVENTS)}")
    for event in webhook.events:
        if event not in EVENTS:
            raise InvalidSelectionError(f"events: {event!r} is none of {', '.join(EVENTS)}")
    if len(webhook.name) > LONGEST_NAME:
        raise InvalidSelectionError(f"name={webhook.name!r}: must have at most {LONGEST_NAME} characters")
    for what, names in (("users", webhook.users), ("labels", webhook.labels)):
        if names is not None and not 1 <= len(names) <= MOST_NAMED:
            raise InvalidSelectionError(f"{what}: name 1 to {MOST_NAMED}, or leave it out for all")
        if names and not all(names):
            raise InvalidSelectionError(f"{what}: names are not empty")
