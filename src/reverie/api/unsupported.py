"""Routes of MemOS that make no sense here: they are known, and answer why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response

from reverie.api.routing import Route
from reverie.errors import NotSupportedError
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["REASONS", "ROUTES"]

PRODUCT = "/product"
OPENMEM = "/api/openmem/v1"
NO_BASES = "there are no knowledge bases: add texts with add/message"
NO_PROFILES = "there are no profiles by template: what is known of a user is in the user's memories"
REASONS = {
    f"{PRODUCT}/chat/stream/playground": "there is no playground: use /product/chat/stream",
    f"{PRODUCT}/chat/stream/business_user": "there are no business users: use /product/chat/stream",
    f"{PRODUCT}/get_memory_dashboard": "the dashboard of MemOS is not here: use /product/get_memory",
    f"{PRODUCT}/delete_memory_by_record_id": (
        "memories have no records: use /product/delete_memory with memory_ids"
    ),
    f"{PRODUCT}/recover_memory_by_record_id": "what was deleted is gone for good, and nothing brings it back",
    f"{OPENMEM}/create/knowledgebase": NO_BASES,
    f"{OPENMEM}/delete/knowledgebase": NO_BASES,
    f"{OPENMEM}/add/knowledgebase-file": NO_BASES,
    f"{OPENMEM}/get/knowledgebase-file": NO_BASES,
    f"{OPENMEM}/delete/knowledgebase-file": NO_BASES,
    f"{OPENMEM}/extract/memory": "nothing is extracted that is not kept: use add/message",
    f"{OPENMEM}/rerank": "only hits of a search are reranked: use search/memory",
    f"{OPENMEM}/bind/profile_template": NO_PROFILES,
    f"{OPENMEM}/edit/profile": NO_PROFILES,
    f"{OPENMEM}/delete/profile": NO_PROFILES,
}
"""Path → why it is not served."""


def _refusing(path: str, reason: str) -> Callable[..., Awaitable[Response]]:
    async def refuse(scheduler: AsyncScheduler) -> Response:  # noqa: ARG001
        raise NotSupportedError(path, reason)

    refuse.__name__ = path.removeprefix(PRODUCT).strip("/").replace("/", "_").replace("-", "_")
    refuse.__doc__ = f"Not served: {reason}."
    return refuse


ROUTES = tuple(
    Route(
        "POST",
        path,
        _refusing(path, reason),
        role=Role.READ_ONLY,
        reach="own",
        answer=None,
        errors=(NotSupportedError,),
        bodies=("json", "form", "multipart"),
    )
    for path, reason in REASONS.items()
)
