"""Shares a worker's free slots among levels and labels.

Each level first gets its share by weight, divided among its labels. Slots that one level leaves go to the
others, higher levels first. A label whose longest-waiting lane has waited too long counts as a higher level.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reverie.backends.moves import ClaimRequest, Want

__all__ = ["serve"]

C = TypeVar("C")
"""A claimed message, in the backend's own form."""


def serve(
    request: ClaimRequest,
    waited_ms: Mapping[str, int],
    max_wait_ms: int,
    claim: Callable[[str, Want, int], list[C]],
) -> list[C]:
    """Claim for the labels of a request, label by label; `claim` is told how many messages at most.

    `waited_ms` maps each label that has a ready lane to how long its first lane has waited.
    """
    wants = {label: want for label, want in request.wants.items() if label in waited_ms}
    if request.slots is None:
        return [one for label, want in wants.items() for one in claim(label, want, want.messages)]
    levels: dict[int, list[str]] = {}
    for label, want in wants.items():
        levels.setdefault(max(1, want.level - waited_ms[label] // max_wait_ms), []).append(label)
    free, left = request.slots, {label: want.slots for label, want in wants.items()}
    taken: Counter[int] = Counter()
    claims: list[C] = []
    for by_weight in (True, False):  # first the share of each level, then the slots that others have left
        for level, labels in sorted(levels.items()):
            room = request.levels.get(level)
            allowed = free if room is None else room.share if by_weight else room.most
            quota = max(0, min(free, allowed - taken[level]))
            for index, label in enumerate(labels):
                portion = math.ceil(quota / (len(labels) - index)) if by_weight else quota
                slots = min(portion, left[label])
                if slots <= 0:
                    continue
                want = wants[label]
                claimed = claim(label, want, slots * want.per_slot)
                used = min(slots, math.ceil(len(claimed) / want.per_slot))
                left[label] = left[label] - used if used == slots else 0  # fewer: the label has no more
                free, quota = free - used, quota - used
                taken[level] += used
                claims += claimed
    return claims
