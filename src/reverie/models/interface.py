"""The interface of the models: embedder, reranker, language model; and the errors when one is not there."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from reverie.base.threads import ThreadPool
from reverie.errors import InvalidSettingError, ReverieError
from reverie.failures import FailureKind, InvalidWorkError, TransientError
from reverie.models.tokens import tokens_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "AnswerPart",
    "BadAnswerError",
    "ChatMessage",
    "ClosesLater",
    "Completion",
    "Converses",
    "CountsAllTokens",
    "CountsTokens",
    "Embedder",
    "EmbedderUnavailableError",
    "EmbedsQueries",
    "HoldsConnections",
    "LanguageModel",
    "ModelMissingError",
    "Models",
    "PromptTooLongError",
    "Reranker",
    "Sampling",
]


class ModelMissingError(ReverieError):
    """A handler has asked for a model that is not set up."""

    def __init__(self, model: str, setting: str) -> None:
        """Name the missing model and the setting that sets one up."""
        self.model, self.setting = model, setting
        super().__init__(f"no {model} is set up: set {setting}")


class EmbedderUnavailableError(TransientError):
    """The embedder makes no vectors at present."""

    def __init__(
        self,
        reason: str,
        *,
        kind: FailureKind = FailureKind.TRANSIENT,
        retry_after: float | None = None,
    ) -> None:
        """Say what is wrong and what to do; `retry_after` is in seconds from now."""
        super().__init__(reason, retry_after=retry_after)
        self.reason, self.kind = reason, kind


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a prompt."""

    role: str
    content: str


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a language model."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a client wants an answer to be made. Fields that are None follow the settings."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


class AnswerPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer that is still being made."""

    text: str = ""
    reasoning: str = ""
    """What the model thinks before it answers."""


class BadAnswerError(TransientError):
    """A language model has answered something that cannot be used."""

    def __init__(
        self, reason: str, completion: Completion | None = None, *, credential: str | None = None
    ) -> None:
        """Say what is wrong; `completion` has the tokens of the answer, which are paid all the same."""
        self.reason, self.completion = reason, completion
        super().__init__(reason, credential=credential)


class ModelAwayError(TransientError):
    """The server of a language model cannot be reached, or says that it is not at work now."""


class AnswerTooLongError(BadAnswerError):
    """An answer was cut off, or has more entries than are allowed: there was too much to answer."""


class PromptTooLongError(InvalidWorkError):
    """A prompt has more tokens than the window of the language model."""


class Embedder(Protocol):
    """Turns texts into vectors.

    An embedder may also have the methods of `EmbedsQueries`, `CountsTokens` and `HoldsConnections`. The
    embedder of a user may lack `name`: its name is then the import path in the setting.
    """

    @property
    def name(self) -> str:
        """The name of the vector space, such as `wordllama-256`, known before the model is loaded.

        Vectors of embedders with different names are never compared.
        """
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | NDArray[np.float32]:
        """One vector for each text that is to be found, in the order of the texts."""
        ...


@runtime_checkable
class EmbedsQueries(Protocol):
    """An embedder that treats a query differently from the texts that it is to find."""

    async def embed_queries(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | NDArray[np.float32]:
        """One vector for each query, in the order of the queries."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """An embedder that can count the tokens of a text."""

    def count_tokens(self, text: str) -> int:
        """The number of tokens, without those that mark the beginning and the end of a text."""
        ...


@runtime_checkable
class CountsAllTokens(Protocol):
    """An embedder that counts the tokens of many texts faster than one by one."""

    def count_all_tokens(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, counted like `CountsTokens.count_tokens`."""
        ...


@runtime_checkable
class HoldsConnections(Protocol):
    """A model that keeps connections open between calls."""

    def disconnect(self) -> None:
        """Close all connections; the next call opens new ones."""
        ...


@runtime_checkable
class ClosesLater(Protocol):
    """A model whose connections are closed by an event loop, after `disconnect` has returned."""

    async def closed(self) -> None:
        """Return when the connections are closed."""
        ...


