"""The settings of a worker and of its labels. Every number with a unit has the unit in its name."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, model_validator

from reverie.configuration.section import Section

__all__ = ["LabelSettings", "WorkerSettings"]


class LabelSettings(Section):
    """How the messages of one label are run; what is not set follows the handler, then the worker."""

    level: int | None = Field(None, ge=1, le=3, description="1 at once, 2 soon, 3 in the background")
    ordered: bool | None = Field(None, description="whether a lane runs one after the other; default true")
    cpu: bool | None = Field(
        None, description="whether it runs in processes that can be killed; default false"
    )
    place: str | None = Field(
        None,
        min_length=1,
        description="where it runs: loop, thread, process, or module:factory of a place of yours; default: "
        "by the kind of function",
    )
    concurrency: int | None = Field(None, ge=1, description="handler calls at once in one worker")
    batch: int | None = Field(None, ge=1, description="messages in one call of a batch handler")
    timeout_s: float | None = Field(None, gt=0, description="seconds that one handler call may take")
    max_attempts: int | None = Field(None, ge=1, description="runs in all before a message is buried")
    backoff_s: float | None = Field(
        None, gt=0, description="seconds of the first backoff; it doubles each time"
    )
    max_backoff_s: float | None = Field(None, gt=0, description="seconds that a backoff is at most")
    min_idle_ms: int | None = Field(
        None,
        ge=0,
        description="least milliseconds between the end of a run of a lane and the next run; with it, a run "
        "of a lane is one message",
    )
    credential: str | None = Field(
        None, min_length=1, description="name of the credential it uses; labels are paused by it"
    )
    role: Literal["user", "service", "admin"] | None = Field(
        None, description="the weakest role whose API keys may submit it; default user"
    )

    @model_validator(mode="after")
    def check_place(self) -> LabelSettings:
        """Refuse two settings for the place of a handler."""
        if self.cpu is not None and self.place is not None:
            raise ValueError("cpu and place both say where it runs: give place only (for cpu: process)")
        return self


class WorkerSettings(Section):
    """What holds for every label that says nothing else."""

    lease_s: float = Field(30, gt=0, description="seconds that a claim holds without renewal")
    renew_s: float = Field(10, gt=0, description="seconds between two renewals")
    grace_s: float = Field(30, ge=0, description="seconds that running handlers get to finish at a stop")
    lane_quantum: int = Field(10, ge=1, description="messages that a lane gives in one turn")
    batch: int = Field(10, ge=1, description="messages in one call of a batch handler")
    slots: int = Field(128, ge=1, description="handler calls at once in one worker, all labels together")
    reserved_level_1: int = Field(2, ge=0, description="slots that only work of level 1 may use")
    reserved_level_2: int = Field(1, ge=0, description="slots that only work of level 2 may use")
    sync_concurrency: int = Field(8, ge=1, description="calls at once of one sync handler")
    async_concurrency: int = Field(64, ge=1, description="calls at once of one async handler")
    cpu_concurrency: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        ge=1,
        description="processes of one cpu handler; default: the number of cores",
    )
    processes: int = Field(1, ge=1, description="worker processes that `reverie worker` keeps running")
    log_max_bytes: int = Field(
        10 * 1024 * 1024,
        ge=1,
        description="bytes of the log of `reverie worker start` before it is set aside and begun anew",
    )
    log_files: int = Field(
        5, ge=0, le=1000, description="files that were set aside so and are kept; the oldest are deleted"
    )
    max_abandoned: int = Field(
        16, ge=0, description="threads of sync handlers that may hang before no more are risked"
    )
    timeout_s: float = Field(300, gt=0, description="seconds that one handler call may take")
    max_attempts: int = Field(3, ge=1, description="runs in all before a message is buried")
    backoff_s: float = Field(1, gt=0, description="seconds of the first backoff; it doubles each time")
    max_backoff_s: float = Field(300, gt=0, description="seconds that a backoff is at most")
    pause_s: float = Field(
        30, gt=0, description="seconds of the first pause after a quota or a refused credential; it doubles"
    )
    max_pause_s: float = Field(3600, gt=0, description="seconds that such a pause is at most")
    bug_alert_s: float = Field(
        60, ge=0, description="seconds between two alerts about the same kind of bug of a label"
    )

    @model_validator(mode="after")
    def check_renewal(self) -> WorkerSettings:
        """Refuse to renew a lease after it has run out."""
        if self.renew_s >= self.lease_s:
            raise ValueError(
                f"renew_s = {self.renew_s:g} must be less than lease_s = {self.lease_s:g}: "
                "a claim is renewed before its lease runs out"
            )
        return self
