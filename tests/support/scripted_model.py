"""A language model behind real HTTP on loopback, which answers each request as a script says."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = [
    "Answer",
    "Request",
    "ScriptedModel",
    "garbage",
    "half",
    "quota",
    "rate_limit",
    "reset",
    "scripted",
]


@dataclass(frozen=True)
class Request:
    """One request, as the server got it."""

    body: dict[str, Any]
    key: str | None
    """The header `Idempotency-Key`."""
    authorization: str | None
    connection: int
    """The port of the client: requests of one connection have the same."""

    @property
    def prompt(self) -> str:
        """The last message of the prompt."""
        return self.body["messages"][-1]["content"]


@dataclass(frozen=True)
class Answer:
    """What the server does with a request. The default is an answer with the text `ok`."""

    text: str = "ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None
    """The provider's code of an error."""
    message: str = "no"
    finish: str = "stop"
    tokens: tuple[int, int] | None = (10, 5)
    """Of prompt and answer; None: the server does not count."""
    raw: bytes | None = None
    """The whole body, in place of all above."""
    hangs: bool = False
    """Give no answer until the server stops, or `ScriptedModel.release` is set."""
    resets: bool = False
    """Break the connection."""
    breaks: bool = False
    """In the middle of an answer that is streamed, send an error."""


def rate_limit(retry_after: float | None = None) -> Answer:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Answer(status=429, headers=headers, code="rate_limit_exceeded", message="slowly")


def quota() -> Answer:
    return Answer(status=429, code="insufficient_quota", message="you exceeded your current quota")


def garbage() -> Answer:
    return Answer(raw=b"<html>bad gateway</html>")


def half() -> Answer:
    return Answer(text='{"facts": ["the be', finish="length")


def reset() -> Answer:
    return Answer(resets=True)


class ScriptedModel:
    """A server of `/v1/chat/completions`.

    Answers in `script` are given first, one to a request; after them `answers` decides, a function of the
    request. Both may be changed at any time.
    """

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.answers: Callable[[Request], Answer] = lambda _: Answer()
        self.requests: list[Request] = []
        self.release = threading.Event()
        self.in_flight = 0
        self.most_in_flight = 0
        self.tokens = 0
        """Tokens of all answers that were given."""
        self.lock = threading.Lock()
        self.url = ""

    @property
    def calls(self) -> int:
        return len(self.requests)

    @property
    def keys(self) -> list[str | None]:
        return [request.key for request in self.requests]

    def taken(self) -> list[str]:
        """The prompts of the requests since the last call of this."""
        with self.lock:
            prompts = [request.prompt for request in self.requests]
            self.requests = []
        return prompts

    def answer(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            answer = self.script.pop(0) if self.script else None
        answer = answer or self.answers(request)
        if answer.status == 200 and answer.tokens:
            self.tokens += sum(answer.tokens)
        return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ScriptedModel
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions", self.path
        request = Request(
            body, self.headers["Idempotency-Key"], self.headers["Authorization"], self.client_address[1]
        )
        model = self.model
        with model.lock:
            model.in_flight += 1
            model.most_in_flight = max(model.most_in_flight, model.in_flight)
        try:
            self.give(request, model.answer(request))
        finally:
            with model.lock:
                model.in_flight -= 1

    def give(self, request: Request, answer: Answer) -> None:
        if answer.hangs:
            self.model.release.wait(60)
        if answer.resets:
            linger = struct.pack("ii", 1, 0)  # closing sends a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
            return
        data = body_of(request, answer)
        self.send_response(answer.status)
        kind = "text/event-stream" if is_streamed(request, answer) else "application/json"
        for name, value in {"Content-Type": kind, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):  # a connection that was reset
            return

    def log_message(self, *_: object) -> None:
        return


def body_of(request: Request, answer: Answer) -> bytes:
    if answer.raw is not None:
        return answer.raw
    if answer.status != 200:
        return json.dumps({"error": {"message": answer.message, "code": answer.code}}).encode()
    if is_streamed(request, answer):
        return streamed(request, answer)
    body: dict[str, Any] = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": request.body["model"] + "-2026",
        "choices": [
            {
                "index": 0,
                "finish_reason": answer.finish,
                "message": {"role": "assistant", "content": answer.text},
            }
        ],
    }
    if answer.tokens is not None:
        given, answered = answer.tokens
        body["usage"] = {
            "prompt_tokens": given,
            "completion_tokens": answered,
            "total_tokens": given + answered,
        }
    return json.dumps(body).encode()


def is_streamed(request: Request, answer: Answer) -> bool:
    """Whether a request is answered part by part."""
    return answer.status == 200 and bool(request.body.get("stream"))


def streamed(request: Request, answer: Answer) -> bytes:
    """The answer as server-sent events, a word in each; at the end the tokens."""
    words = re.findall(r"\s*\S+|\s+$", answer.text)
    chunks = [
        *({"choices": [{"index": 0, "delta": {"content": word}}]} for word in words),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish}]},
    ]
    if answer.tokens is not None:
        given, answered = answer.tokens
        chunks.append({"choices": [], "usage": {"prompt_tokens": given, "completion_tokens": answered}})
    common = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": request.body["model"]}
    lines = [f"data: {json.dumps(common | chunk)}\n\n" for chunk in chunks]
    if answer.breaks:
        lines = [*lines[: len(words) // 2], 'data: {"error": {"message": "overloaded"}}\n\n']
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that gives up breaks its connection."""


@contextmanager
def scripted() -> Iterator[ScriptedModel]:
    """A model that serves until the end of the context."""
    model = ScriptedModel()
    handler = type("Handler", (_Handler,), {"model": model})
    with _Server(("127.0.0.1", 0), handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield model
        finally:
            model.release.set()
            server.shutdown()
            thread.join()
