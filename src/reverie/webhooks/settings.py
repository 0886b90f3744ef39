"""Settings of outgoing webhooks."""

from __future__ import annotations

from pydantic import Field

from reverie.configuration.section import Section

__all__ = ["WebhookSettings"]


class WebhookSettings(Section):
    """Requests that tell programs outside of events."""

    allowed_hosts: list[str] = Field(
        [],
        description="hosts, as they are written in the address of a webhook, that may be private, loopback "
        "or without TLS; all others must be public and https",
    )
    max_webhooks: int = Field(
        20, ge=0, le=1000, description="webhooks of this queue; a further one is refused"
    )
    attempts: int = Field(10, ge=1, le=100, description="tries of one delivery before it is a dead letter")
    backoff_s: float = Field(
        2.0, gt=0, description="seconds before the second try; the pause doubles up to worker.max_backoff_s"
    )
    timeout_s: float = Field(10.0, gt=0, le=300, description="seconds that one try may take")
    max_waiting: int = Field(
        10_000,
        ge=1,
        description="deliveries of one webhook that may wait; while there are more, its events are dropped",
    )
    alert_after_s: float = Field(
        300.0, gt=0, description="seconds that a webhook may fail before there is an alert"
    )
