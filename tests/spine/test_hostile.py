"""Clients that ask for too much, against a real server: everyone else is still answered."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from reverie import Message, Remember
from reverie.backends.moves import Status
from reverie.memory.interface import Application
from support import health_probe
from support.places import SHARED, Place, Server

if TYPE_CHECKING:
    from reverie import Scheduler

ON_A_SERVER = pytest.mark.parametrize("place", SHARED, indirect=True)
WORDS = [f"word{number}" for number in range(100_000)]
MEMORIES = 3000
JSON = {"content-type": "application/json"}
PROBE = str(Path(health_probe.__file__))


def fill(place: Place) -> None:
    """Give ann many memories of many words, and one of a word that is in no other."""
    chance = random.Random(7)
    texts = [" ".join(chance.choices(WORDS[:20_000], k=50)) for _ in range(MEMORIES)]
    effects = tuple(
        Remember(memory_id=str(number), text=text) for number, text in enumerate([*texts, "marmalade"])
    )
    with place.scheduler() as scheduler:
        message = Message(user_id="ann", label="fill", item_id="fill", mem_cube_id="ann")
        scheduler.run(scheduler.runtime.open())
        store = scheduler.runtime.store
        (applied,) = scheduler.run(store.apply([Application(message=message, effects=effects)]))
        assert applied.state == "applied"


class HealthCheck:
    """Asks a server for its health from another process, which the searches of this one cannot hold up."""

    def __init__(self, server: Server) -> None:
        port = server.client.base_url.port
        self._process = subprocess.Popen(
            [sys.executable, PROBE, str(port), str(server.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> list[float]:
        """Seconds of processor time that the server has used until each answer."""
        answers, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        return json.loads(answers)


@ON_A_SERVER
async def test_health_answers_during_fifty_searches_of_a_hundred_thousand_words(place: Place) -> None:
    fill(place)
    with place.server() as server:
        words = " ".join(["marmalade", *WORDS])
        query = {"user_id": "ann", "query": words, "relativity": 0, "top_k": 200}
        body = json.dumps(query).encode()
        async with httpx.AsyncClient(base_url=server.client.base_url, timeout=60, headers=JSON) as client:
            await client.post("/product/search", json={"user_id": "ann", "query": "tea"})  # loads the model
            check = HealthCheck(server)
            posts = (client.post("/product/search", content=body) for _ in range(50))
            searches = await asyncio.gather(*posts)
            took = check.end()
    assert took
    print(sorted(took)[-5:], len(took))
    allowed = os.cpu_count() or 1  # seconds of processor time that the server can use in one second
    assert max(took) <= allowed, f"{len(took)} answers, one after {max(took):.2f} s of work"
    codes = {response.status_code for response in searches}
    assert codes <= {200, 503}
    assert 200 in codes
    for response in searches:
        if response.status_code == 503:
            assert "memory.search_timeout_s" in response.json()["message"]
            continue
        found = response.json()["data"]
        assert found["words_left_out"] >= len(WORDS) - 1000
        assert "marmalade" in [memory["memory"] for memory in found["text_mem"][0]["memories"]]


HANGING = """
import threading

from reverie import Scheduler

scheduler = Scheduler()

@scheduler.handler("stuck", timeout=0.05, max_attempts=1)
def stuck(message):
    threading.Event().wait()

@scheduler.handler("quick")
def quick(message):
    pass
