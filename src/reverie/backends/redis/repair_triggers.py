"""Repair of triggers: their due times, runs, locks, lists and counts, made anew from what is left.

The hash of a trigger says most. A hash that is lost is made from the message of its run, which `repair.py`
looks at, or from its due time and its user key.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import msgspec

from reverie.backends.redis.keys import decode_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import Any, Protocol

    class Call(Protocol):
        """Calls one function of the repair, and notes what it has mended."""

        def __call__(self, function: str, request: dict[str, Any], reply: type[R]) -> Awaitable[R]: ...


__all__ = ["Reply", "TriggerRepair"]


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """How every function of a repair answers."""

    now: int
    mended: list[tuple[str, int]]


class _Texts(Reply, frozen=True):
    texts: list[str]


class _DueTimes(Reply, frozen=True):
    cursor: str
    lost: list[tuple[str, int]]
    """Encoded user key and due time of triggers whose hash is gone."""


R = TypeVar("R", bound=Reply)
_Row = tuple[str, str]
"""Type and user key of a trigger."""


class TriggerRepair:
    """Mends the triggers of one queue. Use it once."""

    def __init__(
        self,
        call: Call,
        batches: Callable[[str, Callable[[str], object]], AsyncIterator[list[str]]],
        start: str,
        *,
        dry_run: bool,
    ) -> None:
        """All keys of triggers begin with `start`; `batches` yields what follows a text in keys."""
        self._call = call
        self._batches = batches
        self._start = f"{start}:"
        self._dry = dry_run
        self._adopted: set[_Row] = set()
        """Triggers that were made anew from a due time. A dry run meets them again."""

    async def remove_locks(self) -> None:
        """Remove locks of triggers whose run nobody holds; `repair` makes the missing ones."""
        async for rows in self._rows("lock"):
            await self._call("trigger_locks", {"locks": rows}, Reply)

    async def repair(self, *, made_anew: bool) -> None:
        """Look at all triggers; `made_anew` says whether a run has lost the hash of its trigger."""
        for index in ("due", "blocked", "queue"):
            async for kinds in self._batches(f"{self._start}{index}:", _is_type):
                for kind in kinds:
                    await self._find_lost(index, kind)
        async for rows in self._all():
            await self._call("trigger_hashes", {"triggers": rows}, Reply)
        async for kinds in self._batches(f"{self._start}task_type:", _is_type):
            await self._call("trigger_types", {"types": kinds}, Reply)
        if not (self._dry and (made_anew or self._adopted)):  # a dry run has not written them
            await self._count()

    async def _find_lost(self, index: str, kind: str) -> None:
        """Make triggers anew whose hash is lost, from their due times."""
        cursor = "0"
        while cursor:
            request = {"index": index, "type": kind, "cursor": cursor}
            page = await self._call("trigger_due_times", request, _DueTimes)
            lost = [(encoded, at) for encoded, at in page.lost if (kind, encoded) not in self._adopted]
            self._adopted.update((kind, encoded) for encoded, _ in lost)
            rows = [_adoption(kind, encoded, at) for encoded, at in lost]
            readable = [row for row in rows if row is not None]
            if readable:
                await self._call("trigger_adopt", {"rows": readable}, Reply)
            cursor = page.cursor

    async def _count(self) -> None:
        """Count the triggers of each type; the counts of types that move meanwhile are left as they are."""
        kinds: set[str] = set()
        for name in ("statistics", "task_type"):
            async for found in self._batches(f"{self._start}{name}:", _is_type):
                kinds.update(found)
        names = sorted(kinds)
        witnesses = (await self._call("trigger_witness", {"types": names}, _Texts)).texts
        counts: Counter[tuple[str, str]] = Counter()
        seen: set[_Row] = set()
        async for rows in self._all():
            new = [row for row in dict.fromkeys(rows) if row not in seen]  # SCAN may repeat
            seen.update(new)
            statuses = (await self._call("trigger_statuses", {"triggers": new}, _Texts)).texts
            counts.update((kind, status) for (kind, _), status in zip(new, statuses, strict=True))
        request = {
            "counts": [
                (kind, witness, counts[kind, "pending"], counts[kind, "running"])
                for kind, witness in zip(names, witnesses, strict=True)
            ]
        }
        await self._call("trigger_counts", request, Reply)

    async def _all(self) -> AsyncIterator[list[_Row]]:
        """Yield all triggers that have a hash."""
        async for rows in self._rows("task"):
            yield rows
        async for kinds in self._batches(f"{self._start}periodic:", _is_type):
            yield [(kind, "") for kind in kinds]

    async def _rows(self, name: str) -> AsyncIterator[list[_Row]]:
        async for names in self._batches(f"{self._start}{name}:", _is_trigger):
            yield [_split(one) for one in names]


def _is_type(name: str) -> bool:
    return bool(name) and ":" not in name and name.isascii()


def _is_trigger(name: str) -> bool:
    """Whether the end of a key is a type and a user key, as readable text."""
    return _is_type(name.partition(":")[0]) and ":" in name and _is_text(name)


def _is_text(name: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in name)


def _split(name: str) -> _Row:
    kind, _, key = name.partition(":")
    return kind, key


def _adoption(kind: str, encoded: str, at: int) -> Sequence[object] | None:
    """The row of a trigger to make anew: a user key begins with the user, and may name device and agent."""
    key = unquote(encoded, errors="surrogateescape")
    if not _is_text(key):
        return None
    ids = [decode_id(part) for part in key.split(":")] if key else []
    device, agent = ids[1:] if len(ids) == 3 else (None, None)  # of two, either
    return kind, key, ids[0] if ids else None, device, agent, at
