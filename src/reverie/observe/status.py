"""How a business task stands, from how its items stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.moves import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["business_status"]


def business_status(statuses: Iterable[Status]) -> Status:
    """Any failed: failed. Else any not ended: in progress. All cancelled: cancelled. Else completed."""
    seen = set(statuses)
    if Status.FAILED in seen:
        return Status.FAILED
    if seen & {Status.WAITING, Status.IN_PROGRESS}:
        return Status.IN_PROGRESS
    return Status.CANCELLED if seen == {Status.CANCELLED} else Status.COMPLETED
