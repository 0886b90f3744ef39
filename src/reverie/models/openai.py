"""Embeddings of OpenAI, or of any server that speaks its protocol."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from reverie.base.threads import ThreadPool
from reverie.errors import redacted
from reverie.failures import FailureKind
from reverie.models.interface import EmbedderUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OpenAIEmbedder"]

BATCH = 256
"""Texts in one request."""
MAX_CHARACTERS = 8000
"""The rest of a longer text does not count: providers refuse texts of more than about 8000 tokens."""
THREADS = 4
"""Requests at the same time."""
RETRIES = 2
KINDS = {
    401: FailureKind.CREDENTIALS,
    403: FailureKind.CREDENTIALS,
    402: FailureKind.QUOTA,
    429: FailureKind.RATE_LIMITED,
}
"""HTTP status → class of failure; all others are transient."""


class OpenAIEmbedder:
    """Embeds texts by HTTP. The client is made at the first call, and is used for all calls.

    The client is a blocking one on threads, because an asynchronous one belongs to a single event loop.
    """

    def __init__(
        self, model: str, *, url: str | None = None, api_key: str | None = None, timeout_s: float = 30
    ) -> None:
        """Without a URL or a key, the client takes OPENAI_BASE_URL and OPENAI_API_KEY."""
        self.model = model
        self._url, self._api_key, self._timeout_s = url, api_key, timeout_s
        self._threads = ThreadPool(THREADS, "reverie-openai")
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def name(self) -> str:
        """Such as `openai:text-embedding-3-small`."""
        return f"openai:{self.model}"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text."""
        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        calls = [asyncio.wrap_future(self._threads.submit(partial(self._ask, batch))) for batch in batches]
        answers = await asyncio.gather(*calls)
        return [vector for answer in answers for vector in answer]

    def disconnect(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        client = self._open()
        from openai import APIStatusError, OpenAIError  # noqa: PLC0415  an extra, loaded by _open

        given = [text[:MAX_CHARACTERS] or " " for text in texts]  # an empty text would be refused
        try:
            answer = client.embeddings.create(model=self.model, input=given, encoding_format="float")
        except APIStatusError as error:
            raise EmbedderUnavailableError(
                f"{self._where(client)} answered {error.status_code} for the embedding model {self.model}: "
                f"{error.message}",
                kind=KINDS.get(error.status_code, FailureKind.TRANSIENT),
                retry_after=_retry_after(error.response.headers.get("retry-after")),
            ) from error
        except OpenAIError as error:
            cause = error.__cause__ or error
            reason = (
                f"{self._where(client)} gave no embeddings: {error} ({type(cause).__name__}: {cause}); "
                f"see memory.embedding_url and memory.embedding_timeout_s = {self._timeout_s:g}"
            )
            raise EmbedderUnavailableError(reason) from error
        except (ValueError, TypeError, AttributeError) as error:
            reason = f"{self._where(client)} answered something that is no list of embeddings: {error}"
            raise EmbedderUnavailableError(reason) from error
        try:
            rows = sorted(answer.data, key=lambda row: row.index)
            return [list(row.embedding) for row in rows]
        except (TypeError, AttributeError) as error:
            reason = f"{self._where(client)} answered something that is no list of embeddings"
            raise EmbedderUnavailableError(reason) from error

    def _open(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._new_client()
            return self._client

    def _new_client(self) -> Any:
        try:
            from openai import OpenAI, OpenAIError  # noqa: PLC0415  an extra, and slow to import
        except ImportError as error:
            reason = f"embeddings by HTTP need the extra 'openai' ({error}): pip install 'reverie[openai]'"
            raise EmbedderUnavailableError(reason) from error
        new = partial(OpenAI, base_url=self._url, timeout=self._timeout_s, max_retries=RETRIES)
        try:
            return new(api_key=self._api_key)
        except OpenAIError as error:
            if self._url:
                return new(api_key="none")  # a server of one's own may want no key
            reason = "no API key: set memory.embedding_api_key, or the variable OPENAI_API_KEY"
            raise EmbedderUnavailableError(reason, kind=FailureKind.CREDENTIALS) from error

    def _where(self, client: Any) -> str:
        return redacted(str(client.base_url))


def _retry_after(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
