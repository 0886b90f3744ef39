"""A spool's folder as a test sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.capture.damaged import DamagedFiles
from reverie.capture.ingester import SpoolIngester
from reverie.capture.spool_reader import SpoolReader

if TYPE_CHECKING:
    from pathlib import Path

    from reverie import AsyncScheduler

NOTE = {"user_id": "ann", "label": "note"}


def file_name(number: int) -> str:
    """A name that the spool could have given."""
    return f"{number:020d}-{number:016x}.json"


def waiting(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def damaged(folder: Path) -> dict[str, str]:
    """What was set aside, with its reasons."""
    aside = folder / "damaged"
    return {path.name.removesuffix(".reason"): path.read_text() for path in aside.glob("*.reason")}


def put(folder: Path, name: str, content: bytes = b"") -> Path:
    """Lay a file into the folder, as somebody else would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def all_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def ingester_of(scheduler: AsyncScheduler, folder: Path, **limits: int) -> SpoolIngester:
    """One that looks only when it is told, and takes files of up to 100,000 bytes."""
    aside = DamagedFiles(folder, **({"max_files": 1000, "max_bytes": 2**30} | limits))
    reader = SpoolReader(str(folder), scheduler.runtime.limits, 100_000, aside)
    return SpoolIngester(reader, scheduler.runtime.intake.submit, look_s=3600)
