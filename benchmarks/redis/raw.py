"""The raw limit: one stream and a written status for every move, in one loop with the fewest calls."""

from __future__ import annotations

import secrets
import time
import uuid
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RawQueue"]

CLAIM = 500
BODY = '{{"user_id":"{0}","label":"noop","content":"{{}}","item_id":"{1}","mem_cube_id":"{0}","level":3}}'
Row = tuple[str, str, str]
"""The user, the item id and the body of a message."""


class RawQueue:
    """The functions of `raw.lua` on a server."""

    def __init__(self, client: Redis, lanes: int) -> None:
        self._client = client
        self._lanes = lanes
        self._written = 0
        text = resources.files(__package__ or "").joinpath("raw.lua").read_text(encoding="utf-8")
        client.function_load(text)
        client.xgroup_create("raw", "raw", id="0", mkstream=True)

    def submit_singly(self, messages: int) -> float:
        """Submit one message per call; messages per second."""
        return self._submit(messages, 1)

    def submit_in_batches(self, messages: int, batch: int) -> float:
        """Submit `batch` messages per call; messages per second."""
        return self._submit(messages, batch)

    def drain(self, messages: int) -> float:
        """Claim up to 500 messages by one call, complete them by another; messages per second."""
        completed = 0
        began = time.perf_counter()
        while claimed := self._call("raw_claim", secrets.token_hex(16), str(CLAIM)):
            done = [part for entry, fields in claimed for part in (entry, fields[1], fields[3])]
            self._call("raw_complete", *done)
            completed += len(claimed)
        seconds = time.perf_counter() - began
        if completed != messages or self._client.xlen("raw"):
            raise SystemExit(f"the raw loop completed {completed} of {messages} messages")
        return messages / seconds

    def _submit(self, messages: int, batch: int) -> float:
        rows = self._rows(messages)
        began = time.perf_counter()
        for start in range(0, messages, batch):
            self._call("raw_submit", *[part for row in rows[start : start + batch] for part in row])
        return messages / (time.perf_counter() - began)

    def _call(self, function: str, *arguments: str | bytes) -> list[tuple[bytes, list[bytes]]]:
        now = str(round(time.time() * 1000))
        answer: list[tuple[bytes, list[bytes]]] = self._client.fcall(function, 0, now, *arguments)
        return answer

    def _rows(self, count: int) -> list[Row]:
        """Make the rows before the clock starts: only the server and its client are measured."""
        first, self._written = self._written, self._written + count
        rows = []
        for n in range(first, first + count):
            user, item = f"user-{n % self._lanes}", str(uuid.uuid4())
            rows.append((user, item, BODY.format(user, item)))
        return rows
