"""Answers of models that think aloud: what is between `<think>` and `</think>` is no part of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.models.interface import AnswerPart

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Thinking"]

OPEN, CLOSE = "<think>", "</think>"


class Thinking:
    """Tells thoughts from answer, while the text comes part by part."""

    def __init__(self) -> None:
        self._tag: str | None = OPEN
        """The tag that is looked for; None when no further one can come."""
        self._held = ""
        """The end of what has come: it may be the beginning of the tag."""
        self._is_new = True
        """Whether nothing has come since the last tag; then line ends are left out."""

    def take(self, part: AnswerPart) -> Iterator[AnswerPart]:
        """The parts that are known to be thoughts or answer by now."""
        if part.reasoning:
            yield AnswerPart(reasoning=part.reasoning)
        text, self._held = self._held + part.text, ""
        if self._tag == OPEN:
            start = text.lstrip()
            if not start or (len(start) < len(OPEN) and OPEN.startswith(start)):
                self._held = text
                return
            if start.startswith(OPEN):
                text, self._tag = start.removeprefix(OPEN), CLOSE
            else:
                self._tag = None
        if self._tag == CLOSE:
            thought, found, rest = text.partition(CLOSE)
            if not found:
                kept = _beginning_at_end(thought)
                self._held, thought = thought[len(thought) - kept :], thought[: len(thought) - kept]
            if thought := self._begun(thought):
                yield AnswerPart(reasoning=thought)
            if not found:
                return
            text, self._tag, self._is_new = rest, None, True
        if text := self._begun(text):
            yield AnswerPart(text=text)

    def end(self) -> Iterator[AnswerPart]:
        """What was held back, when nothing more comes."""
        if held := self._begun(self._held):
            yield AnswerPart(reasoning=held) if self._tag == CLOSE else AnswerPart(text=held)
        self._held = ""

    def _begun(self, text: str) -> str:
        """A text without the line ends before it, if it is the first after a tag."""
        if self._is_new:
            text = text.lstrip("\n")
            self._is_new = not text
        return text


def _beginning_at_end(text: str) -> int:
    """How many characters at the end of a text may be the beginning of the closing tag."""
    return next((size for size in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:size])), 0)
