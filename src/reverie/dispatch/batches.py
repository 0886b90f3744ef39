"""Forming batches: which claims run together, and what a worker may claim next."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from reverie.backends.moves import Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.registry import Handler

__all__ = ["form_batches", "want_of"]


def want_of(handler: Handler, free: int, *, quantum: int, min_idle_ms: int) -> Want:
    """What `free` slots of a handler have room for.

    A slot of a plain handler works through a prefix of one lane, or runs one message of an unordered one;
    a slot of a batch handler takes a batch that may span lanes.
    """
    if handler.is_batch:
        lanes = messages = free * handler.batch
        quantum = min(quantum, handler.batch)
    elif handler.ordered:
        lanes, messages = free, free * quantum
    else:
        lanes = messages = free
    return Want(
        lanes=lanes,
        messages=messages,
        quantum=quantum,
        ordered=handler.ordered or min_idle_ms > 0,  # a lane that must rest between runs has one at a time
        min_idle_ms=min_idle_ms,
    )


def form_batches(handler: Handler, claims: Sequence[Claim]) -> list[list[Claim]]:
    """Split the claims of one label into batches; an ordered lane never stands in two of them."""
    if not handler.ordered:
        size = handler.batch if handler.is_batch else 1
        return [list(claims[start : start + size]) for start in range(0, len(claims), size)]
    by_lane = sorted(claims, key=lambda claim: claim.lane)  # stable: the order inside a lane stays
    prefixes = [list(group) for _, group in groupby(by_lane, key=lambda claim: claim.lane)]
    if not handler.is_batch:
        return prefixes
    batches: list[list[Claim]] = []
    for prefix in prefixes:
        if batches and len(batches[-1]) + len(prefix) <= handler.batch:
            batches[-1].extend(prefix)
        else:
            batches.append(prefix)
    return batches
