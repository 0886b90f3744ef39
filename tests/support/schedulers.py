"""Schedulers for tests, with their clock in the test's hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie import Scheduler
from reverie.settings import load_settings

if TYPE_CHECKING:
    from reverie.backends.views import ItemStatus
    from reverie.testing import ManualClock

__all__ = ["new_scheduler", "status_of"]


def new_scheduler(url: str, clock: ManualClock, **settings) -> Scheduler:
    """A scheduler with its queue at `url`."""
    return Scheduler(
        settings=load_settings(queue={"url": url, "durability": "normal"}, **settings), clock=clock
    )


def status_of(scheduler: Scheduler, user_id: str = "ann") -> ItemStatus:
    """How the first item of a user stands."""
    return scheduler.status(user_id)[0]
