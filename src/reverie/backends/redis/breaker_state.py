"""Breakers and limiters that workers share, on Redis: a JSON state per key, changed by compare-and-set."""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.breaker_state import MOST_LISTED, Grant, SharedMachine, State, is_blank
from reverie.backends.redis.keys import decode_id, encode_id
from reverie.errors import BackendUnavailableError

if TYPE_CHECKING:
    from reverie.backends.breaker_state import Step
    from reverie.backends.redis.library import Library

__all__ = ["RedisSharedState"]

TRIES = 100
"""Each try that fails means that another worker's step succeeded in between."""
STEP_BACK_S = 0.005
LONGEST_STEP_BACK_S = 0.2
"""Workers that collide wait a random time, longer with each try, so that they do not collide again."""

_encode = msgspec.msgpack.Encoder().encode
_decode_read = msgspec.msgpack.Decoder(tuple[int, str]).decode
_decode_written = msgspec.msgpack.Decoder(tuple[int, bool]).decode
_decode_state = msgspec.json.Decoder(State).decode


class RedisSharedState(SharedMachine):
    """See `reverie.backends.interface.SharedState`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def _move(self, key: str, step: Step) -> Grant:
        name = encode_id(key)
        for tries in range(1, TRIES + 1):
            now, seen = _decode_read(await self._library.call("shared_read", _encode({"key": name})))
            state, grant = step(_decode_state(seen) if seen else State(), now)
            text = "" if is_blank(state) else msgspec.json.encode(state).decode()
            ttl_ms = max(1, state.forget_at - now)
            request: dict[str, Any] = {"key": name, "seen": seen, "text": text, "ttl_ms": ttl_ms}
            if state.open_until is not None:
                request["open_until"] = state.open_until
            if text == seen or _decode_written(await self._library.call("shared_write", _encode(request)))[1]:
                return grant
            await asyncio.sleep(random.uniform(0, min(tries * STEP_BACK_S, LONGEST_STEP_BACK_S)))  # noqa: S311
        raise BackendUnavailableError(f"the shared state of {key!r} changed {TRIES} times while it was read")

    async def open_breakers(self) -> dict[str, int]:
        """See `SharedState.open_breakers`."""
        found = iter(await self._library.call("shared_opened", _encode({})))
        return {
            decode_id(key if isinstance(key, str) else key.decode()): int(until)
            for key, until in islice(zip(found, found, strict=True), MOST_LISTED)
        }
