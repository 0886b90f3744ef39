"""The path of an SQLite URL: a file is known by its resolved path, however its URL is spelled."""

from __future__ import annotations

from pathlib import Path

from reverie.errors import UnknownSchemeError

__all__ = ["IN_MEMORY", "sqlite_path"]

IN_MEMORY = ":memory:"
"""The path of a database that lives as long as its process."""
SQLITE = "sqlite:///"


def sqlite_path(url: str) -> str:
    """The absolute path of the file, without links; `IN_MEMORY` for `memory://`."""
    if url.startswith("memory://"):
        return IN_MEMORY
    if not url.startswith(SQLITE) or url == SQLITE:
        raise UnknownSchemeError(url, ["sqlite:///path/to/file.db", "memory://"])
    return str(Path(url.removeprefix(SQLITE)).expanduser().resolve())
