"""Embeddings by HTTP, from a server on this machine that speaks the protocol of OpenAI."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from reverie.assembly import new_models
from reverie.failures import FailureKind
from reverie.models.interface import EmbedderUnavailableError, Models
from reverie.models.openai import BATCH, OpenAIEmbedder
from reverie.settings import load_settings, read_settings
from support.commands import CliRunner, cli

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server(ThreadingHTTPServer):
    """Answers each text with its length; first with the `failures`, one for each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None, dict]] = []
        self.connections: set[int] = set()
        self.failures: list[tuple[int, dict[str, str], bytes]] = []
        self.held: threading.Event | None = None

    def handle_error(self, *_) -> None:
        """A client that gives up breaks its connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        self.server.connections.add(self.client_address[1])
        if self.server.held:
            self.server.held.wait(30)
        status, headers, answer = self.server.failures.pop(0) if self.server.failures else (200, {}, b"")
        if not answer:
            rows = [
                {"object": "embedding", "index": index, "embedding": [float(len(text)), 1.0]}
                for index, text in enumerate(body["input"])
            ]
            whole = {"object": "list", "data": rows[::-1], "model": body["model"], "usage": {}}
            answer = json.dumps(whole).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


@contextmanager
def models_of(url: str, **memory) -> Iterator[Models]:
    given = {"embedding": "openai", "embedding_url": url, "embedding_api_key": "sesame", **memory}
    models = new_models(load_settings(memory=given))
    yield models
    models.disconnect()


async def test_vectors_come_in_the_order_of_the_texts(server: Server) -> None:
    with models_of(server.url) as models:
        assert models.embedder_name == "openai:text-embedding-3-small"
        assert (await models.vectors(["a", "", "ccc"])).tolist() == [[1, 1], [1, 1], [3, 1]]
        assert await models.embed(["dddd"]) == [[4, 1]]
    path, key, body = server.requests[0]
    assert (path, key) == ("/v1/embeddings", "Bearer sesame")
    assert body["model"] == "text-embedding-3-small"
    assert body["input"] == ["a", " ", "ccc"]
    assert len(server.connections) == 1, "the client is used again"


async def test_many_texts_are_sent_in_several_requests(server: Server) -> None:
    texts = ["x" * (number % 9 + 1) for number in range(2 * BATCH + 1)]
    with models_of(server.url, embedding_model="mine") as models:
        assert [row[0] for row in await models.embed(texts)] == [len(text) for text in texts]
    assert sorted(len(body["input"]) for _, _, body in server.requests) == [1, BATCH, BATCH]
    assert {body["model"] for _, _, body in server.requests} == {"mine"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, FailureKind.CREDENTIALS), (404, FailureKind.TRANSIENT), (422, FailureKind.TRANSIENT)],
)
async def test_a_refusal_says_who_refused_and_why(server: Server, status: int, kind: FailureKind) -> None:
    server.failures = [(status, {}, b'{"error": {"message": "not for you"}}')]
    with models_of(server.url) as models, pytest.raises(EmbedderUnavailableError, match="not for you") as no:
        await models.vectors(["a"])
    assert f"answered {status}" in str(no.value)
    assert server.url in str(no.value)
    assert no.value.kind is kind


async def test_a_rate_limit_carries_its_retry_after(server: Server) -> None:
    answer = (429, {"Retry-After": "0.01", "x-should-retry": "false"}, b'{"error": {"message": "slowly"}}')
    server.failures = [answer]
    with models_of(server.url) as models:
        with pytest.raises(EmbedderUnavailableError) as refused:
            await models.vectors(["a"])
        assert (refused.value.kind, refused.value.retry_after) == (FailureKind.RATE_LIMITED, 0.01)
        assert (await models.vectors(["a"])).tolist() == [[1, 1]], "the next call is served"


@pytest.mark.parametrize("answer", [b'{"data": null}', b'{"data": [{"index": 0}]}', b"not JSON", b"[]"])
async def test_an_answer_of_another_kind_is_said(server: Server, answer: bytes) -> None:
    server.failures = [(200, {}, answer)] * 3
    with models_of(server.url) as models, pytest.raises(EmbedderUnavailableError, match=r"127\.0\.0\.1"):
        await models.vectors(["a"])


async def test_a_server_that_says_nothing_is_given_up(server: Server) -> None:
    server.held = threading.Event()
    try:
        refused = pytest.raises(EmbedderUnavailableError, match=r"embedding_timeout_s = 0\.05")
        with models_of(server.url, embedding_timeout_s=0.05) as models, refused:
            await models.vectors(["a"])
    finally:
        server.held.set()


async def test_a_server_that_is_away_is_said(server: Server) -> None:
    with Server() as gone:
        url = gone.url
    with models_of(url) as models, pytest.raises(EmbedderUnavailableError, match="gave no embeddings"):
        await models.vectors(["a"])


async def test_a_key_is_needed_unless_the_server_is_ones_own(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EmbedderUnavailableError, match="OPENAI_API_KEY") as refused:
        await Models(OpenAIEmbedder("mine")).vectors(["a"])
    assert refused.value.kind is FailureKind.CREDENTIALS
    with models_of(server.url, embedding_api_key=None) as models:
        assert await models.embed(["a"]) == [[1, 1]]


async def test_url_and_key_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with models_of(server.url, embedding_url=None, embedding_api_key=None) as models:
        assert await models.embed(["a"]) == [[1, 1]]
    assert server.requests[0][1] == "Bearer from outside"


def test_the_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVERIE_MEMORY__EMBEDDING_API_KEY", "sesame")
    assert read_settings().settings.memory.embedding_api_key == "sesame"
    shown = CliRunner().invoke(cli, ["config", "show", "--changed"])
    assert "memory.embedding_api_key" in shown.output
    assert "sesame" not in shown.output
