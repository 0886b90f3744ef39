"""Serving others: TLS by setting, no other address without keys, and a warning without TLS."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from reverie import AsyncScheduler, server
from reverie.errors import InvalidSettingError
from reverie.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path


class Listened(Exception):  # noqa: N818  it is no error
    """The server would listen now."""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate for 127.0.0.1, signed by itself, and its key."""
    file = tmp_path / "tls.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=reverie"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", str(tmp_path / "c.pem")]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    file.write_text(file.read_text() + (tmp_path / "c.pem").read_text())
    return file


def scheduler_with(tmp_path: Path, **settings) -> AsyncScheduler:
    queue = {"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"}
    return AsyncScheduler(settings=load_settings(queue=queue, server=settings))


async def test_a_server_with_a_certificate_speaks_tls_alone(tmp_path: Path, certificate: Path) -> None:
    scheduler = scheduler_with(tmp_path, tls_certificate=certificate)
    settings = scheduler.runtime.settings.server
    context = server._tls(settings)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    started = asyncio.Event()
    app = server.create_app(scheduler, run_worker=False)
    running = server._Server(app, started.set, settings.receive_timeout_s, context)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    await started.wait()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    trusted = ssl.create_default_context(cafile=certificate)
    async with httpx.AsyncClient(verify=trusted) as client:
        answer = await client.get(f"https://{address}/health")
        assert answer.status_code == 200
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with pytest.raises(httpx.HTTPError):
            await client.get(f"http://{address}/health")
    running.should_exit = True
    await serving


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "broken.pem"
    if content is not None:
        file.write_text(content)
    scheduler = scheduler_with(tmp_path, tls_certificate=file)
    with pytest.raises(InvalidSettingError, match=r"server\.tls_certificate"):
        serve_on(scheduler, "127.0.0.1")


def serve_on(scheduler: AsyncScheduler, host: str) -> None:
    server.serve(scheduler, host=host, port=0, run_worker=False, announce=lambda _: None)


@pytest.fixture
def listens_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(*_: object) -> None:
        raise Listened

    monkeypatch.setattr(server, "_listen", listen)
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("listens_nowhere")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_another_address_is_refused_without_keys(tmp_path: Path, host: str) -> None:
    scheduler = scheduler_with(tmp_path)
    with pytest.raises(InvalidSettingError, match="reverie keys create"):
        serve_on(scheduler, host)
    with pytest.raises(Listened):
        serve_on(scheduler, "127.0.0.1")


@pytest.mark.usefixtures("listens_nowhere")
@pytest.mark.parametrize("has_tls", [False, True])
def test_another_address_without_tls_is_warned_about(tmp_path, certificate, caplog, has_tls: bool) -> None:
    scheduler = scheduler_with(tmp_path, **({"tls_certificate": certificate} if has_tls else {}))

    async def make_key() -> None:
        made = await scheduler.keys.create("boss", "admin")
        await scheduler.keys.revoke(made.key.id)  # a key was made once: that is enough
        await scheduler.stop()

    asyncio.run(make_key())
    with pytest.raises(Listened):
        serve_on(scheduler, "192.0.2.1")
    assert ("server.not_encrypted" in caplog.text) is not has_tls
    assert ("server.tls_certificate" in caplog.text) is not has_tls
