"""The HTTP server: one application from the route table, its life cycle, and the process that serves it."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import signal
import socket
import ssl
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from reverie.api.admission import Admission
from reverie.api.document import complete_document
from reverie.api.door import Door
from reverie.api.envelope import handle_errors
from reverie.api.pages import PAGE_PATHS, page_routes
from reverie.api.protocol import timed_protocol
from reverie.api.repeatable import Repeatable
from reverie.api.routes import ROUTES
from reverie.api.routing import Endpoint
from reverie.api.short_way import ExactPaths, ShortWay
from reverie.base.logs import get_logger
from reverie.errors import InvalidSettingError
from reverie.mcp.http import mcp_route
from reverie.principal import LOCAL_ADMIN
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.types import ASGIApp

    from reverie.api.routing import Route
    from reverie.face.scheduler import AsyncScheduler
    from reverie.principal import Principal
    from reverie.settings import ServerSettings

__all__ = ["create_app", "serve"]

log = get_logger(__name__)

Address = tuple[str, int]

OPEN_FILES = 65_536
"""The limit of open files to ask for. The usual 1024 would be used up by a thousand waiting clients."""
LAST_PORT = 65_535
OPEN_PATHS = ("/openapi.json", *PAGE_PATHS)
"""Paths beside the open routes that need no key: they describe the API, and have nobody's data."""
LAST_ANSWERS_S = 30
"""How many seconds the server waits at its stop for answers that have begun."""


def create_app(
    scheduler: AsyncScheduler,
    *,
    run_worker: bool = True,
    routes: Sequence[Route] = ROUTES,
    caller: Principal = LOCAL_ADMIN,
    reached_from_elsewhere: bool = False,
) -> FastAPI:
    """Make the application of one scheduler. The application starts and stops the scheduler.

    Without `run_worker`, the scheduler runs no handlers and fires no triggers. `caller` is the principal of
    every request, as long as there are no keys. An application that is `reached_from_elsewhere`, not only on
    loopback, is asked under names that it does not know.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if run_worker:
            await scheduler.start()
        else:
            await scheduler.runtime.start({"ingest", "watch"})
        scheduler.runtime.measure()
        yield
        await scheduler.stop()

    repeatable = Repeatable()
    endpoints = [
        Endpoint(route, scheduler, repeatable, [other.method for other in routes if other.path == route.path])
        for route in routes
    ]
    server = scheduler.runtime.settings.server
    stopping = asyncio.Event()

    def around(application: ASGIApp) -> Door:
        return Door(
            ShortWay(endpoints, application),
            admission=Admission(
                scheduler.runtime,
                caller=caller,
                open_paths={*OPEN_PATHS, *(route.path for route in routes if route.reach == "open")},
                requests_per_s=server.requests_per_s,
            ),
            allowed_hosts=[server.host, *server.allowed_hosts],
            max_body_bytes=server.max_body_bytes,
            receive_timeout_s=server.receive_timeout_s,
            stopping=stopping,
            checks_host=not reached_from_elsewhere,
            headers=((b"strict-transport-security", b"max-age=31536000"),) if server.tls_certificate else (),
        )

    app = _Application(
        routes,
        around,
        title="Reverie",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would see what users say
    )
    app.state.stopping = stopping
    app.state.run_worker = run_worker
    app.state.streams = Counter[str]()  # key id → streams of events that are open
    app.router.routes.extend(endpoints)
    app.router.middleware_stack = ExactPaths(endpoints, app.router.middleware_stack)
    app.router.routes.append(mcp_route(scheduler))
    app.router.routes.extend(page_routes())
    handle_errors(app)
    return app


class _Application(FastAPI):
    """A FastAPI application whose document is completed from the route table."""

    def __init__(self, routes: Sequence[Route], around: Callable[[ASGIApp], ASGIApp], **options: Any) -> None:
        """`around` puts the door and the short way around all layers of FastAPI."""
        super().__init__(**options)
        self._around = around
        self._table = routes
        self._document: dict[str, Any] | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """See `FastAPI.build_middleware_stack`."""
        return self._around(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, built on the first call."""
        if self._document is None:
            self._document = complete_document(super().openapi(), self._table)
        return self._document


