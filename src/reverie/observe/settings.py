"""Settings of events, alerts and metrics."""

from __future__ import annotations

from pydantic import Field

from reverie.configuration.section import Section

__all__ = ["AlertSettings", "EventSettings"]


class EventSettings(Section):
    """What happens to messages, as it happens."""

    log: bool = Field(
        default=False, description="write each event as a line of JSON to the log `reverie.events`"
    )
    sample_s: float = Field(10.0, gt=0, description="seconds between two samples of how much waits, by label")
    samples_kept: int = Field(
        360, ge=2, le=1_000_000, description="samples that are remembered; the oldest are forgotten"
    )
    metric_labels: int = Field(
        100, ge=1, description="labels that metrics tell apart; all others are counted together as `other`"
    )


class AlertSettings(Section):
    """When someone should look, and who is told."""

    pending: int = Field(100, ge=0, description="messages that may wait; when there are more, a warning")
    failed: int = Field(
        10, ge=0, description="messages that may have failed for good; when there are more, an error"
    )
    oldest_pending_s: float = Field(
        300.0, gt=0, description="seconds that a message may wait; longer, and there is a warning"
    )
    stalled_s: float = Field(
        300.0,
        gt=0,
        description="seconds without a completion while work waits; longer, and there is an error",
    )
    trigger_late_s: float = Field(
        60.0,
        gt=0,
        description="seconds that a timed task may be due without running although a worker handles it; "
        "longer, and there is a warning",
    )
    check_s: float = Field(10.0, gt=0, description="seconds between two looks at the rules")
    webhook_url: str | None = Field(
        None, description="address that alerts are sent to by POST; https or loopback"
    )
    webhook_secret: str | None = Field(
        None,
        description="key that alerts are signed with (HMAC-SHA256), so that their receiver can trust them",
    )
    webhook_attempts: int = Field(5, ge=1, le=100, description="tries of one delivery before it is given up")
    webhook_timeout_s: float = Field(10.0, gt=0, le=3600, description="seconds that one try may take")
