"""An entry of the route table, and the route that FastAPI makes of it."""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastapi import HTTPException, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from reverie.errors import BackendUnavailableError, ReverieError, RoleError
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from reverie.face.scheduler import AsyncScheduler

__all__ = ["Endpoint", "Route"]

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Body = Literal["json", "form", "multipart"]

CONTENT_TYPES: dict[Body, str] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
}
BODY_NAMES: dict[Body, str] = {"json": "JSON", "form": "a form", "multipart": "a multipart form"}


@dataclass(frozen=True)
class Route:
    """One entry of the table: the application, its OpenAPI document and its rights are made from it."""

    method: Method
    path: str
    function: Callable[..., Awaitable[Response]]
    """Called with the scheduler and what the request carries: the other parameters are the model of the
    body, parts of the path and fields of the query. FastAPI reads and checks them."""
    _: KW_ONLY
    role: Role
    """The weakest role that may ask."""
    answer: Any
    """The type of `data` in a successful answer `{code, message, data}`."""
    errors: tuple[type[ReverieError], ...] = (BackendUnavailableError,)
    """The errors that the function may raise; `HTTP_STATUS` has their status."""
    bodies: tuple[Body, ...] = ("json",)
    """The kinds of body that the route takes, if it takes one."""
    plain: bool = False
    """Whether `answer` is the type of the whole answer, which has no `code` and `message`."""
    media_type: str = "application/json"
    """The content type of a successful answer."""
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    """HTTP status → type of the whole answer, for failures that have another shape than errors have."""


class Endpoint(APIRoute):
    """A route of the table, bound to one scheduler.

    Before the body is read, it refuses a caller whose role is too weak and a kind of body it does not take.
    """

    def __init__(self, route: Route, scheduler: AsyncScheduler) -> None:
        super().__init__(
            route.path,
            partial(route.function, scheduler),
            methods=[route.method],
            name=route.function.__name__,
            description=inspect.getdoc(route.function),
            response_model=None,
            response_class=Response,
        )
        self._route = route
        self._taken = frozenset(CONTENT_TYPES[body] for body in route.bodies)
        self._ways = " or ".join(
            f"{BODY_NAMES[body]}, 'Content-Type: {CONTENT_TYPES[body]}'" for body in route.bodies
        )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose path has matched; one with another method is answered 405."""
        route = self._route
        if scope["method"] != route.method:
            await super().handle(scope, receive, send)
            return
        role = current_principal.get().role
        if role < route.role:
            raise RoleError(role.name.lower(), route.role.name.lower())
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if has_body and route.method != "GET":
            given = headers.get("content-type", "")
            kind = given.partition(";")[0].strip().lower()
            if kind.startswith("application/") and kind.endswith("+json"):
                kind = CONTENT_TYPES["json"]
            if kind not in self._taken:
                raise HTTPException(415, f"a body of type {given!r} is not taken: send {self._ways}")
        await self.app(scope, receive, send)
