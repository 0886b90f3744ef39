"""Hearing at once that a message was settled by this process."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reverie.message import Key

__all__ = ["Finishes"]


class Finishes:
    """Tells those who watch a message that something has happened to it. Belongs to one event loop."""

    def __init__(self) -> None:
        self.watched: dict[Key | str, set[asyncio.Event]] = {}
        """By the key of a message, or by the id of a user: who wants to hear of it."""

    def announce(self, keys: Iterable[Key]) -> None:
        """Wake whoever watches one of these."""
        for key in keys:
            for event in (*self.watched.get(key, ()), *self.watched.get(key.user_id, ())):
                event.set()

    @contextmanager
    def watch(self, keys: Iterable[Key]) -> Iterator[asyncio.Event]:
        """While this is open, its event is set whenever one of these is settled here."""
        with self._watch(list(keys)) as event:
            yield event

    @contextmanager
    def watch_user(self, user_id: str) -> Iterator[asyncio.Event]:
        """The same for all messages of a user."""
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
