"""Settings of what is seen: events, alerts, metrics."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr

__all__ = ["AlertSettings", "EventSettings"]


class EventSettings(BaseModel):
    """What happens to messages, as it happens."""

    model_config = ConfigDict(extra="forbid")

    log: bool = Field(
        default=False, description="write each event as a line of JSON to the log `reverie.events`"
    )
    sample_s: float = Field(10.0, gt=0, description="seconds between two samples of how much waits, by label")
    samples_kept: int = Field(360, ge=2, description="samples that are remembered; the oldest are forgotten")
    metric_labels: int = Field(
        100, ge=1, description="labels that metrics tell apart; all others are counted together as `other`"
    )


class AlertSettings(BaseModel):
    """When someone should look, and who is told."""

    model_config = ConfigDict(extra="forbid")

    pending: int = Field(100, ge=0, description="warn when more messages than this wait")
    failed: int = Field(10, ge=0, description="report an error when there are more dead letters than this")
    oldest_pending_s: float = Field(300.0, gt=0, description="warn when a message has waited this long")
    stalled_s: float = Field(
        300.0, gt=0, description="report an error when work waits and none has been completed for this long"
    )
    check_s: float = Field(10.0, gt=0, description="seconds between two looks at the rules")
    webhook_url: str | None = Field(
        None, description="address that alerts are sent to by POST; https or loopback"
    )
    webhook_secret: SecretStr | None = Field(
        None,
        description="key that alerts are signed with (HMAC-SHA256), so that their receiver can trust them",
    )
    webhook_attempts: int = Field(5, ge=1, description="how often one delivery is tried")
    webhook_timeout_s: float = Field(10.0, gt=0, description="seconds that one try may take")
