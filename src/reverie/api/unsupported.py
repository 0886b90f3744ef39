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

REASONS = {
    "chat/stream/playground": "there is no playground: use /product/chat/stream",
    "chat/stream/business_user": "there are no business users: use /product/chat/stream",
    "get_memory_dashboard": "the dashboard of MemOS is not here: use /product/get_memory",
    "delete_memory_by_record_id": "memories have no records: use /product/delete_memory with memory_ids",
    "recover_memory_by_record_id": "what was deleted is gone for good, and nothing brings it back",
}
"""Path below `/product` → why it is not served."""


def _refusing(path: str, reason: str) -> Callable[..., Awaitable[Response]]:
    async def refuse(scheduler: AsyncScheduler) -> Response:  # noqa: ARG001
        raise NotSupportedError(f"/product/{path}", reason)

    refuse.__name__ = path.replace("/", "_")
    refuse.__doc__ = f"Not served: {reason}."
    return refuse


ROUTES = tuple(
    Route(
        "POST",
        f"/product/{path}",
        _refusing(path, reason),
        role=Role.READ_ONLY,
        reach="own",
        answer=None,
        errors=(NotSupportedError,),
    )
    for path, reason in REASONS.items()
)
