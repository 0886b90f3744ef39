"""The interface of models that handlers may call, and the error when no model is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from reverie.errors import InvalidSettingError, ReverieError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ChatMessage", "Completion", "Embedder", "LanguageModel", "ModelMissingError", "Models"]


class ModelMissingError(ReverieError):
    """A handler has asked for a model that is not set up."""

    def __init__(self, model: str, setting: str) -> None:
        """Name the missing model and the setting that sets one up."""
        self.model, self.setting = model, setting
        super().__init__(f"no {model} is set up: set {setting}")


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    role: str
    content: str


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a language model."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class Embedder(Protocol):
    """Turns texts into vectors."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, in the order of the texts."""
        ...


class LanguageModel(Protocol):
    """Answers prompts."""

    async def complete(
        self, prompt: Sequence[ChatMessage], *, schema: dict[str, Any] | None = None
    ) -> Completion:
        """The answer to a prompt; with a JSON schema, JSON that fits it."""
        ...


class Models:
    """The models of one process."""

    def __init__(self, embedder: Embedder | None = None, language_model: LanguageModel | None = None) -> None:
        self._embedder = embedder
        self._language_model = language_model

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text; `ModelMissingError` without an embedder."""
        if self._embedder is None:
            raise ModelMissingError("embedder", "memory.embedding")
        vectors = await self._embedder.embed(texts)
        if len(vectors) != len(texts):
            reason = f"answered {len(vectors)} vectors for {len(texts)} texts"
            raise InvalidSettingError("memory.embedding", type(self._embedder).__name__, reason)
        return [[float(number) for number in vector] for vector in vectors]

    async def complete(
        self, prompt: Sequence[ChatMessage], *, schema: dict[str, Any] | None = None
    ) -> Completion:
        """The answer to a prompt; `ModelMissingError` without a language model."""
        if self._language_model is None:
            raise ModelMissingError("language model", "llm.preset")
        return await self._language_model.complete(prompt, schema=schema)
