"""Operation: `/health`, `/ready`, `/alerts` and `/metrics`, which answer plain JSON or text."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from reverie.api.readiness import check_dependencies
from reverie.api.routing import Route
from reverie.api.task_answers import Alerts, Readiness, Wellbeing
from reverie.base.escapes import escape_json
from reverie.errors import BackendUnavailableError
from reverie.face.scheduler import AsyncScheduler
from reverie.observe.health import Health
from reverie.observe.metrics import CONTENT_TYPE
from reverie.principal import Role, current_principal

__all__ = ["ROUTES"]


async def health(scheduler: AsyncScheduler) -> Response:
    """The state of the queue; 503 if the queue cannot be asked.

    A caller whose key is bound to some users, and one without a key on a server that has keys, learns only
    whether the queue is well.
    """
    if current_principal.get().is_bound:
        is_well = all(alert.level != "error" for alert in await scheduler.observe.alerts())
        return _json(Wellbeing(status="ok" if is_well else "unwell"))
    return _json(await scheduler.observe.health())


async def ready(scheduler: AsyncScheduler, request: Request) -> Response:
    """Whether this process can do its work, and which thing it depends on is missing."""
    run_worker: bool = request.app.state.run_worker
    dependencies = await check_dependencies(scheduler.runtime, with_worker=run_worker)
    is_ready = all(dependency.ok for dependency in dependencies)
    state: Readiness = {"ready": is_ready, "dependencies": dependencies}
    if is_ready:
        return _json(state)
    return _json(state, 503, {"retry-after": f"{BackendUnavailableError.retry_after_s:g}"})


async def alerts(scheduler: AsyncScheduler) -> Response:
    """What is wrong now, worst first, and what to do about it."""
    found: Alerts = {"alerts": await scheduler.observe.alerts()}
    return _json(found)


async def metrics(scheduler: AsyncScheduler) -> Response:
    """Counts and durations for Prometheus."""
    return Response(await scheduler.observe.metrics(), media_type=CONTENT_TYPE)


def _json(value: Any, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(escape_json(msgspec.json.encode(value)), code, headers, media_type="application/json")


ROUTES = (
    Route(
        "GET", "/health", health, role=Role.READ_ONLY, reach="open", answer=(Health, Wellbeing), plain=True
    ),
    Route(
        "GET",
        "/ready",
        ready,
        role=Role.READ_ONLY,
        reach="all",
        answer=Readiness,
        plain=True,
        errors=(),
        other_answers={503: Readiness},
    ),
    Route("GET", "/alerts", alerts, role=Role.READ_ONLY, reach="all", answer=Alerts, plain=True),
    Route(
        "GET",
        "/metrics",
        metrics,
        role=Role.READ_ONLY,
        reach="all",
        answer=str,
        plain=True,
        media_type="text/plain",
    ),
)
