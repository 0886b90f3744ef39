"""The default embedder: wordllama, whose weights are in its wheel. It needs no network.

A vector is the mean of the vectors of a text's tokens. The tokens are pooled here and not by the library,
which pads a batch to its longest text: one long text among short ones would take gigabytes.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.models.interface import EmbedderUnavailableError
from reverie.models.lazy import LazyModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DIMENSIONS", "WEIGHTS", "WordLlamaEmbedder"]

DIMENSIONS = 256
WEIGHTS = Path("weights") / f"l2_supercat_{DIMENSIONS}.safetensors"
"""The weights, inside of the package wordllama."""
MAX_CHARACTERS = 100_000
"""The rest of a longer text does not count."""
BATCH_TEXTS = 64
"""Texts that become tokens in one step; other threads can run meanwhile."""


class WordLlamaEmbedder:
    """Embeds texts with wordllama; vectors have the length 1, that of an empty text is zero."""

    name = f"wordllama-{DIMENSIONS}"

    def __init__(self) -> None:
        self._model = LazyModel("wordllama", _load)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text."""
        return await self._model.call(lambda model: _embed(model, texts))

    async def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each query; they do not wait for texts."""
        return await self._model.call(lambda model: _embed(model, texts), urgent=True)

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text; the first call loads the model."""
        return self.count_all_tokens([text])[0]

    def count_all_tokens(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text. Other threads can run Python code meanwhile."""
        tokenizer = self._model.get().tokenizer
        counts: list[int] = []
        for start in range(0, len(texts), BATCH_TEXTS):
            some = list(texts[start : start + BATCH_TEXTS])
            counts += map(len, tokenizer.encode_batch_fast(some, add_special_tokens=False))
        return counts


@cache
def _load() -> Any:
    """Load the model from its package, once for the process, and leave the log settings as they were."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would warn at every fork
    root, guard = logging.getLogger(), logging.NullHandler()
    root.addHandler(guard)  # importing wordllama calls logging.basicConfig, which respects a handler
    try:
        import wordllama  # noqa: PLC0415  slow to import

        model = wordllama.WordLlama.load(
            cache_dir=Path(wordllama.__file__).parent, dim=DIMENSIONS, disable_download=True
        )
        model.tokenizer.no_padding()
    except ImportError as error:
        reason = f"wordllama cannot be imported ({error}): pip install wordllama numpy"
        raise EmbedderUnavailableError(reason) from error
    except Exception as error:
        reason = (
            f"wordllama cannot be loaded ({error}): install it anew with "
            "pip install --force-reinstall wordllama, or choose another embedder: reverie embeddings list"
        )
        raise EmbedderUnavailableError(reason) from error
    finally:
        root.removeHandler(guard)
    return model


def _embed(model: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415  slow to import

    rows = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
    for index, ids in enumerate(_tokens_of(model, texts)):
        if ids:
            vectors = model.embedding.take(ids, axis=0, mode="clip")
            np.add.reduce(vectors, axis=0, out=rows[index])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows


def _tokens_of(model: Any, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of each text."""
    for start in range(0, len(texts), BATCH_TEXTS):
        some = [text[:MAX_CHARACTERS] for text in texts[start : start + BATCH_TEXTS]]
        for one in model.tokenizer.encode_batch_fast(some, add_special_tokens=False):
            yield one.ids