def serve(
    scheduler: AsyncScheduler,
    *,
    host: str,
    port: int,
    run_worker: bool,
    announce: Callable[[str], None],
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    `announce` is called with the address once the server listens, `on_start` on the event loop once the
    scheduler has started.
    """
    _allow_open_files(OPEN_FILES)
    settings = scheduler.runtime.settings.server
    context = _tls(settings)
    address = _address_of(host, port)
    has_keys = asyncio.run(_try_out(scheduler))
    is_loopback = ipaddress.ip_address(address[0]).is_loopback
    if not is_loopback:
        _check_exposed(host, has_keys=has_keys, has_tls=context is not None)
    listener = _listen(host, address)
    name, port = listener.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    app = create_app(scheduler, run_worker=run_worker, reached_from_elsewhere=not is_loopback)
    server = _Server(app, on_start, settings.receive_timeout_s, context)

    def stop(*_: object) -> None:
        """Stop the server. This handles signals that come before uvicorn handles them itself.

        After a clean stop, uvicorn raises the signals that it received again. They end here and are no error.
        """
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    announce(f"{'https' if context else 'http'}://{shown}:{port}")
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that, when it stops, tells long answers to end."""

    def __init__(
        self,
        app: FastAPI,
        on_start: Callable[[], None],
        receive_timeout_s: float,
        context: ssl.SSLContext | None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=timed_protocol(receive_timeout_s),
            log_config=None,
            access_log=False,  # it would name what is asked for
            lifespan="on",
            timeout_graceful_shutdown=LAST_ANSWERS_S,
            server_header=False,
            proxy_headers=False,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        super().__init__(config)
        self._stopping: asyncio.Event = app.state.stopping
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, listen, then call `on_start`."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell long answers to end, wait for them, then stop the application."""
        self._stopping.set()
        await super().shutdown(sockets)


def _allow_open_files(wanted: int) -> None:
    """Raise the limit of open files to `wanted`, or as far as the system allows. Each client needs a file."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def _try_out(scheduler: AsyncScheduler) -> bool:
    """Open the backend and close it again: if it cannot be used, the start fails with one clear error.

    The answer is whether an API key was ever made.
    """
    await scheduler.open()
    has_keys = await scheduler.keys.ever_made()
    await scheduler.stop()
    return has_keys


def _address_of(host: str, port: int) -> Address:
    """The address of a host name, as sockets want it."""
    if not 0 <= port <= LAST_PORT:
        raise InvalidSettingError("server.port", port, f"must be a whole number, 0 to {LAST_PORT}")
    try:
        _, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidSettingError("server.host", host, f"is no address: {error.strerror}") from error
    except UnicodeError as error:
        reason = "is no address: it has a part that is empty, longer than 63 letters, or no text"
        raise InvalidSettingError("server.host", host, reason) from error
    return str(address[0]), port


def _check_exposed(host: str, *, has_keys: bool, has_tls: bool) -> None:
    """Refuse to serve other machines without API keys, and warn if that is not encrypted."""
    if not has_keys:
        reason = (
            "can be reached by other machines, and everybody there would be an administrator: "
            "make a key first, with reverie keys create, or listen on 127.0.0.1"
        )
        raise InvalidSettingError("server.host", host, reason)
    if not has_tls:
        hint = "set server.tls_certificate and server.tls_key, or let a proxy on this machine encrypt"
        log.warning("server.not_encrypted", host=host, hint=hint)


def _listen(host: str, address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        listener = socket.create_server(address, family=family)
    except OSError as error:
        reason = f"cannot listen on {host}: {error.strerror}; stop what uses it or choose another with --port"
        raise InvalidSettingError("server.port", address[1], reason) from error
    # Connections inherit this option. asyncio does not set it for a socket that it was given: the body of an
    # answer, sent after its head, would wait up to 40 ms until the client acknowledges the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    """What encrypts connections; None if no certificate is set."""
    if settings.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = f"cannot be used, with its key server.tls_key: {error.strerror or error}"
        raise InvalidSettingError("server.tls_certificate", str(settings.tls_certificate), reason) from error
    return context
