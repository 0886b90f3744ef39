"""The section `scheduler` of the settings: task types, user keys, and the clock."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

import yaml
from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator, model_validator

from reverie.base.clock import EPOCH
from reverie.configuration.section import TEN_YEARS_S, Section

__all__ = ["RetrySettings", "TaskSettings", "TriggerSettings", "UserKeySettings", "default_tasks"]

Seconds = Annotated[float, Field(gt=0, le=TEN_YEARS_S)]
ACTIVITY_INTERVAL_S = 1800.0
PERIODIC_INTERVAL_S = 3600.0


class UserKeySettings(Section):
    """Which ids tell users apart. Changing them needs a queue without tasks that wait."""

    use_user_id: bool = Field(default=True, description="must be true")
    use_device_id: bool = Field(default=True, description="whether each device has tasks of its own")
    use_agent_id: bool = Field(default=True, description="whether each agent has tasks of its own")
    default_device_id: str = Field("default", min_length=1, description="the device where none is named")
    default_agent_id: str = Field("default", min_length=1, description="the agent where none is named")

    @field_validator("use_user_id")
    @classmethod
    def _check_user(cls, used: bool) -> bool:  # noqa: FBT001  pydantic gives it so
        if not used:
            raise ValueError("must be true: every task of a user needs the user's id")
        return used


class RetrySettings(Section):
    """How long a task waits after a run that failed."""

    backoff_s: float | None = Field(
        None, gt=0, description="seconds of the first backoff; it doubles each time"
    )
    max_backoff_s: float | None = Field(None, gt=0, description="seconds that a backoff is at most")


class TaskSettings(Section):
    """The settings of one task type. Times are in seconds."""

    enabled: bool = Field(default=False, description="whether it runs")
    description: str = Field("", description="what it is for, in words")
    trigger_mode: Literal["user_activity", "periodic", "cron"] = Field(
        "user_activity", description="what makes it run: a user's activity, a period, a cron expression"
    )
    interval: float | None = Field(
        None,
        gt=0,
        le=TEN_YEARS_S,
        description="seconds from activity to run, or between two runs; default 1800, periodic 3600",
    )
    timeout: Seconds = Field(300, description="seconds that a run may take")
    task_ttl: Seconds = Field(7200, description="seconds that a finished task of a user is shown")
    max_retries: int = Field(3, ge=1, description="runs in all before it has failed")
    cron: str | None = Field(None, description="with trigger_mode cron: minute hour day month weekday")
    timezone: str = Field("UTC", description="the zone in which the cron expression is meant")
    mode: Literal["throttle", "debounce"] = Field(
        "throttle", description="whether more activity leaves the run where it is, or moves it"
    )
    max_wait: float | None = Field(
        None,
        gt=0,
        le=TEN_YEARS_S,
        description="seconds after the first activity at the latest, with mode debounce; default: never",
    )
    misfire: Literal["run_once", "run_all", "skip"] = Field(
        "run_once", description="due times that were missed: one run for all, one for each, or none"
    )
    jitter: float = Field(0, ge=0, le=TEN_YEARS_S, description="seconds by which a due time may be later")
    level: int | None = Field(None, ge=1, le=3, description="1 at once, 2 soon, 3 in the background")
    retry: RetrySettings = Field(default_factory=RetrySettings)
    depends_on: list[str] = Field(
        [], description="types that, if scheduled for the same user, must end well first"
    )

    @field_validator("timezone")
    @classmethod
    def _check_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError("must be the name of a time zone, such as Europe/Berlin") from error
        return name

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, expression: str | None) -> str | None:
        if expression is not None:
            try:
                next(CronSim(expression, EPOCH))
            except (CronSimError, StopIteration) as error:
                raise ValueError(
                    f"is no cron expression that ever comes: {str(error) or 'no such date'}"
                ) from error
        return expression

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if (self.trigger_mode == "cron") != (self.cron is not None):
            raise ValueError("a cron expression and trigger_mode: cron go together")
        if self.trigger_mode != "user_activity":
            for name, unusual in (("mode", self.mode != "throttle"), ("depends_on", bool(self.depends_on))):
                if unusual:
                    raise ValueError(f"{name} is for trigger_mode: user_activity")
        if self.max_wait is not None and self.mode != "debounce":
            raise ValueError("max_wait is for mode: debounce")
        return self

    @property
    def interval_s(self) -> float:
        """The interval in seconds, or the default of its mode."""
        if self.interval is not None:
            return self.interval
        return PERIODIC_INTERVAL_S if self.trigger_mode == "periodic" else ACTIVITY_INTERVAL_S


@functools.cache
def _default_file() -> str:
    return resources.files(__package__ or "").joinpath("default.yaml").read_text(encoding="utf-8")


def default_tasks() -> dict[str, TaskSettings]:
    """The task types of a process whose settings name none."""
    tasks: dict[str, Any] = yaml.safe_load(_default_file())
    return {name: TaskSettings(**task) for name, task in tasks.items()}


class TriggerSettings(Section):
    """The settings of timed tasks: the clock, and the task types by name."""

    enabled: bool = Field(default=True, description="whether time and activity make tasks run")
    check_interval: Seconds = Field(10, description="seconds after which the clock looks again at the latest")
    version: int = Field(
        0, ge=0, description="of instances with different task types, the higher version is in force for all"
    )
    user_key_config: UserKeySettings = Field(default_factory=UserKeySettings)
    tasks: dict[str, TaskSettings] = Field(
        default_factory=default_tasks, description="the task types; default: four that memory needs"
    )

    @model_validator(mode="after")
    def _check_dependence(self) -> Self:
        for name, task in self.tasks.items():
            if not name or name.startswith("_"):
                raise ValueError(f"{name!r} is no name of a task type: it must not be empty or begin with _")
            for other in task.depends_on:
                if other not in self.tasks or self.tasks[other].trigger_mode != "user_activity":
                    raise ValueError(f"{name} depends on {other!r}, which is no type that activity makes run")
        waits = {name: set(task.depends_on) for name, task in self.tasks.items()}
        while free := [name for name, others in waits.items() if not others & waits.keys()]:
            for name in free:
                del waits[name]
        if waits:
            raise ValueError(f"{', '.join(sorted(waits))} would wait for each other")
        return self
