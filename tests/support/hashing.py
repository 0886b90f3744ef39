"""An embedder that needs no model: each word adds a direction of its own to the vector of a text."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

import numpy as np

from reverie.memory.words import index_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class HashEmbedder:
    """Texts with the same words have near vectors, and texts without a common word are far apart."""

    def __init__(self, name: str = "hash-64", dimensions: int = 64) -> None:
        self.name = name
        self.dimensions = dimensions
        self.fails = False
        self.calls: list[list[str]] = []
        """The texts of each call."""
        self.gate: asyncio.Event | None = None
        """While a gate is there and closed, calls wait for it."""
        self.waiting = asyncio.Event()
        """Set when a call waits for the gate."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()
        if self.fails:
            raise ConnectionError("the embedder is away")
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector = np.zeros(self.dimensions, dtype=np.float32)
        for word in index_words(text):
            seed = zlib.crc32(f"{self.name} {word}".encode())
            vector += np.random.default_rng(seed).standard_normal(self.dimensions, dtype=np.float32)
        return vector
