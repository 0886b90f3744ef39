"""For whoever operates it: `/health`, `/ready`, `/alerts`, `/metrics`. They answer plain JSON, or text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, Response

from reverie.api.readiness import check_dependencies
from reverie.errors import BackendUnavailableError
from reverie.observe.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from reverie.face.scheduler import AsyncScheduler

__all__ = ["operation_routes"]


def operation_routes(scheduler: AsyncScheduler, *, with_worker: bool) -> APIRouter:
    """The routes, bound to one scheduler; `with_worker` says whether this process should run a worker."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """How the queue is; 503 if it cannot be asked."""
        return _json(await scheduler.observe.health())

    @routes.get("/ready")
    async def ready() -> Response:
        """Whether this process can do its work, and which thing it depends on is missing."""
        dependencies = await check_dependencies(scheduler.runtime, with_worker=with_worker)
        is_ready = all(dependency.ok for dependency in dependencies)
        state = _json({"ready": is_ready, "dependencies": dependencies}, 200 if is_ready else 503)
        if not is_ready:
            state.headers["retry-after"] = f"{BackendUnavailableError.retry_after_s:g}"
        return state

    @routes.get("/alerts")
    async def alerts() -> Response:
        """What is wrong now, worst first, and what to do about it."""
        return _json({"alerts": await scheduler.observe.alerts()})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Counts and durations for Prometheus."""
        return Response(await scheduler.observe.metrics(), media_type=CONTENT_TYPE)

    return routes


def _json(value: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(value), code, media_type="application/json")
