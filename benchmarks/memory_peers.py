"""Other memories and vector stores on this machine: the same texts, vectors of the same model, no network."""

from __future__ import annotations

import logging
import os
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PEERS"]

BATCH = 500
DIMENSIONS = 256
QUIET = {"ANONYMIZED_TELEMETRY": "False", "MEM0_TELEMETRY": "False", "HF_HUB_OFFLINE": "1"}
"""What keeps the peers from calling home; they read it when they are imported."""
Measured = tuple[float, list[float]]
"""Seconds for adding all texts, and milliseconds for each search with its embedding."""


class _WordLlama:
    """The model of our default embedder, as the peers call an embedder."""

    def __init__(self) -> None:
        module = import_module("wordllama")
        self._model = module.WordLlama.load(
            cache_dir=Path(module.__file__).parent, dim=DIMENSIONS, disable_download=True
        )

    def many(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._model.embed(list(texts), norm=True).tolist()
        return vectors

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002  mem0 names it
        """Embed one text, as mem0 asks for it."""
        return self.many([text])[0]

    def embed_batch(
        self,
        texts: Sequence[str],
        memory_action: str | None = None,  # noqa: ARG002  mem0 names it
    ) -> list[list[float]]:
        """Embed several texts, as mem0 asks for it."""
        return self.many(texts)


def _chromadb(folder: str, texts: Sequence[str], asked: Sequence[str]) -> Measured:
    chromadb = import_module("chromadb")
    settings = import_module("chromadb.config").Settings(anonymized_telemetry=False)
    embedder = _WordLlama()
    client = chromadb.PersistentClient(path=folder, settings=settings)
    turns = client.create_collection("turns", embedding_function=None, metadata={"hnsw:space": "cosine"})
    began = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        part = list(texts[start : start + BATCH])
        turns.add(
            ids=[str(start + number) for number in range(len(part))],
            documents=part,
            embeddings=embedder.many(part),
        )
    added_s = time.perf_counter() - began

    def search(question: str) -> Any:
        return turns.query(query_embeddings=embedder.many([question]), n_results=10)

    return added_s, _timed(search, asked)


def _mem0(folder: str, texts: Sequence[str], asked: Sequence[str]) -> Measured:
    os.environ["MEM0_DIR"] = folder
    mem0 = import_module("mem0")
    logging.getLogger("mem0").setLevel(logging.ERROR)
    own = {
        "llm": {"provider": "openai", "config": {"api_key": "unused"}},
        "embedder": {"provider": "openai", "config": {"api_key": "unused"}},
        "vector_store": {
            "provider": "qdrant",
            "config": {
                "path": f"{folder}/qdrant",
                "on_disk": True,
                "collection_name": "turns",
                "embedding_model_dims": DIMENSIONS,
            },
        },
        "history_db_path": f"{folder}/history.db",
    }
    memory = mem0.Memory.from_config(own)
    memory.embedding_model = _WordLlama()
    began = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        said = [{"role": "user", "content": text} for text in texts[start : start + BATCH]]
        memory.add(said, user_id="user-0", infer=False)
    added_s = time.perf_counter() - began

    def search(question: str) -> Any:
        return memory.search(question, filters={"user_id": "user-0"}, top_k=10)["results"]

    times = _timed(search, asked)
    memory.close()
    return added_s, times


def _timed(search: Callable[[str], Any], asked: Sequence[str]) -> list[float]:
    """Milliseconds of each search; the first few are made twice and count only once."""
    for question in asked[:5]:
        if not search(question):
            raise RuntimeError("it has found nothing")
    times = []
    for question in asked:
        began = time.perf_counter()
        search(question)
        times.append(1000 * (time.perf_counter() - began))
    return times


os.environ.update(QUIET)
PEERS: dict[str, Callable[[str, Sequence[str], Sequence[str]], Measured]] = {
    "chromadb": _chromadb,
    "mem0": _mem0,
}
"""Name → a function that adds the texts, and asks the questions."""
