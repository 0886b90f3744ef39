"""Vectors in the form that a store keeps: eight bits a number, and one bit a number for a first look.

numpy is imported when it is first needed: without it memories are found by their words alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Vector", "bits_of", "cosine_rows", "cosines", "quantise", "similarities"]


class Vector(NamedTuple):
    """A vector as it is stored."""

    numbers: bytes
    """One signed byte a number. The scale is lost, which a cosine does not need."""
    bits: bytes
    """One bit a number: whether it is positive."""


def bits_of(numbers: bytes) -> bytes:
    """The bits of a stored vector."""
    import numpy as np  # noqa: PLC0415

    matrix = np.frombuffer(numbers, dtype=np.int8).reshape(1, -1)
    bits: bytes = _bits(np, matrix)[0].tobytes()
    return bits


def quantise(vectors: Any) -> list[Vector]:
    """The stored form of each row of a matrix."""
    import numpy as np  # noqa: PLC0415

    matrix = np.asarray(vectors, dtype=np.float32)
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    numbers = np.rint(matrix * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
    bits = _bits(np, matrix)
    return [Vector(row.tobytes(), bit.tobytes()) for row, bit in zip(numbers, bits, strict=True)]


def cosines(query: Vector, stored: Sequence[bytes]) -> list[float]:
    """The cosine of the query and each stored vector; ValueError if one has another length."""
    return cosine_rows(query.numbers, stored)


def cosine_rows(numbers: bytes, stored: Sequence[bytes]) -> list[float]:
    """The cosine of one stored vector and each other one; ValueError if one has another length."""
    import numpy as np  # noqa: PLC0415

    if not stored:
        return []
    size = len(numbers)
    if any(len(other) != size for other in stored):
        raise ValueError("a stored vector has another length than the embedder's vectors")
    matrix = _rows(np, stored, size)
    asked = np.frombuffer(numbers, dtype=np.int8).astype(np.float32)
    lengths = np.linalg.norm(matrix, axis=1) * float(np.linalg.norm(asked))
    found: list[float] = (matrix @ asked / np.where(lengths > 0, lengths, 1)).tolist()
    return found


def similarities(stored: Sequence[bytes]) -> list[list[float]]:
    """The cosine of each stored vector with each other one."""
    import numpy as np  # noqa: PLC0415

    matrix = _rows(np, stored, len(stored[0]))
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
    found: list[list[float]] = (matrix @ matrix.T).tolist()
    return found


def _bits(np: Any, matrix: Any) -> Any:
    """Whether each number of each row is positive, packed into whole words of 64 bits."""
    signs = np.zeros((len(matrix), -(-matrix.shape[1] // 64) * 64), dtype=bool)
    signs[:, : matrix.shape[1]] = matrix > 0
    return np.packbits(signs, axis=1)


def _rows(np: Any, stored: Sequence[bytes], size: int) -> Any:
    return np.frombuffer(b"".join(stored), dtype=np.int8).reshape(len(stored), size).astype(np.float32)