"""
CALLS = 17
"""One more than `worker.max_abandoned` allows by default."""


def let_hang(scheduler: Scheduler, name: str) -> None:
    """Submit work that hangs, and wait until a worker has given up all of it."""
    receipts = [(f"{name}-{n}", scheduler.submit("stuck", user_id=f"{name}-{n}")) for n in range(CALLS)]
    for user_id, receipt in receipts:
        assert scheduler.wait(receipt.item_id, user_id=user_id).status is Status.FAILED


@ON_A_SERVER
def test_a_server_says_that_hanging_calls_stop_sync_labels_and_its_remedy_works(place: Place) -> None:
    (place.folder / "app.py").write_text(HANGING)
    with place.scheduler() as scheduler:
        with place.server("--app", "app:scheduler") as server:
            assert server.client.get("/ready").status_code == 200
            let_hang(scheduler, "first")
            waiting = scheduler.submit("quick", user_id="ann")
            ready = server.client.get("/ready")
            alerts = {alert["rule"]: alert for alert in server.client.get("/alerts").json()["alerts"]}
            metrics = server.client.get("/metrics").text
            port = str(server.client.base_url.port)
            doctor = place.command("doctor", "--json", REVERIE_SERVER__PORT=port)
            assert scheduler.status("ann", waiting.item_id)[0].status is Status.WAITING
        alert = alerts["too_many_abandoned"]
        assert "17 calls of sync handlers hang (more than worker.max_abandoned = 16)" in alert["message"]
        worker = next(one for one in ready.json()["dependencies"] if one["name"] == "worker")
        assert (ready.status_code, worker["ok"]) == (503, False)
        assert worker["why"] == f"{alert['message']}: {alert['remedy']}"
        finding = next(one for one in json.loads(doctor.stdout) if one["check"] == "too_many_abandoned")
        assert (finding["level"], finding["remedy"]) == ("error", alert["remedy"])
        assert "reverie_abandoned_threads 17.0" in metrics
        assert 'reverie_alerts{level="error",rule="too_many_abandoned"} 1.0' in metrics

        (typed,) = re.findall(r"`([^`]+)`", alert["remedy"])
        setting, *command = shlex.split(typed)
        assert command[:4] == ["reverie", "serve", "--port", "0"]
        with place.server(*command[4:], **dict([setting.split("=")])) as server:
            assert scheduler.wait(waiting.item_id, user_id="ann").status is Status.COMPLETED
            let_hang(scheduler, "second")
            after = scheduler.submit("quick", user_id="ann")
            assert scheduler.wait(after.item_id, user_id="ann").status is Status.COMPLETED
            assert server.client.get("/ready").json()["ready"] is True
            rules = [alert["rule"] for alert in server.client.get("/alerts").json()["alerts"]]
            assert "too_many_abandoned" not in rules
            server.process.send_signal(signal.SIGTERM)
            _, logs = server.process.communicate(timeout=60)
        assert "worker.restarting" in logs


POST = b"POST /product/search HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
HALF_SENT = {
    "nothing": (b"", 408),
    "no HTTP": (b"xyz", 400),
    "headers": (POST, 408),
    "headers without an end": (POST + b"x-more: " + b"y" * 70_000, 431),
    "body": (POST + b"content-length: 100\r\n\r\n{", 408),
    "chunks": (POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
    "body that nobody reads": (
        b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
        200,
    ),
    "body of a stream": (
        b"GET /product/scheduler/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
        200,
    ),
}


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_connections_that_send_half_a_request_are_closed(place: Place) -> None:
    with place.server(REVERIE_SERVER__RECEIVE_TIMEOUT_S="1") as server:
        address = server.client.base_url

        async def send_half(sent: bytes) -> bytes:
            """Send half of a request, go on drop by drop, and read to the end of the connection."""
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(sent)
            answer = b""
            reading = asyncio.ensure_future(reader.read(65_536))
            with suppress(ConnectionError):  # a drop came after the end
                while True:
                    if (await asyncio.wait({reading}, timeout=0.2))[0]:
                        if not (part := reading.result()):
                            break
                        answer += part
                        reading = asyncio.ensure_future(reader.read(65_536))
                    elif sent and b"chunked" not in sent:
                        writer.write(b"x")
            writer.close()
            return answer

        async with asyncio.timeout(60):
            halves = list(HALF_SENT.values()) * 10
            answers = await asyncio.gather(*(send_half(sent) for sent, _ in halves))
        for (sent, code), answer in zip(halves, answers, strict=True):
            assert answer.startswith(b"HTTP/1.1 %d " % code), sent
            if b"\r\n\r\n" in sent and code == 408:
                assert b"server.receive_timeout_s" in answer
        assert server.client.get("/health").status_code == 200
        assert server.client.post("/product/search", json={"user_id": "ann", "query": "tea"}).is_success
        server.process.send_signal(signal.SIGTERM)
        _, logs = server.process.communicate(timeout=60)
    print(logs)
    assert "Traceback" not in logs