class Reranker(Protocol):
    """Says how well texts answer a query."""

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One score for each text, in the order of the texts; higher is better."""
        ...


class LanguageModel(Protocol):
    """Answers prompts."""

    async def complete(
        self,
        prompt: Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Completion:
        """The answer to a prompt; with a JSON schema, JSON that should fit it.

        Failures are raised as the errors of `reverie.failures`. The provider is given the idempotency key,
        so that a repeated call need not be paid twice.
        """
        ...


@runtime_checkable
class Converses(Protocol):
    """A language model that gives its answers part by part, and heeds the wishes of a client."""

    def converse(
        self,
        prompt: Sequence[ChatMessage],
        sampling: Sampling,
        *,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[AnswerPart | Completion]:
        """Yield the parts of an answer and, at the end, the whole answer with its tokens."""
        ...


class Models:
    """The models of one process."""

    def __init__(
        self,
        embedder: Embedder | None = None,
        language_model: LanguageModel | None = None,
        reranker: Reranker | None = None,
        *,
        setting: str = "",
    ) -> None:
        """`setting` is the value of memory.embedding, the name of an embedder that has no name of its own."""
        self._embedder = embedder
        self._language_model = language_model
        self._setting = setting
        self.reranker = reranker
        """Orders the first hits of a search anew; None if no reranker is set up."""

    @property
    def embedder_name(self) -> str | None:
        """The name of the vector space; None without an embedder. The model is not loaded for it."""
        if self._embedder is None:
            return None
        return getattr(self._embedder, "name", None) or self._setting or type(self._embedder).__name__

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text; `ModelMissingError` without an embedder."""
        vectors = await self._embed(texts, query=False)
        return [[float(number) for number in vector] for vector in vectors]

    @property
    def has_language_model(self) -> bool:
        """Whether a language model is set up."""
        return self._language_model is not None

    async def vectors(self, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
        """One row for each text, or for each query.

        `ModelMissingError` without an embedder, `EmbedderUnavailableError` if it makes no vectors at present.
        """
        try:
            vectors = await self._embed(texts, query=query)
        except ReverieError:
            raise
        except Exception as error:
            raise EmbedderUnavailableError(f"the embedder {self.embedder_name} failed: {error!r}") from error
        numpy = await _import_numpy()
        try:
            rows: NDArray[np.float32] = numpy.asarray(vectors, dtype=numpy.float32)
        except (TypeError, ValueError) as error:
            raise self._wrong_answer(f"answered what are not vectors of one length: {error}") from error
        if rows.size == 0 and not texts:
            return rows.reshape(0, 0)
        if rows.ndim != 2 or not numpy.isfinite(rows).all():
            raise self._wrong_answer("answered what are not vectors of finite numbers")
        return rows

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, by the embedder's tokenizer; about that many if it cannot count now."""
        embedder: object = self._embedder
        with suppress(EmbedderUnavailableError):
            if isinstance(embedder, CountsAllTokens):
                return await asyncio.to_thread(embedder.count_all_tokens, texts)
            if isinstance(embedder, CountsTokens):
                count = embedder.count_tokens
                return await asyncio.to_thread(lambda: [count(text) for text in texts])
        return [tokens_in(text) for text in texts]

    async def complete(
        self,
        prompt: Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Completion:
        """The answer to a prompt; `ModelMissingError` without a language model."""
        if self._language_model is None:
            raise ModelMissingError("language model", "llm.preset")
        return await self._language_model.complete(prompt, schema=schema, idempotency_key=idempotency_key)

    async def converse(
        self,
        prompt: Sequence[ChatMessage],
        sampling: Sampling,
        *,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[AnswerPart | Completion]:
        """Yield the parts of an answer, then the whole; a model that does not converse gives it at once."""
        model: object = self._language_model
        if isinstance(model, Converses):
            async with aclosing(model.converse(prompt, sampling, idempotency_key=idempotency_key)) as parts:
                async for part in parts:
                    yield part
        else:
            completion = await self.complete(prompt, idempotency_key=idempotency_key)
            yield AnswerPart(text=completion.text)
            yield completion

    def disconnect(self) -> None:
        """Close the connections of all models; the next call opens new ones."""
        models: tuple[object, ...] = (self._embedder, self._language_model, self.reranker)
        for model in models:
            if isinstance(model, HoldsConnections):
                model.disconnect()

    async def close(self) -> None:
        """Close the connections of all models, and return when they are closed."""
        self.disconnect()
        model: object = self._language_model
        if isinstance(model, ClosesLater):
            await model.closed()

    async def _embed(
        self, texts: Sequence[str], *, query: bool
    ) -> Sequence[Sequence[float]] | NDArray[np.float32]:
        """What the embedder answers, with the number of vectors checked."""
        if self._embedder is None:
            raise ModelMissingError("embedder", "memory.embedding")
        if query and isinstance(self._embedder, EmbedsQueries):
            vectors = await self._embedder.embed_queries(texts)
        else:
            vectors = await self._embedder.embed(texts)
        if len(vectors) != len(texts):
            raise self._wrong_answer(f"answered {len(vectors)} vectors for {len(texts)} texts")
        return vectors

    def _wrong_answer(self, reason: str) -> InvalidSettingError:
        return InvalidSettingError("memory.embedding", type(self._embedder).__name__, reason)


async def _import_numpy() -> Any:
    """Import numpy; for the first time on a thread, because that takes a tenth of a second."""
    if "numpy" not in sys.modules:
        threads = ThreadPool(1, "reverie-numpy")
        try:
            await asyncio.wrap_future(threads.submit(_load_numpy))
        finally:
            threads.close()
    return _load_numpy()


def _load_numpy() -> Any:
    try:
        import numpy  # noqa: PLC0415, ICN001  not imported before it is used
    except ImportError as error:
        reason = f"vectors need numpy, which cannot be imported ({error}): pip install numpy"
        raise EmbedderUnavailableError(reason) from error
    return numpy
