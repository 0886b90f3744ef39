"""The page /docs: all that it loads comes from this server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from reverie import AsyncScheduler
from reverie.api import pages
from reverie.server import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WEB = Path(__file__).parents[2] / "web"
LOADED = re.compile(r'(?:src|href)="([^"]+)"')


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that come from npm."""
    monkeypatch.setattr(pages, "BUILT", tmp_path)
    for name in pages.ASSETS:
        (tmp_path / name).write_text(f"/* {name} */")
    return tmp_path


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, of a server that has keys."""
    scheduler = AsyncScheduler("memory://")
    await scheduler.open()
    await scheduler.keys.create("boss", "admin")
    transport = httpx.ASGITransport(create_app(scheduler, run_worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as opened:
        yield opened
    await scheduler.stop()


@pytest.mark.usefixtures("built")
async def test_the_page_loads_only_files_that_this_server_has(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert re.findall(r"<script[^>]*>([^<]+)</script>", page.text) == []
    loaded = [address for address in LOADED.findall(page.text) if address != "data:,"]
    assert {f"/docs/{name}" for name in pages.ASSETS} < set(loaded)
    for address in [*loaded, "/openapi.json"]:
        assert (await client.get(address)).status_code == 200, address
    script = (await client.get("/docs/docs.js")).text
    assert re.findall(r'url: "([^"]+)"', script) == ["/openapi.json"]


@pytest.mark.usefixtures("built")
async def test_the_policy_of_the_page_lets_no_other_script_run(client: httpx.AsyncClient) -> None:
    for path in pages.PAGE_PATHS:
        policies = (await client.get(path)).headers.get_list("content-security-policy")
        assert len(policies) == 1
        rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["connect-src"] == "'self'"


async def test_without_the_files_the_page_says_how_to_build_it(client, built: Path) -> None:
    (built / pages.ASSETS[0]).unlink()
    page = await client.get("/docs")
    assert page.status_code == 200
    assert "make assets" in page.text
    missing = await client.get(f"/docs/{pages.ASSETS[0]}")
    assert missing.status_code == 404
    assert "make assets" in missing.json()["message"]


@pytest.mark.parametrize("path", ["/redoc", "/docs/oauth2-redirect", "/docs/../server.py", "/docs/docs.html"])
async def test_there_is_no_other_page(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code in {401, 404}


def test_the_lock_file_has_checksums_and_no_addresses() -> None:
    text = (WEB / "package-lock.json").read_text(encoding="utf-8")
    assert "http" not in text
    wanted = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    locked = json.loads(text)["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all(package["integrity"] for name, package in locked.items() if name)
    assert "omit-lockfile-registry-resolved=true" in (WEB / ".npmrc").read_text(encoding="utf-8")
