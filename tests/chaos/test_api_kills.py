"""The server is killed while very many clients add at once: every add that it has answered is kept, once."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from support.living import wait_until
from support.places import SHARED, Place
from support.scale import SEED, evidence, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

ADDS = 5000
USERS = 50
CONNECTIONS = 500
"""Adds that are under way at once."""
DEADLINE_S = 600
Add = dict[str, Any]


def added(number: int) -> Add:
    return {"user_id": f"user-{number % USERS}", "item_id": f"i{number}", "memory_content": f"text {number}"}


async def send_all(
    address: httpx.URL, adds: Sequence[Add], on_answer: Callable[[int], None]
) -> dict[str, str]:
    """Send them over many connections at once; item → status, for adds that were answered with success."""
    answered: dict[str, str] = {}
    unsent = iter(adds)

    async def send_some() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):  # the server is gone: go on with the next
                reader, writer = await asyncio.open_connection(address.host, address.port)
                with closing(writer):
                    for add in unsent:
                        (receipt,) = await post(reader, writer, add)
                        answered[receipt["item_id"]] = receipt["status"]
                        on_answer(len(answered))
                    return
            if next(unsent, None) is None:
                return

    await asyncio.gather(*(send_some() for _ in range(scaled(CONNECTIONS))))
    return answered


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, add: Add) -> list[dict[str, str]]:
    """Send an add over an open connection; httpx would look at all connections before it sends anything."""
    body = json.dumps(add).encode()
    head = "POST /product/add HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    (length,) = re.findall(rb"content-length: (\d+)", answer)
    text = await reader.readexactly(int(length))
    assert answer.startswith(b"HTTP/1.1 200 "), text
    receipts: list[dict[str, str]] = json.loads(text)["data"]
    return receipts


def texts_in(place: Place) -> Counter[str]:
    """The texts that are remembered, and how often."""
    path = place.memory_url.removeprefix("sqlite:///")
    return Counter(text for (text,) in apsw.Connection(path).execute("SELECT text FROM memory_items"))


@pytest.mark.scaled
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("place", SHARED, indirect=True)
def test_a_killed_server_has_kept_every_add_that_it_has_answered(place: Place) -> None:
    place.extra |= {"REVERIE_WORKER__LEASE_S": "2", "REVERIE_WORKER__RENEW_S": "0.5"}
    total = scaled(ADDS)
    adds = [added(number) for number in range(total)]
    until_kill = random.Random(SEED).randint(total // 5, total * 3 // 5)
    with evidence(f"api-kills-{place.kind}") as figures:
        with place.server() as server:

            def kill_in_the_middle(answers: int) -> None:
                if answers == until_kill:
                    server.process.kill()

            before = asyncio.run(send_all(server.client.base_url, adds, kill_in_the_middle))
        assert set(before.values()) == {"accepted"}
        assert until_kill <= len(before) < total
        with place.server() as server, place.scheduler() as scheduler:
            again = asyncio.run(send_all(server.client.base_url, adds, lambda _: None))
            wait_until(
                lambda: sum(state.completed_ever for state in scheduler.control.labels()) >= total, DEADLINE_S
            )
        assert len(again) == total
        assert {again[item_id] for item_id in before} == {"duplicate"}
        assert texts_in(place) == {add["memory_content"]: 1 for add in adds}
        unanswered = [status for item_id, status in again.items() if item_id not in before]
        figures |= {
            "adds": total,
            "answered_before_the_kill": len(before),
            "kept_without_an_answer": unanswered.count("duplicate"),
        }
