"""What calls of the language model have cost: a ledger by tenant, label and day."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import quote, unquote

import msgspec

from reverie.errors import InvalidSelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ledger", "Spent", "Usage", "UsageQuery", "VolatileLedger", "read_place"]


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one call."""

    key: str
    """The idempotency key of the call and its run: a call that is written twice counts once."""
    day: str
    """The day in UTC, such as 2026-05-07."""
    user_id: str
    mem_cube_id: str
    label: str
    model: str
    input_tokens: int
    output_tokens: int
    micros: int = 0
    """The price in millionths of the currency of `llm.prices`."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of calls of one tenant, label and day."""

    day: str
    user_id: str
    mem_cube_id: str
    label: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micros: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.input_tokens + self.output_tokens

    @property
    def place(self) -> str:
        """The place among all sums, as a cursor; `UsageQuery.after` takes it."""
        return "/".join(
            quote(part, safe="") for part in (self.day, self.user_id, self.mem_cube_id, self.label)
        )


def read_place(place: str) -> tuple[str, str, str, str]:
    """Day, user, cube and label of a place; `InvalidSelectionError` if it is none."""
    try:
        day, user_id, cube, label = (unquote(part, errors="strict") for part in place.split("/"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidSelectionError(f"cursor={place[:80]!r}: give the `next` of the page before") from error
    return day, user_id, cube, label


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sums to read. Fields that are None allow everything."""

    since: str | None = None
    """The first day."""
    until: str | None = None
    """The last day."""
    user_id: str | None = None
    mem_cube_id: str | None = None
    after: str | None = None
    """The `place` of the last sum of the page before."""
    limit: int = 1000


@runtime_checkable
class Ledger(Protocol):
    """Keeps what calls have cost."""

    async def write_spent(self, spent: Sequence[Spent]) -> None:
        """Keep the costs of calls. They are on disk when this returns; a known key changes nothing."""
        ...

    async def spent_on(
        self, tenant: tuple[str, str], day: str, labels: Sequence[str] = ()
    ) -> tuple[int, int]:
        """The tokens and the micros that a tenant has spent on a day; with `labels`, on these alone."""
        ...

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Sums, the newest day first, those of one day by user, cube and label."""
        ...


class VolatileLedger:
    """A ledger in this process, for a store that keeps none: it forgets all when the process ends."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._sums: defaultdict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    async def write_spent(self, spent: Sequence[Spent]) -> None:
        """See `Ledger.write_spent`."""
        for one in spent:
            if one.key in self._keys:
                continue
            self._keys.add(one.key)
            sums = self._sums[(one.day, one.user_id, one.mem_cube_id, one.label)]
            for place, number in enumerate((1, one.input_tokens, one.output_tokens, one.micros)):
                sums[place] += number

    async def spent_on(
        self, tenant: tuple[str, str], day: str, labels: Sequence[str] = ()
    ) -> tuple[int, int]:
        """See `Ledger.spent_on`."""
        own = [
            sums
            for key, sums in self._sums.items()
            if key[:3] == (day, *tenant) and (not labels or key[3] in labels)
        ]
        return sum(sums[1] + sums[2] for sums in own), sum(sums[3] for sums in own)

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """See `Ledger.usage`."""
        found = [
            Usage(
                day=day, user_id=user_id, mem_cube_id=cube, label=label,
                calls=calls, input_tokens=given, output_tokens=answered, micros=micros,
            )
            for (day, user_id, cube, label), (calls, given, answered, micros) in self._sums.items()
            if (query.since or day) <= day <= (query.until or day)
            and query.user_id in {None, user_id}
            and query.mem_cube_id in {None, cube}
        ]  # fmt: skip
        found.sort(key=lambda usage: (usage.user_id, usage.mem_cube_id, usage.label))
        found.sort(key=lambda usage: usage.day, reverse=True)
        if query.after is not None:
            day, *rest = read_place(query.after)
            found = [
                usage
                for usage in found
                if usage.day < day
                or (usage.day == day and [usage.user_id, usage.mem_cube_id, usage.label] > rest)
            ]
        return found[: query.limit]
