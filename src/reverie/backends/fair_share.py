"""Sharing a worker's free slots among levels and labels.

Each level first gets its share by weight, divided among its labels; what one level leaves, the others may
take, the higher first. A label whose longest-waiting lane has waited too long counts as a higher level.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reverie.backends.moves import ClaimRequest, Want

__all__ = ["serve"]

C = TypeVar("C")
"""A claimed message, as the backend has it."""


def serve(
    request: ClaimRequest,
    waited_ms: Mapping[str, int],
    max_wait_ms: int,
    claim: Callable[[str, Want], list[C]],
) -> list[C]:
    """Claim for the labels of a request by calling `claim`, label by label.

    `waited_ms` says how long the first lane of each label has waited that has one ready.
    """
    wants = {label: want for label, want in request.wants.items() if label in waited_ms}
    if request.slots is None:
        return [one for label, want in wants.items() for one in claim(label, want)]
    levels: dict[int, list[str]] = {}
    for label, want in wants.items():
        levels.setdefault(max(1, want.level - waited_ms[label] // max_wait_ms), []).append(label)
    return _Shares(request, wants, claim).serve(levels)


class _Shares(Generic[C]):
    """What is left of a request while it is served."""

    def __init__(
        self, request: ClaimRequest, wants: dict[str, Want], claim: Callable[[str, Want], list[C]]
    ) -> None:
        self._free = request.slots or 0
        self._rooms = request.levels
        self._wants = wants
        self._claim = claim
        self._left = {label: want.slots for label, want in wants.items()}
        self._claims: list[C] = []

    def serve(self, levels: dict[int, list[str]]) -> list[C]:
        """Give each level its share, then what others have left."""
        taken = {
            level: self._serve_level(level, labels, 0, evenly=True)
            for level, labels in sorted(levels.items())
        }
        for level, labels in sorted(levels.items()):
            self._serve_level(level, labels, taken[level], evenly=False)
        return self._claims

    def _serve_level(self, level: int, labels: list[str], taken: int, *, evenly: bool) -> int:
        """Serve the labels of one level; answers how many slots they took."""
        room = self._rooms.get(level)
        allowed = self._free if room is None else room.share if evenly else room.most
        quota = start = max(0, min(self._free, allowed - taken))
        for index, label in enumerate(labels):
            portion = math.ceil(quota / (len(labels) - index)) if evenly else quota
            quota -= self._serve_label(label, portion)
        return start - quota

    def _serve_label(self, label: str, slots: int) -> int:
        slots = min(slots, self._left[label])
        if slots <= 0:
            return 0
        want = msgspec.structs.replace(self._wants[label], slots=slots)
        claims = self._claim(label, want)
        used = min(slots, math.ceil(len(claims) / want.per_slot))
        self._left[label] = self._left[label] - used if used == slots else 0  # fewer: it has no more
        self._free -= used
        self._claims += claims
        return used
