"""A model that is loaded when it is first used, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from reverie.base.threads import ThreadPool
from reverie.models.interface import EmbedderUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RETRY_S", "LazyModel"]

RETRY_S = 60.0
"""Seconds after which a model that could not be loaded is tried again."""

Model = TypeVar("Model")
T = TypeVar("T")


class LazyModel(Generic[Model]):
    """Loads a model at the first call, and runs calls one at a time on one thread.

    Urgent calls have a thread of their own: somebody waits for them, and others may have much to do before.
    A failure to load is remembered: until `RETRY_S` have passed every call fails with the same reason.
    """

    def __init__(
        self, name: str, load: Callable[[], Model], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._monotonic = monotonic
        self._threads = ThreadPool(1, f"reverie-{name}")
        self._urgent = ThreadPool(1, f"reverie-{name}-urgent")
        self._lock = threading.Lock()
        self._model: Model | None = None
        self._failure: EmbedderUnavailableError | None = None
        self._failed_at = 0.0

    async def call(self, function: Callable[[Model], T], *, urgent: bool = False) -> T:
        """Call a function with the model on a thread of the model. The model must allow two calls at once."""
        threads = self._urgent if urgent else self._threads
        return await asyncio.wrap_future(threads.submit(lambda: function(self.get())))

    def get(self) -> Model:
        """The model, loaded now if it was not; `EmbedderUnavailableError` if it cannot be loaded."""
        with self._lock:
            if self._model is not None:
                return self._model
            if self._failure is not None and self._monotonic() < self._failed_at + RETRY_S:
                raise EmbedderUnavailableError(self._failure.reason)
            try:
                self._model = self._load()
            except EmbedderUnavailableError as error:
                self._failure, self._failed_at = error, self._monotonic()
                raise
            return self._model
