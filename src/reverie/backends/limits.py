"""Whether a queue takes a submit: the arithmetic and the refusals, the same for every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.errors import InvalidMessageError, QueueFullError, UnhandledLabelError

if TYPE_CHECKING:
    from reverie.backends.moves import ScopeLimits

__all__ = ["check_depth", "next_arrival", "unhandled", "unknown_parent"]

RETRY_WHEN_FULL_S = 5.0
"""When to try again after a refusal because of depth: nobody knows how soon work ends."""


def check_depth(limits: ScopeLimits, depth: int, tenant: str | None = None) -> None:
    """Refuse a submit after which so many messages would not have ended."""
    if limits.depth is not None and depth > limits.depth:
        raise QueueFullError(_setting("max_depth", tenant), limits.depth, RETRY_WHEN_FULL_S, tenant)


def next_arrival(
    limits: ScopeLimits, arrival: float, now: int, messages: int, tenant: str | None = None
) -> float:
    """Refuse a submit that comes too soon; else answer when the rate would allow the one after next.

    `arrival` is the last answer: the moment at which all that was accepted so far fits the rate. It may lie
    ahead of now by one second's worth; a larger batch is taken when there is room for one, and paid later.
    """
    assert limits.rate is not None
    interval = 1000 / limits.rate
    ahead = max(0.0, arrival - now)
    if ahead > max(0.0, 1000 - interval):
        wait_s = round(max(0.001, (ahead - max(0.0, 1000 - interval)) / 1000), 3)
        raise QueueFullError(_setting("max_rate", tenant), limits.rate, wait_s, tenant)
    return now + ahead + messages * interval


def _setting(name: str, tenant: str | None) -> str:
    return f"queue.{name}_per_tenant" if tenant else f"queue.{name}"


def unknown_parent(item_id: str) -> InvalidMessageError:
    """What is said of a message that depends on something that is not there."""
    return InvalidMessageError("depends_on", item_id, "is no known item of this user, nor of this submit")


def unhandled(label: str) -> UnhandledLabelError:
    """What is said of a label that nobody works on."""
    return UnhandledLabelError(label)
