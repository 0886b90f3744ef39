"""Requests that can be repeated: by the header `Idempotency-Key`, the same request is carried out once.

The ids of the messages that a request submits derive from its key, its caller and its path. If the request
comes again, the queue has these ids already: it answers `duplicate`, or `conflict` if the messages differ. So
nothing needs to be stored, and every process of a queue gives the same answer, as long as the queue remembers
the messages.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from reverie.errors import IdempotencyError
from reverie.message import DerivedIds, current_ids
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["IDEMPOTENCY_HEADER", "KEY_PATTERN", "LONGEST_KEY", "Repeatable"]

IDEMPOTENCY_HEADER = "idempotency-key"
LONGEST_KEY = 255
KEY_PATTERN = r"^[\x21-\x7e]+$"
MOST_REMEMBERED = 10_000
"""Requests whose bodies a process compares; of older ones it compares the messages alone."""


class Repeatable:
    """Answers requests that have an idempotency key."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str, str], bytes] = {}
        """(caller, method and path, key) → digest of the query and the body, for requests that succeeded."""

    async def answer(
        self, key: str, request: Request, handle: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """The answer of `handle`; `IdempotencyError` if the key was used for another request."""
        if len(key) > LONGEST_KEY or not re.fullmatch(KEY_PATTERN, key):
            words = f"the header {IDEMPOTENCY_HEADER} must have 1 to {LONGEST_KEY} visible ASCII characters"
            raise HTTPException(422, words)
        request_of = (current_principal.get().key, f"{request.method} {request.url.path}", key)
        body = await request.body()
        digest = hashlib.sha256(request.url.query.encode() + b"\0" + body).digest()
        if self._bodies.get(request_of, digest) != digest:
            raise IdempotencyError
        ids = DerivedIds("idempotency", *request_of)
        before = current_ids.set(ids)
        try:
            response = await handle(request)
        finally:
            current_ids.reset(before)
            ids.close()
        if response.status_code < 400:
            self._bodies.pop(request_of, None)
            self._bodies[request_of] = digest
            if len(self._bodies) > MOST_REMEMBERED:
                del self._bodies[next(iter(self._bodies))]
        return response
