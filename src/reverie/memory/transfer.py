"""Exporting memories as JSON Lines, and importing them again.

The first line names the format. Each further line is one memory with the links that lead from it. An import
writes the memories first, and then, in a second pass, their links and successors, because these may be in a
later line. Both passes change nothing that is there already, so that an import may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.effect import Link, Move, Relation, Remember, Supersede, check_effect
from reverie.errors import InvalidMessageError, ReverieError, VersionConflictError
from reverie.memory.interface import PageQuery
from reverie.memory.item import MemoryItem
from reverie.memory.tenants import tenants_of
from reverie.message import SYSTEM_USER, check_ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from reverie.effect import Effect
    from reverie.memory.interface import ListsMemories, MemoryStore, Tenant
    from reverie.message import MessageLimits

__all__ = [
    "BATCH",
    "HEADER",
    "ExportedMemory",
    "Importer",
    "NotAnExportError",
    "OutgoingLink",
    "Place",
    "check_header",
    "encode_line",
    "export_pages",
    "read_line",
]

FORMAT, VERSION = "reverie-memories", 1
HEADER = msgspec.json.encode({"format": FORMAT, "version": VERSION}) + b"\n"
BATCH = 200
"""How many memories are read or written in one step."""
ARCHIVE = "archive"
LATEST = 2**53
"""Larger times are not read: JSON readers do not agree on them."""


class OutgoingLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that leads from a memory to another one of the same tenant."""

    relation: Relation
    target_id: str


class ExportedMemory(MemoryItem, frozen=True, kw_only=True):
    """A memory with the links that lead from it: one line of an export."""

    links: tuple[OutgoingLink, ...] = ()


class Place(NamedTuple):
    """How far an export has come."""

    tenant: Tenant
    created_at: int
    written: frozenset[str]
    """The ids of the memories of this tenant and this moment that are exported."""


class NotAnExportError(ReverieError):
    """A file is not an export of memories."""


def check_header(line: bytes) -> None:
    """Refuse a file that does not begin like an export, or that a newer version has written."""
    try:
        header = msgspec.json.decode(line)
    except msgspec.DecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        begin = HEADER.decode().strip()
        raise NotAnExportError(f"is not an export of memories: its first line must be {begin}")
    if header.get("version") != VERSION:
        found = header.get("version")
        raise NotAnExportError(f"has version {found!r} of the format; this Reverie reads version {VERSION}")


def encode_line(item: ExportedMemory) -> bytes:
    """One line of an export."""
    return msgspec.json.encode(item) + b"\n"


def read_line(line: bytes) -> ExportedMemory:
    """The memory of a line; ValueError says what is wrong with it."""
    try:
        item: ExportedMemory = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else "; the line is cut off"
        raise ValueError(f"is no memory: {error}{torn}") from error
    if not item.text.strip():
        raise ValueError("has no text")
    if not 0 <= item.importance <= 1:
        raise ValueError(f"importance = {item.importance}: must be from 0 to 1")
    for name in ("created_at", "valid_from", "valid_to", "expires_at"):
        if abs(getattr(item, name) or 0) > LATEST:
            raise ValueError(f"{name} = {getattr(item, name)}: must be milliseconds since 1970")
    return item


async def export_pages(
    store: ListsMemories,
    *,
    user_id: str | None = None,
    mem_cube_id: str | None = None,
    with_superseded: bool = True,
    place: Place | None = None,
) -> AsyncIterator[list[ExportedMemory]]:
    """The memories of all tenants, or of a user or a cube, from `place` on, about `BATCH` at a time."""
    first = None if place is None else place.tenant
    async for tenant in tenants_of(store, user_id=user_id, mem_cube_id=mem_cube_id, first=first):
        after, written = None, frozenset[str]()
        if place is not None and tenant == first:
            after, written = f"{place.created_at - 1}-{LATEST}", place.written
        while True:
            page = await store.page(
                PageQuery(
                    user_id=tenant[0],
                    mem_cube_id=tenant[1],
                    with_superseded=with_superseded,
                    after=after,
                    limit=BATCH,
                )
            )
            items = [item for item in page.items if item.id not in written]
            yield [await _with_links(store, item, with_superseded=with_superseded) for item in items]
            after = page.next
            if after is None:
                break


