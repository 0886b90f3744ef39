"""Reading items from rows of `memory_items`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.effect import Source
from reverie.memory.item import MemoryItem
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decode_json", "item_of", "load_statements", "to_json"]

ITEM_COLUMNS = (
    "i.id, i.user_id, i.project_id, i.text, i.kind, i.tier, i.type, i.title, i.narrative, i.facts, "
    "i.concepts, i.server_session_id, i.device_id, i.agent_id, i.domain, i.tags, i.info, i.sources, "
    "i.importance, i.created_at_epoch, i.updated_at_epoch, i.valid_from_epoch, i.valid_to_epoch, "
    "i.expires_at_epoch, i.version, i.superseded_by, i.access_count, i.accessed_at_epoch"
)
"""The columns that `item_of` reads, in this order; statements name them `item_columns`."""


def load_statements(filename: str) -> dict[str, str]:
    """The statements of a file, with the columns of an item in place of `item_columns`."""
    statements = load_queries(__package__ or "", filename)
    return {name: text.replace("item_columns", ITEM_COLUMNS) for name, text in statements.items()}


def item_of(row: tuple[Any, ...]) -> MemoryItem:
    """The item of a row of `item_columns`."""
    (
        item_id, user_id, cube, text, kind, tier, type_, title, narrative, facts, concepts, session, device,
        agent, domain, tags, info, sources, importance, created, updated, valid_from, valid_to, expires,
        version, superseded_by, access_count, accessed_at,
    ) = row  # fmt: skip
    return MemoryItem(
        id=item_id,
        user_id=user_id,
        mem_cube_id=cube,
        text=text,
        kind=kind,
        tier=tier,
        type=type_,
        title=title,
        narrative=narrative,
        facts=_texts(facts) if facts else (),
        concepts=_texts(concepts) if concepts else (),
        session_id=session,
        device_id=device,
        agent_id=agent,
        domain=domain,
        tags=_texts(tags),
        info=None if info is None else msgspec.json.decode(info),
        sources=_sources(sources),
        importance=importance,
        created_at=created,
        updated_at=updated,
        valid_from=valid_from,
        valid_to=valid_to,
        expires_at=expires,
        version=version,
        superseded_by=superseded_by,
        access_count=access_count,
        accessed_at=accessed_at,
        status="archived" if tier == "archive" or superseded_by is not None else "activated",
    )


_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_texts = msgspec.json.Decoder(tuple[str, ...]).decode


def to_json(value: Any) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()


decode_json: Callable[[str], Any] = msgspec.json.Decoder().decode
