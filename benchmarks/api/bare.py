"""A server that does nothing: the same framework, request models and envelope, with empty functions.

`python -m benchmarks.api.bare` prints its address, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse  # noqa: TC002  FastAPI reads annotations when it runs

from reverie.api.envelope import answer
from reverie.api.memory_models import SearchRequest  # noqa: TC001
from reverie.api.models import AddRequest  # noqa: TC001

app = FastAPI(openapi_url=None)


@app.post("/product/add", response_model=None)
async def add(request: AddRequest) -> JSONResponse:
    return answer([])


@app.post("/product/search", response_model=None)
async def search(request: SearchRequest) -> JSONResponse:
    return answer({})


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as in our server
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, server_header=False, proxy_headers=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
