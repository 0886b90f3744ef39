"""Preparing texts for the index before the transaction that writes them: their words and their vectors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.base.logs import get_logger
from reverie.errors import ReverieError
from reverie.memory.vectors import Vector, quantise
from reverie.memory.words import index_words, text_for_index, text_for_vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.effect import Remember, Revise, Source
    from reverie.memory.item import MemoryItem
    from reverie.models.interface import Models

__all__ = ["Indexable", "Prepared", "TextEmbedder", "vectors_of"]

log = get_logger(__name__)


class Indexable(NamedTuple):
    """The texts of an item that a search can find it by."""

    text: str
    title: str | None = None
    narrative: str | None = None
    facts: tuple[str, ...] = ()
    speaker: str | None = None
    when: int | None = None
    """Since when it holds, in epoch milliseconds, if that was said."""

    @classmethod
    def of(cls, effect: Remember) -> Indexable:
        """The texts of an item that is to be remembered."""
        speaker = speaker_of(effect.sources)
        return cls(effect.text, effect.title, effect.narrative, effect.facts, speaker, effect.valid_from)

    @classmethod
    def after(cls, item: MemoryItem, change: Revise) -> Indexable:
        """The texts of an item after a change."""
        sources = item.sources if change.sources is None else change.sources
        return cls(
            item.text if change.text is None else change.text,
            item.title if change.title is None else change.title,
            item.narrative,
            item.facts,
            speaker_of(sources),
            item.valid_from if change.valid_from is None else change.valid_from,
        )

    @property
    def for_words(self) -> str:
        """The text whose words are indexed."""
        others = [*filter(None, [self.narrative]), *self.facts]
        return text_for_index(
            self.text, speaker=self.speaker, when=self.when, title=self.title, others=others
        )

    @property
    def for_vector(self) -> str:
        """The text that is embedded."""
        whole = f"{self.text}\n{self.narrative}" if self.narrative else self.text
        return text_for_vector(whole, speaker=self.speaker, title=self.title)

    @property
    def asks(self) -> bool:
        """Whether the text ends with a question mark."""
        return self.text.rstrip().endswith(("?", "\uff1f"))


def speaker_of(sources: Sequence[Source]) -> str | None:
    """The name of the speaker in the first source that has one."""
    return next((source.name for source in sources if source.name), None)


class Prepared(msgspec.Struct, frozen=True):
    """Words and vectors of new texts."""

    words: dict[str, list[str]] = {}
    """Text → its words."""
    vectors: dict[str, Vector] = {}
    """Text → its vector, for those that the embedder has answered."""
    embedder: str | None = None
    """The embedder that made the vectors."""

    @classmethod
    def words_of(cls, texts: Iterable[Indexable]) -> dict[str, list[str]]:
        """Text → its words, for each text."""
        return {text: index_words(text) for text in {indexable.for_words for indexable in texts}}


LATE_TEXTS = 4096
"""How many vectors are kept that came after their caller had given up: the indexer asks for them soon."""


class TextEmbedder:
    """Asks the embedder for the vectors of texts; requests that come while it is busy are asked together."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._waiting: list[tuple[Sequence[str], asyncio.Future[dict[str, Vector]]]] = []
        self._asking: asyncio.Task[None] | None = None
        self._late: dict[str, Vector] = {}
        """Text → its vector, which came too late for its caller."""

    async def embed(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Text → its vector; nothing without an embedder, or if it does not answer."""
        if self._models.embedder_name is None or not texts:
            return {}
        known = {text: self._late.pop(text) for text in set(texts) if text in self._late}
        unknown = [text for text in texts if text not in known]
        if not unknown:
            return known
        answer: asyncio.Future[dict[str, Vector]] = asyncio.get_running_loop().create_future()
        self._waiting.append((unknown, answer))
        if self._asking is None or self._asking.done() or self._asking.get_loop() is not answer.get_loop():
            self._asking = asyncio.create_task(self._ask())
        return known | await answer

    async def _ask(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            requests = [request for request in waiting if not request[1].done()]
            if not requests:
                continue
            distinct = list(dict.fromkeys(text for texts, _ in requests for text in texts))
            vectors: dict[str, Vector] = {}
            try:
                vectors = dict(zip(distinct, await vectors_of(self._models, distinct), strict=True))
            except ReverieError as error:
                log.info("embedder.unavailable", error=str(error), texts=len(distinct))
            finally:
                for texts, answer in requests:
                    found = {text: vectors[text] for text in texts if text in vectors}
                    if answer.done():
                        self._keep_late(found)
                    elif not answer.get_loop().is_closed():
                        answer.set_result(found)

    def _keep_late(self, vectors: dict[str, Vector]) -> None:
        """Keep vectors that nobody waits for any more; the oldest give way."""
        self._late |= vectors
        for text in list(self._late)[: max(0, len(self._late) - LATE_TEXTS)]:
            del self._late[text]


async def vectors_of(models: Models, texts: Sequence[str], *, query: bool = False) -> list[Vector]:
    """The stored form of the vector of each text."""
    return quantise(await models.vectors(texts, query=query))
