"""An entry of the route table, and the route that FastAPI makes of it."""

from __future__ import annotations

import inspect
import json
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import msgspec
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from reverie.api.repeatable import IDEMPOTENCY_HEADER
from reverie.errors import BackendUnavailableError, BoundKeyError, ReverieError
from reverie.message import depth_exceeds
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping

    from starlette.types import Message, Receive, Scope, Send

    from reverie.api.repeatable import Repeatable
    from reverie.face.scheduler import AsyncScheduler

__all__ = [
    "Endpoint",
    "Example",
    "JsonRequest",
    "NamesUsers",
    "Reach",
    "Route",
    "Touched",
    "once_more",
]

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Body = Literal["json", "form", "multipart"]

Reach = Literal["named", "all", "own", "open"]
"""Whose data a route touches.

named: the users that the request names; they are checked here, before the function is called.
all: every user; a key that is bound to users or cubes is refused.
own: the users of the caller; the function itself keeps to them.
open: nobody's data; the route needs no key.
"""

CONTENT_TYPES: dict[Body, str] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
}
BODY_NAMES: dict[Body, str] = {"json": "JSON", "form": "a form", "multipart": "a multipart form"}


class Touched(NamedTuple):
    """A user whose data a request touches, and the cubes that it names."""

    user_id: str | None
    """None: the request names no user, and is about all of them."""
    cubes: tuple[str, ...] = ()
    whole: bool = False
    """Whether it touches all cubes of the user, so that a key that is bound to some is refused."""


@runtime_checkable
class NamesUsers(Protocol):
    """The body of a request that names users."""

    def touched(self) -> Iterable[Touched]:
        """The users and cubes that the request names."""
        ...


@dataclass(frozen=True, kw_only=True)
class Example:
    """A request that a route answers with success, for the document. Tests send it."""

    path: Mapping[str, str] = field(default_factory=dict)
    """The parts of the path, by name."""
    query: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the query, by name."""
    body: Any = None


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
    reach: Reach = "named"
    answer: Any
    """The type of `data` in a successful answer `{code, message, data}`; a tuple: one of these types."""
    errors: tuple[type[ReverieError], ...] = (BackendUnavailableError,)
    """The errors that the function may raise; `HTTP_STATUS` has their status."""
    bodies: tuple[Body, ...] = ("json",)
    """The kinds of body that the route takes, if it takes one."""
    plain: bool = False
    """Whether `answer` is the type of the whole answer, which has no `code` and `message`."""
    media_type: str = "application/json"
    """The content type of a successful answer."""
    events: Any = None
    """The type of one event, for a route that answers with a stream of events if the request asks for it."""
    example: Example = Example()
    other_answers: Mapping[int, Any] = field(default_factory=dict)
    """HTTP status → type of the whole answer, for failures that have another shape than errors have."""


class JsonRequest(Request):
    """A request whose body is read quickly: the event loop serves nobody else meanwhile."""

    async def json(self) -> Any:
        """The value of the body; the standard library's error if it is no JSON."""
        return self.decode(await self.body())

    def decode(self, body: bytes) -> Any:
        """The value of this body; see `json`."""
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = json.loads(body)  # it says at which place the body stops being JSON
        depth = self.state.max_json_depth
        if depth is not None and depth_exceeds(value, depth):
            raise HTTPException(400, f"the body is nested more than {depth} deep: this key allows no more")
        return value


