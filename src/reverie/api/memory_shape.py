"""A memory in the shape that clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.base.clock import from_epoch_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.api.answers import FoundInCube, FoundMemory, RelatedMemory
    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Hit

__all__ = ["TYPE_OF_KIND", "TYPE_OF_TIER", "found_by_cube", "found_memory", "memory_of", "type_of"]

TYPE_OF_TIER = {
    "working": "WorkingMemory",
    "long_term": "LongTermMemory",
    "archive": "ArchivedMemory",
    "activation": "ActivationMemory",
    "parameter": "ParameterMemory",
}
"""tier → `memory_type`, for kinds that have no `memory_type` of their own."""
TYPE_OF_KIND = {"profile": "UserMemory", "preference": "PreferenceMemory"}
"""kind → `memory_type`, whatever the tier."""


def type_of(item: MemoryItem) -> str:
    """The `memory_type` of a memory."""
    return TYPE_OF_KIND.get(item.kind) or TYPE_OF_TIER.get(item.tier, item.tier)


def memory_of(item: MemoryItem) -> FoundMemory:
    """A memory with all that is known of it."""
    return {
        "id": item.id,
        "memory": item.text,
        "ref_id": f"[{item.id.partition('-')[0]}]",
        "metadata": {
            "memory_type": type_of(item),
            "kind": item.kind,
            "tier": item.tier,
            "status": item.status,
            "superseded_by": item.superseded_by,
            "user_id": item.user_id,
            "session_id": item.session_id,
            "device_id": item.device_id,
            "agent_id": item.agent_id,
            "tags": list(item.tags),
            "info": item.info,
            "sources": [msgspec.structs.asdict(source) for source in item.sources],
            "importance": item.importance,
            "version": item.version,
            "created_at": _iso(item.created_at) or "",
            "updated_at": _iso(item.updated_at) or "",
            "valid_from": _iso(item.valid_from),
            "valid_to": _iso(item.valid_to),
            "usage": [],
            "embedding": [],
            "background": "",
        },
    }


def found_memory(hit: Hit, *, related: bool) -> FoundMemory:
    """A hit of a search; with `related`, also the memories around it and those that links lead to."""
    memory = memory_of(hit.item)
    metadata = memory["metadata"]
    metadata["relativity"] = hit.score
    if hit.signals is not None:
        metadata["signals"] = hit.signals
    if related:
        metadata["neighbours"] = [_related(item) for item in hit.neighbours]
        metadata["linked"] = [_related(item) for item in hit.linked]
    return memory


def found_by_cube(hits: Iterable[Hit], *, related: bool) -> list[FoundInCube]:
    """Hits by cube, best first, in the order of the best hit of each cube."""
    cubes: dict[str, list[FoundMemory]] = {}
    for hit in hits:
        cubes.setdefault(hit.item.mem_cube_id, []).append(found_memory(hit, related=related))
    return [
        {"cube_id": cube, "memories": memories, "total_nodes": len(memories)}
        for cube, memories in cubes.items()
    ]


def _related(item: MemoryItem) -> RelatedMemory:
    return {"id": item.id, "memory": item.text}


def _iso(moment: int | None) -> str | None:
    """A moment as text; None also for one that no calendar has, such as the end of time."""
    try:
        return None if moment is None else from_epoch_ms(moment).isoformat()
    except OverflowError:
        return None
