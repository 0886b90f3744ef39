"""Governance: who may read which memory. The setting `governance` names yours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reverie.memory.item import MemoryItem
    from reverie.principal import Principal

__all__ = ["UNGOVERNED_LABELS", "AllowAll", "Governance"]

UNGOVERNED_LABELS = frozenset(
    {
        "mem_archive",
        "mem_feedback",
        "mem_organize",
        "mem_read",
        "mem_update",
        "memory_compression",
        "pref_add",
    }
)
"""The labels whose handlers read or change memories that a message names, or all of a cube.

Handlers ask nobody who may read a memory. So under governance only admins submit these labels as they like;
for all other callers, the routes of the server make the messages.
"""


class Governance(Protocol):
    """Decides what a caller may see, beyond the users and cubes that the caller's key names.

    A memory that may not be read looks everywhere as if it did not exist. The answer is asked for each memory
    of each read, so it should be quick; an error that is raised ends the read.
    """

    def may_read(self, principal: Principal, item: MemoryItem) -> bool:
        """Whether a caller may read a memory. `principal.attributes` are those of the caller's API key."""
        ...


class AllowAll:
    """The default: callers may read all that their keys may touch."""

    def may_read(self, principal: Principal, item: MemoryItem) -> bool:  # noqa: ARG002
        """See `Governance.may_read`."""
        return True
