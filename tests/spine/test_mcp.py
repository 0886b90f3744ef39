"""The MCP server in real processes, driven by the official client: over stdio, and over HTTP with keys."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from reverie.capture.hook_settings import login_name
from support.forked import REVERIE
from support.places import SHARED, Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcp.types import CallToolResult

ON_A_FILE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
EVERYWHERE = pytest.mark.parametrize(
    ("place", "mode"), list(zip(SHARED, ["auto", "legacy"], strict=True)), indirect=["place"]
)
TRAP = "raise SystemExit('the MCP server has run code of the project')"
"""A module of this text in the folder of a project must never be imported."""


def project(folder: Path, remote: str = "git@example.org:ann/app.git") -> Path:
    """A folder with a repository, and with files that nobody but its own programs may read."""
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "config").write_text(f'[remote "origin"]\n\turl = {remote}\n')
    (folder / "reverie.yaml").write_text("queue: {url: 'sqlite:////nowhere/else.db'}\napp: trap:scheduler\n")
    (folder / ".env").write_text("REVERIE_QUEUE__URL=memory://\nMCP_DEBUG=nonsense\n")
    for name in ("trap", "mcp", "json", "anyio", "sitecustomize", "reverie"):
        (folder / f"{name}.py").write_text(TRAP)
    return folder


def stdio(place: Place, folder: Path, *arguments: str, **environment: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=REVERIE, args=["mcp", *arguments], env=place.environment | environment, cwd=folder
    )


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, words(answer)
    return answer.structured_content


def words(answer: CallToolResult) -> str:
    return answer.content[0].text


async def remembered(place: Place, client: Client, text: str, **arguments: Any) -> str:
    """Add a text, and wait until the worker has written it; the answer is the id of the memory."""
    added = await ask(client, "add", text=text, **arguments)
    user_id = arguments.get("user_id") or login_name()

    def wait() -> None:
        with place.scheduler() as scheduler:
            scheduler.wait(added["item_ids"][0], user_id=user_id)

    await asyncio.to_thread(wait)
    return added["memory_ids"][0]


@EVERYWHERE
async def test_an_agent_walks_from_search_to_details_over_stdio(place: Place, tmp_path: Path, mode) -> None:
    app, clone = project(tmp_path / "app"), project(tmp_path / "clone", "https://example.org/ann/app")
    shop = project(tmp_path / "shop", "git@example.org:ann/shop.git")
    with place.worker():
        async with Client(stdio(place, app), mode=mode) as client:
            assert len((await client.list_tools()).tools) == 7
            memory_id = await remembered(place, client, "The tests of the app need a display")
            (hit,) = (await ask(client, "search", query="display"))["hits"]
            assert hit["id"] == memory_id
            (line,) = (await ask(client, "timeline", memory_id=memory_id))["memories"]
            assert line["title"] == "The tests of the app need a display"
            (memory,) = (await ask(client, "details", ids=[memory_id]))["memories"]
            assert memory["text"] == "The tests of the app need a display"
            assert (await ask(client, "sessions"))["sessions"] == []
        async with Client(stdio(place, clone), mode=mode) as client:
            assert len((await ask(client, "search", query="display"))["hits"]) == 1
        async with Client(stdio(place, shop), mode=mode) as client:
            assert (await ask(client, "search", query="display"))["hits"] == []
            answer = await client.call_tool("details", {"ids": [memory_id]})
            assert f"there is no memory {memory_id!r}" in words(answer)
        async with Client(stdio(place, shop, "--all-projects"), mode=mode) as client:
            assert len((await ask(client, "search", query="display"))["hits"]) == 1
        async with Client(stdio(place, app, "--user", "somebody-else"), mode=mode) as client:
            assert (await ask(client, "search", query="display"))["hits"] == []
    assert {path.name for path in app.iterdir()} == {
        path.name for path in project(tmp_path / "fresh").iterdir()
    }


@contextmanager
def raw_server(place: Place, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of a server, spoken to in lines."""
    server = subprocess.Popen(
        [REVERIE, "mcp"],
        cwd=folder,
        env=place.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield server
    finally:
        server.kill()
        server.communicate(timeout=60)


def tell(server: subprocess.Popen[str], *requests: Any) -> None:
    """Send lines to a server."""
    assert server.stdin is not None
    for request in requests:
        server.stdin.write((request if isinstance(request, str) else json.dumps(request)) + "\n")
    server.stdin.flush()


def answers(server: subprocess.Popen[str], *numbers: int) -> list[dict[str, Any]]:
    """The results of requests. Each line that comes until then must belong to the protocol."""
    assert server.stdout is not None
    found: dict[int, dict[str, Any]] = {}
    while not found.keys() >= set(numbers):
        line = json.loads(server.stdout.readline())
        assert line["jsonrpc"] == "2.0"
        if "result" in line:
            found[line["id"]] = line["result"]
    return [found[number] for number in numbers]


BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
BEGUN = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def asking(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@ON_A_FILE
def test_standard_output_has_the_protocol_alone_and_the_end_of_input_ends_the_server(
    place: Place, tmp_path: Path
) -> None:
    with raw_server(place, project(tmp_path / "app")) as server:
        tell(server, "this is no JSON", "", BEGIN, BEGUN, asking(2, "search", query="a"), asking(3, "search"))
        good, bad = answers(server, 2, 3)
        assert good["structuredContent"] == {"hits": []}
        assert bad["isError"]
        rest, errors = server.communicate(timeout=60)
        assert server.returncode == 0, errors
        assert rest == ""
        assert "Traceback" not in errors


@ON_A_FILE
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name
)
def test_a_server_that_is_ended_leaves_a_file_that_others_use(
    place: Place, tmp_path: Path, number: int
) -> None:
    app = project(tmp_path / "app")
    with raw_server(place, app) as server:
        tell(server, BEGIN, BEGUN, asking(2, "add", text="The bees have swarmed"))
        (added,) = answers(server, 2)
        assert added["structuredContent"]["status"] == "accepted"
        server.send_signal(number)
        assert server.wait(60) != 0
    with raw_server(place, app) as server:
        place.command("worker", "--drain")
        tell(server, BEGIN, BEGUN, asking(2, "search", query="swarmed"))
        (found,) = answers(server, 2)
        assert [hit["title"] for hit in found["structuredContent"]["hits"]] == ["The bees have swarmed"]


@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_what_is_added_while_redis_is_away_is_found_when_it_is_back(
    place: Place, tmp_path: Path
) -> None:
    app = project(tmp_path / "app")
    assert place.redis is not None
    async with Client(stdio(place, app)) as client:
        assert (await ask(client, "search", query="bees"))["hits"] == []
        place.redis.kill()
        assert (await ask(client, "add", text="The bees have swarmed"))["status"] == "spooled"
        async with Client(stdio(place, app)) as later:  # this one never had a connection
            assert (await ask(later, "add", text="They have swarmed again"))["status"] == "spooled"
            refused = await later.call_tool("search", {"query": "swarmed"})
            assert refused.is_error
            place.redis.start()
            with place.worker():
                async with asyncio.timeout(60):
                    while len((await ask(client, "search", query="swarmed"))["hits"]) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            assert len((await ask(later, "search", query="swarmed"))["hits"]) == 2


@asynccontextmanager
async def over_http(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@EVERYWHERE
async def test_keys_have_their_rights_over_http(place: Place, mode: str) -> None:
    with place.scheduler() as scheduler:
        ann = scheduler.keys.create("ann", "user", users=["ann"]).token
        bob = scheduler.keys.create("bob", "user", users=["bob"]).token
        reader = scheduler.keys.create("reader", "read-only", users=["ann"]).token
        shop = scheduler.keys.create("shop", "service").token
    with place.server() as server:
        url = str(server.client.base_url).rstrip("/")
        async with (
            over_http(url, ann, mode) as of_ann,
            over_http(url, bob, mode) as of_bob,
            over_http(url, reader, mode) as of_reader,
            over_http(url, shop, mode) as of_shop,
        ):
            memory_id = await remembered(place, of_ann, "I keep bees", user_id="ann")
            await asyncio.gather(*(both_ask(of_ann, of_bob, memory_id) for _ in range(20)))
            assert len((await ask(of_reader, "search", query="bees"))["hits"]) == 1
            refused = await of_reader.call_tool("add", {"text": "I keep wasps"})
            assert "the tool add needs the role user" in words(refused)
            refused = await of_bob.call_tool("search", {"query": "bees", "user_id": "ann"})
            assert "this key may not touch the user 'ann'" in words(refused)
            assert "say whose memories" in words(await of_shop.call_tool("search", {"query": "bees"}))
            assert len((await ask(of_shop, "search", query="bees", user_id="ann"))["hits"]) == 1
        with pytest.raises((MCPError, ExceptionGroup)):
            async with over_http(url, "rv_000000000000_" + "a" * 43, mode) as client:
                await client.list_tools()


async def both_ask(of_ann: Client, of_bob: Client, memory_id: str) -> None:
    """Two keys at once, on one server: none answers with the rights of the other."""
    own, foreign = await asyncio.gather(
        of_ann.call_tool("details", {"ids": [memory_id]}), of_bob.call_tool("details", {"ids": [memory_id]})
    )
    assert own.structured_content["memories"][0]["text"] == "I keep bees"
    assert "there is no memory" in words(foreign)
