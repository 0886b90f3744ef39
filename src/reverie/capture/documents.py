"""Documents: text files below one folder, read so that no name leads out of that folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePath

from reverie.errors import InvalidMessageError, NotSupportedError
from reverie.turn import Turn

__all__ = ["LONGEST_PASSAGE", "passages_of", "read_document"]

LONGEST_PASSAGE = 2000
"""How many characters of a document one memory has at most."""
INSIDE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How each part of a path is opened. A link is refused, and a pipe does not block."""


def read_document(folder: Path | None, name: str, most_bytes: int) -> list[Turn]:
    """The passages of a text file below `folder`. This blocks.

    Links are not followed, and the file is opened step by step from the folder: nobody can exchange a part of
    the path for a link in between.
    """
    if folder is None:
        raise InvalidMessageError("doc_path", name, "this server reads no files: set documents_folder")
    parts = _parts(folder, name)
    try:
        data = _read(folder, parts, most_bytes)
    except (OSError, ValueError) as error:
        raise InvalidMessageError(
            "doc_path", name, "is no plain file below documents_folder (links are not followed)"
        ) from error
    if len(data) > most_bytes:
        raise InvalidMessageError(
            "doc_path", name, f"may have at most {most_bytes} bytes (limits.max_content_bytes)"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotSupportedError(
            f"doc_path={name!r}", "only text files in UTF-8 can be read, and this is none"
        ) from error
    passages = passages_of(text)
    if not passages:
        raise InvalidMessageError("doc_path", name, "has nothing to remember")
    return [Turn(content=passage, type="doc") for passage in passages]


def passages_of(text: str) -> list[str]:
    """A text in passages of at most `LONGEST_PASSAGE` characters, cut between paragraphs if possible."""
    passages: list[str] = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        paragraph = block.strip()
        while paragraph:
            if passages and len(passages[-1]) + 2 + len(paragraph) <= LONGEST_PASSAGE:
                passages[-1] += f"\n\n{paragraph}"
                break
            end = len(paragraph)
            if end > LONGEST_PASSAGE:
                space = paragraph.rfind(" ", LONGEST_PASSAGE // 2, LONGEST_PASSAGE)
                end = space if space > 0 else LONGEST_PASSAGE
            passages.append(paragraph[:end].rstrip())
            paragraph = paragraph[end:].lstrip()
    return passages


def _parts(folder: Path, name: str) -> tuple[str, ...]:
    """The names that lead from the folder to the file."""
    path = PurePath(name)
    if path.is_absolute():
        inside = [base for base in (folder, folder.resolve()) if path.is_relative_to(base)]
        path = path.relative_to(inside[0]) if inside else PurePath("..")
    if not path.parts or ".." in path.parts:
        raise InvalidMessageError("doc_path", name, "must be a file below documents_folder")
    return path.parts


def _read(folder: Path, parts: tuple[str, ...], most_bytes: int) -> bytes:
    """The content of a plain file, and at most one byte more than allowed."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            flags = INSIDE if number == len(parts) else INSIDE | os.O_DIRECTORY
            inner = os.open(part, flags, dir_fd=place)
            os.close(place)
            place = inner
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise ValueError("no plain file")
        with os.fdopen(os.dup(place), "rb") as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(place)