class Endpoint(APIRoute):
    """A route of the table, bound to one scheduler.

    Before the body is read, it refuses a caller whose role is too weak and a kind of body it does not take.
    """

    def __init__(
        self,
        route: Route,
        scheduler: AsyncScheduler,
        repeatable: Repeatable,
        allowed: Iterable[Method] = (),
    ) -> None:
        """`allowed` are all methods of the path."""
        self._route = route
        self.method = route.method
        self._repeatable = repeatable
        self.call = _checked(route, scheduler)
        """The function of the route without its first parameter; it refuses what the caller may not touch."""
        super().__init__(
            route.path,
            self.call,
            methods=[route.method],
            name=route.function.__name__,
            description=inspect.getdoc(route.function),
            response_model=None,
            response_class=Response,
        )
        self.reader = BodyReader.of(route)
        self._allowed = ", ".join(allowed or (route.method,))
        self._taken = frozenset(CONTENT_TYPES[body] for body in route.bodies)
        self._ways = " or ".join(
            f"{BODY_NAMES[body]}, 'Content-Type: {CONTENT_TYPES[body]}'" for body in route.bodies
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive)
            key = request.headers.get(IDEMPOTENCY_HEADER)
            if key is None or self._route.method == "GET":
                return await handle(request)
            return await self._repeatable.answer(key, request, handle)

        return handle_json

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose path has matched; one with another method is answered 405."""
        if scope["method"] != self.method:
            raise HTTPException(405, headers={"allow": self._allowed})
        self.check(scope)
        await self.app(scope, receive, send)

    def check(self, scope: Scope) -> None:
        """Refuse a caller whose role is too weak, and a kind of body that the route does not take."""
        route = self._route
        if route.reach != "open":
            principal = current_principal.get()
            principal.check_role(route.role)
            if route.reach == "all" and principal.is_bound:
                raise BoundKeyError
        if route.method == "GET":
            return
        headers = dict(reversed(scope["headers"]))  # the first of several counts
        kind_given = headers.get(b"content-type", b"")
        if kind_given == b"application/json" and "application/json" in self._taken:
            return
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
            given = kind_given.decode("latin-1")
            kind = given.partition(";")[0].strip().lower()
            if kind.startswith("application/") and kind.endswith("+json"):
                kind = CONTENT_TYPES["json"]
            if kind not in self._taken:
                raise HTTPException(415, f"a body of type {given!r} is not taken: send {self._ways}")


class BodyReader:
    """Reads the request of a function that takes one model, and perhaps the request itself."""

    def __init__(self, model: inspect.Parameter, requests: list[inspect.Parameter]) -> None:
        self._name = model.name
        self._model = TypeAdapter(model.annotation)
        self._requests = [parameter.name for parameter in requests]

    @classmethod
    def of(cls, route: Route) -> BodyReader | None:
        """The reader of a route; None if its function takes anything else."""
        parameters = list(inspect.signature(route.function, eval_str=True).parameters.values())[1:]
        requests = [parameter for parameter in parameters if parameter.annotation is Request]
        others = [parameter for parameter in parameters if parameter.annotation is not Request]
        kinds = [parameter.annotation for parameter in others]
        if route.bodies != ("json",) or len(kinds) != 1 or not inspect.isclass(kinds[0]):
            return None
        return cls(others[0], requests) if issubclass(kinds[0], BaseModel) else None

    def read(self, request: JsonRequest, body: bytes) -> dict[str, Any]:
        """The arguments of the function; `ValueError` if the body is no JSON or not what the model wants."""
        value = self._model.validate_python(request.decode(body))
        return {self._name: value, **dict.fromkeys(self._requests, request)}


def once_more(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with a body that was read before."""
    unread = [body]

    async def receive_again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return receive_again


USER_NAMES = ("user_id", "user_name")
"""The fields of a query that name a user; `mem_cube_id` beside them names a cube."""


def _checked(route: Route, scheduler: AsyncScheduler) -> Callable[..., Awaitable[Response]]:
    """The function of a route, which refuses users and cubes that the caller may not touch."""
    signature = inspect.signature(route.function, eval_str=True)
    parameters = list(signature.parameters.values())[1:]
    if route.reach == "named" and not any(map(_names_user, parameters)):
        raise TypeError(f"{route.method} {route.path} names no user: give its Route another reach")

    async def call(**values: Any) -> Response:
        if route.reach == "named":
            principal = current_principal.get()
            if principal.is_bound:
                for user_id, cubes, whole in _touched(values):
                    if user_id is None:
                        raise BoundKeyError
                    principal.check_touch(user_id, cubes)
                    if whole and principal.cubes is not None:
                        raise BoundKeyError
        return await route.function(scheduler, **values)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def _names_user(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    kinds = [kind]
    while kind_args := get_args(kind):  # Annotated[Model | None, …]
        kinds += kind_args
        kind = kind_args[0]
    return parameter.name in USER_NAMES or any(hasattr(kind, "touched") for kind in kinds)


def _touched(values: Mapping[str, Any]) -> Iterator[Touched]:
    """The users and cubes that the arguments of a call name."""
    for name in USER_NAMES:
        if name in values:
            cube = values.get("mem_cube_id")
            yield Touched(values[name], () if cube is None else (cube,))
    bodies = [value for value in values.values() if isinstance(value, NamesUsers)]
    for body in bodies:
        yield from body.touched()
    if not bodies and not any(name in values for name in USER_NAMES):  # a body that may be left out
        yield Touched(None)
