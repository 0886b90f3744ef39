"""Hearing at once that a message was settled by this process."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reverie.message import Key

__all__ = ["Finishes"]


class Finishes:
    """Tells those who watch a message that something has happened to it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._watched: dict[Key, set[asyncio.Event]] = {}

    def announce(self, keys: Iterable[Key]) -> None:
        """Wake whoever watches one of these."""
        for key in keys:
            for event in self._watched.get(key, ()):
                event.set()

    @contextmanager
    def watch(self, keys: Iterable[Key]) -> Iterator[asyncio.Event]:
        """While this is open, its event is set whenever one of these is settled here."""
        event, keys = asyncio.Event(), list(keys)
        for key in keys:
            self._watched.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in keys:
                self._watched[key].discard(event)
                if not self._watched[key]:
                    del self._watched[key]
