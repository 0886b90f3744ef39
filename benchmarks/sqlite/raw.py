"""The raw limit: the same rows in the same tables, written directly to SQLite by one loop."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any

import apsw

from reverie.storage.queries import load_migrations, load_queries

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SQL", "RawQueue"]

SQL = load_queries("benchmarks.sqlite", "raw.sql")
CLAIM = 100
LEASE_MS = 30_000
RETENTION_MS = 7 * 24 * 3600 * 1000


class RawQueue:
    """A file with the queue's schema, WAL, and the queue's durability."""

    def __init__(self, path: Path, durability: str, lanes: int) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {durability}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        for script in load_migrations("reverie.backends.sqlite"):
            self._connection.execute(script)
        self._lanes = lanes
        self._written = 0

    def submit_singly(self, messages: int) -> float:
        """Insert one row per commit; rows per second."""
        rows = self._rows(messages)
        insert = SQL["insert"]
        began = time.perf_counter()
        for row in rows:
            self._connection.execute(insert, row)
        return messages / (time.perf_counter() - began)

    def submit_in_batches(self, messages: int, batch: int) -> float:
        """Insert `batch` rows per commit; rows per second."""
        rows = self._rows(messages)
        began = time.perf_counter()
        for start in range(0, messages, batch):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(SQL["insert"], rows[start : start + batch])
            self._connection.execute("COMMIT")
        return messages / (time.perf_counter() - began)

    def drain(self, messages: int) -> float:
        """Claim up to a hundred rows by one statement, complete them by another; rows per second."""
        began = time.perf_counter()
        while True:
            now = round(time.time() * 1000)
            claim_id = secrets.token_hex(16)
            claimed = self._connection.execute(
                SQL["claim"], (claim_id, now + LEASE_MS, now, CLAIM)
            ).fetchall()
            if not claimed:
                break
            done = json.dumps([row[0] for row in claimed])
            self._connection.execute(SQL["complete"], (now, now + RETENTION_MS, done, claim_id))
        seconds = time.perf_counter() - began
        completed = self._connection.execute(SQL["count_completed"]).get
        if completed != messages:
            raise SystemExit(f"the raw loop completed {completed} of {messages} rows")
        return messages / seconds

    def close(self) -> None:
        self._connection.close()

    def _rows(self, count: int) -> list[tuple[Any, ...]]:
        """Make the rows before the clock starts: only SQLite is measured."""
        first, self._written = self._written, self._written + count
        now = round(time.time() * 1000)
        return [
            (
                f"user-{n % self._lanes}",
                str(uuid.uuid4()),
                now,
                n % self._lanes + 1,
                n + 1,
                secrets.token_hex(16),
            )
            for n in range(first, first + count)
        ]