async def _with_links(store: ListsMemories, item: MemoryItem, *, with_superseded: bool) -> ExportedMemory:
    found = await store.links(item.user_id, item.id)
    links = [
        OutgoingLink(relation=link.relation, target_id=link.item.id)
        for link in found
        if link.outgoing and (with_superseded or link.item.superseded_by is None)
    ]
    links.sort(key=lambda link: (link.relation, link.target_id))
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    return ExportedMemory(**fields, links=tuple(links))


class Numbered(NamedTuple):
    """A memory and the number of its line."""

    line: int
    item: ExportedMemory


class Importer:
    """Writes the lines of an export into a store; `report` is told which line was not imported, and why."""

    def __init__(
        self,
        store: MemoryStore,
        limits: MessageLimits,
        report: Callable[[int, str], None],
        *,
        user_id: str | None = None,
        mem_cube_id: str | None = None,
    ) -> None:
        """`user_id` and `mem_cube_id` take the place of those in the lines."""
        self._store = store
        self._limits = limits
        self._report = report
        self._user_id = user_id
        self._cube = mem_cube_id
        self._refused: set[tuple[str, str]] = set()
        """User and id of memories whose id is taken by another text."""
        self._problems: list[tuple[int, str]] = []
        self.written = 0
        self.present = 0
        """Memories that were there before."""
        self.failed = 0
        """Lines that were reported."""
        self.links_left_out = 0
        """Links to memories that are not there."""

    async def write_items(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Write the memories of some lines, without their links."""
        for tenant, group in self._by_tenant(lines, is_first_pass=True).items():
            ids = [numbered.item.id for numbered in group]
            known = {item.id: item for item in await self._store.items(tenant, ids)}
            new = [one for one in group if not self._is_known(tenant, one, known.get(one.item.id))]
            if not new:
                continue
            try:
                await self._store.change(tenant, [remember(one.item) for one in new])
            except ValueError:
                new = [one for one in new if await self._write_alone(tenant, one)]
            there = {item.id for item in await self._store.items(tenant, [one.item.id for one in new])}
            for one in new:
                if one.item.id in there:
                    self.written += 1
                else:
                    self._fail(one.line, f"the memory {one.item.id!r} was deleted, and stays deleted")
        self._tell()

    def _is_known(self, tenant: Tenant, one: Numbered, known: MemoryItem | None) -> bool:
        if known is None:
            return False
        if known.text == one.item.text:
            self.present += 1
        else:
            self._refuse(tenant, one, f"the id {one.item.id!r} is taken by a memory with another text")
        return True

    async def _write_alone(self, tenant: Tenant, one: Numbered) -> bool:
        """Write one memory; report it if its id is taken."""
        try:
            await self._store.change(tenant, [remember(one.item)])
        except ValueError as error:
            self._refuse(tenant, one, str(error))
            return False
        return True

    async def write_links(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Write the links and the successors of memories that `write_items` has written."""
        for tenant, lines_of_tenant in self._by_tenant(lines, is_first_pass=False).items():
            group = [one for one in lines_of_tenant if one.item.links or one.item.superseded_by]
            known = await self._known(tenant, group)
            group = [one for one in group if self._is_there(tenant, one.item.id, known)]
            for one in group:
                self._note_missing(tenant, one, known)
            try:
                await self._store.change(
                    tenant, [e for one in group for e in self._joins(tenant, one, known)]
                )
            except (ValueError, VersionConflictError):
                await self._join_alone(tenant, group)
        self._tell()

    async def _join_alone(self, tenant: Tenant, group: Sequence[Numbered]) -> None:
        """Write the links of memories one by one; report those that cannot be written."""
        for one in group:
            known = await self._known(tenant, [one])
            try:
                await self._store.change(tenant, self._joins(tenant, one, known))
            except (ValueError, VersionConflictError) as error:
                self._fail(one.line, f"links of {one.item.id!r}: {error}")

    async def _known(self, tenant: Tenant, group: Sequence[Numbered]) -> dict[str, MemoryItem]:
        """The memories that are there of a group, of the targets of its links, and of its successors."""
        ids = {
            memory_id
            for one in group
            for memory_id in (
                one.item.id,
                one.item.superseded_by,
                *(link.target_id for link in one.item.links),
            )
            if memory_id is not None
        }
        return {item.id: item for item in await self._store.items(tenant, sorted(ids))}

    def _is_there(self, tenant: Tenant, memory_id: str, known: Mapping[str, MemoryItem]) -> bool:
        return memory_id in known and (tenant[0], memory_id) not in self._refused

    def _note_missing(self, tenant: Tenant, one: Numbered, known: Mapping[str, MemoryItem]) -> None:
        """Count the links that lead nowhere, and report a successor that is not there."""
        self.links_left_out += sum(
            not self._is_there(tenant, link.target_id, known) for link in one.item.links
        )
        successor = one.item.superseded_by
        if successor is not None and not self._is_there(tenant, successor, known):
            where = "is in the archive, because its successor"
            self._fail(one.line, f"the memory {one.item.id!r} {where} {successor!r} is not there")

    def _joins(self, tenant: Tenant, one: Numbered, known: Mapping[str, MemoryItem]) -> list[Effect]:
        """The effects that link a memory and let its successor take its place."""
        item, mine = one.item, known[one.item.id]
        effects: list[Effect] = [
            Link(source_id=item.id, relation=link.relation, target_id=link.target_id)
            for link in item.links
            if self._is_there(tenant, link.target_id, known)
        ]
        successor = item.superseded_by
        if (
            successor is None
            or mine.superseded_by is not None
            or not self._is_there(tenant, successor, known)
        ):
            return effects
        effects.append(Supersede(memory_id=item.id, version=mine.version, successor=successor))
        if mine.tier != item.tier:
            effects.append(Move(memory_id=item.id, version=mine.version, tier=item.tier))
        return effects

    def _by_tenant(
        self, lines: Iterable[tuple[int, bytes]], *, is_first_pass: bool
    ) -> dict[Tenant, list[Numbered]]:
        """The memories of lines, by the tenant that they are imported for; bad lines are reported once."""
        groups: dict[Tenant, list[Numbered]] = {}
        for line, text in lines:
            if not text.strip():
                continue
            try:
                item = self._checked(read_line(text))
            except (ValueError, ReverieError) as error:
                if is_first_pass:
                    self._fail(line, str(error))
                continue
            groups.setdefault((item.user_id, item.mem_cube_id), []).append(Numbered(line, item))
        return groups

    def _checked(self, item: ExportedMemory) -> ExportedMemory:
        """The memory for the user and the cube that it is imported for; an error if it cannot be kept."""
        user = self._user_id or item.user_id
        cube = self._cube or (user if item.mem_cube_id == item.user_id else item.mem_cube_id)
        check_ids(self._limits, user_id=user, mem_cube_id=cube)
        if user != SYSTEM_USER and (user.startswith("_") or cube.startswith("_")):
            field, value = ("user_id", user) if user.startswith("_") else ("mem_cube_id", cube)
            raise InvalidMessageError(field, value, "ids that begin with _ are reserved")
        check_effect(remember(item), self._limits)
        for link in item.links:
            check_ids(self._limits, target_id=link.target_id)
        return msgspec.structs.replace(item, user_id=user, mem_cube_id=cube)

    def _refuse(self, tenant: Tenant, one: Numbered, reason: str) -> None:
        self._refused.add((tenant[0], one.item.id))
        self._fail(one.line, reason)

    def _fail(self, line: int, reason: str) -> None:
        self.failed += 1
        self._problems.append((line, reason))

    def _tell(self) -> None:
        """Report the problems of a batch, in the order of the lines."""
        for line, reason in sorted(self._problems):
            self._report(line, reason)
        self._problems = []


def remember(item: ExportedMemory) -> Remember:
    """The effect that writes a memory.

    A superseded one is written into the archive first: in its own tier it would count until its successor
    takes its place, and might push another memory out.
    """
    return Remember(
        memory_id=item.id,
        text=item.text,
        kind=item.kind,
        tier=item.tier if item.superseded_by is None else ARCHIVE,
        type=item.type,
        title=item.title,
        narrative=item.narrative,
        facts=item.facts,
        concepts=item.concepts,
        session_id=item.session_id,
        device_id=item.device_id,
        agent_id=item.agent_id,
        domain=item.domain,
        tags=item.tags,
        info=item.info,
        sources=item.sources,
        importance=item.importance,
        valid_from=item.valid_from,
        valid_to=item.valid_to,
        expires_at=item.expires_at,
        learned_at=item.created_at or None,
    )


_decode = msgspec.json.Decoder(ExportedMemory).decode
