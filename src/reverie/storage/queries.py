"""Named SQL statements, kept in `.sql` files beside the code that runs them.

A statement begins with a line `-- name: what_it_is`; the comment lines after it explain it.
"""

from __future__ import annotations

from importlib import resources

__all__ = ["load_migrations", "load_queries"]


def load_queries(package: str, filename: str) -> dict[str, str]:
    """Read the statements of one file, by name."""
    text = resources.files(package).joinpath(filename).read_text(encoding="utf-8")
    queries: dict[str, str] = {}
    for part in text.split("-- name:")[1:]:
        name, _, body = part.partition("\n")
        queries[name.strip()] = "\n".join(
            line for line in body.splitlines() if not line.startswith("--")
        ).strip()
    return queries


def load_migrations(package: str) -> list[str]:
    """Read the scripts of a `migrations` folder, oldest first; their number is the schema's version."""
    folder = resources.files(package).joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]
