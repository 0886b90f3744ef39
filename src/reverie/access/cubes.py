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

KIND = "cube"
MOST_CUBES = 1000
"""How many cubes one user may have created."""
PAGE = 1000


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
        known = await self._records.get(KIND, _id_of(cube_id, owner_id))
        if known is not None and keep:
            return msgspec.convert(known.value, Cube)
        if known is None and len(await self.of_owner(owner_id)) >= MOST_CUBES:
            raise InvalidSelectionError(f"the user {owner_id!r} has {MOST_CUBES} cubes: use one of these")
        cube = Cube(
            cube_id=cube_id, cube_name=name, owner_id=owner_id, cube_path=path, created_at=self._clock.now()
        )
        record = Record(kind=KIND, id=_id_of(cube_id, owner_id), value=msgspec.to_builtins(cube))
        await self._records.change([record], [self._audit.entry("cube.create", cube_id, owner_id)])
        return cube

    async def of_owner(self, owner_id: str) -> list[Cube]:
        """The cubes that a user has created, by id."""
        return [cube for cube in await self._after("") if cube.owner_id == owner_id]

    async def with_id(self, cube_id: str) -> list[Cube]:
        """The cubes of all users with this id."""
        return await self._after(f"{_quoted(cube_id)}/")

    async def _after(self, start: str) -> list[Cube]:
        """The cubes whose records' ids begin with `start`, by id."""
        cubes: list[Cube] = []
        after = start
        while True:
            page = await self._records.page(KIND, after=after, limit=PAGE)
            fitting = [record for record in page if record.id.startswith(start)]
            cubes += [msgspec.convert(record.value, Cube) for record in fitting]
            if len(fitting) < PAGE:
                return cubes
            after = page[-1].id


def _id_of(cube_id: str, owner_id: str) -> str:
    return f"{_quoted(cube_id)}/{_quoted(owner_id)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
