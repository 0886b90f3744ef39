"""Settings of the spool, and of what hooks of agents capture."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from reverie.configuration.section import Section

__all__ = ["CaptureSettings", "SpoolSettings"]


class SpoolSettings(Section):
    """The spool."""

    dir: Path | None = Field(
        None,
        description="folder of captured messages that wait; default: spool in the data folder, or beside "
        "the file of queue.url",
    )
    submits: bool = Field(
        default=False,
        description="whether submit and add, also over HTTP, write to the spool while the backend is away, "
        "as capture always does, instead of being refused",
    )
    max_files: int = Field(
        100_000, ge=1, description="files that may wait; about so many, then a capture is refused"
    )
    max_file_bytes: int = Field(
        16 * 1024 * 1024, ge=1, description="bytes of one file; a larger one is refused, or set aside"
    )
    max_damaged_files: int = Field(
        1000, ge=1, description="files kept that cannot become messages; beyond it the oldest are removed"
    )
    max_damaged_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="bytes of files kept that cannot become messages; beyond it the oldest are removed",
    )
    look_s: float = Field(2, gt=0, description="seconds between two looks for files to take in")


class CaptureSettings(Section):
    """What hooks of agents capture. `reverie install` and `reverie capture` tell the hooks."""

    exclude_tools: list[str] = Field(
        [], description="tools whose calls are not kept; * and ? stand for any letters, such as mcp__mail__*"
    )
    exclude_projects: list[str] = Field(
        [],
        description="projects of which nothing is kept: folders, or addresses such as github.com/ann/*",
    )
    hook_max_bytes: int = Field(
        262_144,
        ge=4096,
        le=16 * 1024 * 1024,
        description="bytes of one hook's input; the rest is cut and marked",
    )
    context_budget_ms: int = Field(
        150, ge=0, le=10_000, description="milliseconds that a hook waits for context; 0: it asks for none"
    )
    start_worker: bool = Field(
        default=True, description="whether a hook starts the worker in the background if none runs"
    )
    worker_idle_exit_s: float | None = Field(
        None,
        gt=0,
        description="seconds without work or hooks after which a worker in the background ends; unset: never",
    )
    observation_tokens_per_hour: int = Field(
        20_000,
        ge=0,
        description="tokens of the language model that observations of one user may take in an hour; then "
        "they are described by rule",
    )
    session_timeout_s: float = Field(
        3600, gt=0, description="seconds without a hook after which a session has failed"
    )
    session_check_s: float = Field(60, gt=0, description="seconds between two looks for such sessions")
    drain_s: float = Field(
        30,
        gt=0,
        description="seconds that the last messages of an ended session may take before a warning is logged",
    )
    redact: bool = Field(
        default=True,
        description="whether `<private>` parts and secrets are removed from every message before it is kept",
    )
