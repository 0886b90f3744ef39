"""Settings of the spool, where captured messages wait on disk while the backend is away."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from reverie.configuration.section import Section

__all__ = ["SpoolSettings"]


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
