"""The choice among ranked hits: similar ones give way to different ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.memory.ranking import Ranked

__all__ = ["diversify", "drop_duplicates"]

LEAST_LIKENESS = 0.7
"""Items that are less similar count as different, because turns on one topic are not repetitions."""
POOL = 4
"""How many times as many hits as are wanted there are to choose from."""


def diversify(
    ranked: Sequence[Ranked], similarity: Callable[[int, int], float], limit: int, balance: float = 0.9
) -> list[Ranked]:
    """Choose `limit` hits by maximal marginal relevance: similar hits give way to different ones.

    The chosen hits keep their order. `similarity` compares two items by their seq, from 0 to 1; below
    `LEAST_LIKENESS` it does not count, and with a `balance` of 1 it never does.
    """
    pool = list(ranked[: POOL * limit])
    if len(pool) <= limit or balance >= 1:
        return pool[:limit]
    scale = (pool[0].fused - pool[-1].fused) or 1.0
    relevance = {hit.seq: balance * (hit.fused - pool[-1].fused) / scale for hit in pool}
    likeness = dict.fromkeys(relevance, LEAST_LIKENESS)
    margin = dict(relevance)
    chosen: set[int] = set()
    while len(chosen) < limit:
        best = max(margin, key=margin.__getitem__)
        chosen.add(best)
        del margin[best]
        for seq in margin:
            alike = similarity(best, seq)
            if alike > likeness[seq]:
                likeness[seq] = alike
                above = (alike - LEAST_LIKENESS) / (1 - LEAST_LIKENESS)
                margin[seq] = relevance[seq] - (1 - balance) * above
    return [hit for hit in pool if hit.seq in chosen]


def drop_duplicates(
    ranked: Sequence[Ranked], similarity: Callable[[int, int], float], limit: int, threshold: float = 0.95
) -> list[Ranked]:
    """The first `limit` hits, without those that are nearly equal to a better one."""
    chosen: list[Ranked] = []
    for hit in ranked[: POOL * limit]:
        if len(chosen) == limit:
            break
        if all(similarity(other.seq, hit.seq) < threshold for other in chosen):
            chosen.append(hit)
    return chosen
