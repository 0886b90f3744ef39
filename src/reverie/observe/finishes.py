"""Tells waiting callers at once that this process has settled a message."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reverie.message import Key

__all__ = ["Finishes"]


class Finishes:
    """Wakes callers that watch a message when this process has moved it. Belongs to one event loop."""

    def __init__(self) -> None:
        self.watched: dict[Key | str, set[asyncio.Event]] = {}
        """By the key of a message, or the id of a user: the events to set."""
        self.total = 0
        """Messages that this process has moved."""

    def announce(self, keys: Iterable[Key]) -> None:
        """Wake whoever watches one of these."""
        for key in keys:
            self.total += 1
            for event in (*self.watched.get(key, ()), *self.watched.get(key.user_id, ())):
                event.set()

    @contextmanager
    def watch(self, keys: Iterable[Key]) -> Iterator[asyncio.Event]:
        """Open an event that is set whenever this process settles one of these messages."""
        with self._watch(list(keys)) as event:
            yield event

    @contextmanager
    def watch_user(self, user_id: str) -> Iterator[asyncio.Event]:
        """Open an event that is set whenever this process settles a message of a user."""
        with self._watch([user_id]) as event:
            yield event

    @contextmanager
    def _watch(self, names: Sequence[Key | str]) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        for name in names:
            self.watched.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            for name in names:
                self.watched[name].discard(event)
                if not self.watched[name]:
                    del self.watched[name]
