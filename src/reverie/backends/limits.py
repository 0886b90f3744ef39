"""The limits of a submit: arithmetic and refusals, the same for every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.errors import InvalidMessageError, QueueFullError, TooManyLabelsError, UnhandledLabelError

if TYPE_CHECKING:
    from reverie.backends.moves import QueueLimits, ScopeLimits

__all__ = ["check_depth", "next_arrival", "too_many_labels", "unhandled", "unknown_parent"]

RETRY_WHEN_FULL_S = 5.0
"""When to try again after a refusal because of depth; a guess, since nobody knows how soon work ends."""


def check_depth(limits: ScopeLimits, depth: int, tenant: str | None = None) -> None:
    """Refuse a submit after which `depth` messages would be unfinished, if that is more than the limit."""
    if limits.depth is not None and depth > limits.depth:
        raise QueueFullError(_setting("max_depth", tenant), limits.depth, RETRY_WHEN_FULL_S, tenant)


def next_arrival(
    limits: ScopeLimits, arrival: float, now: int, messages: int, tenant: str | None = None
) -> float:
    """Refuse a submit that comes too soon; else return the new value of `arrival`.

    `arrival` is the moment at which all messages accepted so far fit the rate. It may be up to a second ahead
    of now. A batch larger than that is accepted when there is room for one message, and the next submits
    wait longer.
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
    """The error for a message that depends on an unknown item."""
    return InvalidMessageError("depends_on", item_id, "is no known item of this user, nor of this submit")


def unhandled(label: str) -> UnhandledLabelError:
    """The error for a label that no live worker handles."""
    return UnhandledLabelError(label)


def too_many_labels(label: str, limits: QueueLimits) -> TooManyLabelsError:
    """The error for a new label of a queue that has as many as it may have."""
    return TooManyLabelsError(label, limits.max_labels)
