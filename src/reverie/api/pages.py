"""The page that shows the API to people, at `/docs`. All that it loads comes from this server."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

__all__ = ["PAGE_PATHS", "page_routes"]

WEB = Path(__file__).with_name("web")
BUILT = WEB / "built"
"""Where `make assets` puts the files that come from npm."""
ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css")
"""The files of the page that come from npm."""
PAGE_PATHS = ("/docs", "/docs/docs.js", *(f"/docs/{name}" for name in ASSETS))
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}
"""The page runs scripts of this server only, and asks this server only. Its library sets styles inline."""


def page_routes() -> list[Route]:
    """The routes of the page and of the files that it loads. They need no key, and have nobody's data."""
    return [Route(path, _serve) for path in PAGE_PATHS]


async def _serve(request: Request) -> FileResponse:
    """Answer with a file; the page itself says how to build what is missing."""
    name = request.url.path.rpartition("/")[2]
    if name == "docs":
        is_built = all((BUILT / asset).is_file() for asset in ASSETS)
        return FileResponse(WEB / ("docs.html" if is_built else "unbuilt.html"), headers=HEADERS)
    file = (BUILT if name in ASSETS else WEB) / name
    if not file.is_file():
        raise HTTPException(404, f"{name} is not built: run make assets, which needs npm")
    return FileResponse(file, headers=HEADERS)
