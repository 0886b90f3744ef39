"""Cubes that people have created by name. A cube needs no creation: the first memory in it makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from reverie.backends.records import Record
from reverie.errors import InvalidSelectionError

if TYPE_CHECKING:
    from reverie.access.audit import Audit
    from reverie.backends.interface import Records
    from reverie.base.clock import Clock

__all__ = ["MOST_CUBES", "Cube", "Cubes"]

MOST_CUBES = 1000
"""How many cubes one user may have created."""
MOST_OWNERS = 100
"""How many of the users who have created cubes with the same id are found by that id."""


class Cube(msgspec.Struct, frozen=True, kw_only=True):
    """A cube with a name."""

    cube_id: str
    """Unique among the cubes of its owner."""
    cube_name: str
    owner_id: str
    cube_path: str | None = None
    """Where the client has it. Nothing is read there."""
    created_at: int = 0


class Cubes:
    """The cubes that were created in one queue."""

    def __init__(self, records: Records, audit: Audit, clock: Clock) -> None:
        self._records = records
        self._audit = audit
        self._clock = clock

    async def create(
        self, cube_id: str, name: str, owner_id: str, *, path: str | None = None, keep: bool = False
    ) -> Cube:
        """Create a cube, or name it anew if its owner has it; with `keep`, leave a known one as it is."""
        kind = _kind_of(owner_id)
        known = await self._records.get(kind, cube_id)
        if known is not None and keep:
            return msgspec.convert(known.value, Cube)
        changes: list[Record] = []
        if known is None:
            if len(await self._records.page(kind, limit=MOST_CUBES)) >= MOST_CUBES:
                raise InvalidSelectionError(f"the user {owner_id!r} has {MOST_CUBES} cubes: use one of these")
            if len(await self.owners_of(cube_id)) < MOST_OWNERS:
                changes.append(Record(kind=_owners_kind_of(cube_id), id=owner_id, value={}))
        cube = Cube(
            cube_id=cube_id, cube_name=name, owner_id=owner_id, cube_path=path, created_at=self._clock.now()
        )
        changes.append(Record(kind=kind, id=cube_id, value=msgspec.to_builtins(cube)))
        await self._records.change(changes, [self._audit.entry("cube.create", cube_id, owner_id)])
        return cube

    async def of_owner(self, owner_id: str) -> list[Cube]:
        """The cubes that a user has created, by id."""
        found = await self._records.page(_kind_of(owner_id), limit=MOST_CUBES)
        return [msgspec.convert(record.value, Cube) for record in found]

    async def has(self, owner_id: str, cube_id: str) -> bool:
        """Whether a user has created a cube with this id."""
        return await self._records.get(_kind_of(owner_id), cube_id) is not None

    async def owners_of(self, cube_id: str) -> list[str]:
        """The first users who have created a cube with this id, at most `MOST_OWNERS`."""
        found = await self._records.page(_owners_kind_of(cube_id), limit=MOST_OWNERS)
        return [record.id for record in found]


def _kind_of(owner_id: str) -> str:
    """The kind of the records of a user's cubes. Each user has one: nobody can fill it up for others."""
    return f"cube/{quote(owner_id, safe='')}"


def _owners_kind_of(cube_id: str) -> str:
    """The kind of the records that name the owners of cubes with one id."""
    return f"cube_owner/{quote(cube_id, safe='')}"
