"""URLs of storage in their one spelling, and the path of an SQLite URL, known by its resolved path."""

from __future__ import annotations

from pathlib import Path

from reverie.errors import UnknownSchemeError

__all__ = ["IN_MEMORY", "plain_url", "sqlite_path"]

IN_MEMORY = ":memory:"
"""The path of a database that lives as long as its process."""
SQLITE = "sqlite:///"


def plain_url(url: str) -> str:
    """A URL with its scheme in lower case; a database in memory is always `memory://`."""
    scheme, mark, rest = url.partition(":")
    url = f"{scheme.lower()}{mark}{rest}"
    return "memory://" if url == SQLITE + IN_MEMORY else url


def sqlite_path(url: str) -> str:
    """The absolute path of the file, without links; `IN_MEMORY` for `memory://`."""
    url = plain_url(url)
    if url.startswith("memory://"):
        return IN_MEMORY
    if not url.startswith(SQLITE) or url == SQLITE:
        raise UnknownSchemeError(url, ["sqlite:///path/to/file.db", "memory://"])
    return str(Path(url.removeprefix(SQLITE)).expanduser().resolve())
