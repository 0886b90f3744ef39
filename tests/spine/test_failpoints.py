"""A server that dies with SIGKILL at each named step, and what its successor finds."""

from __future__ import annotations

import signal

import httpx
import pytest

from reverie.base.failpoints import FAILPOINTS
from support.places import Place, Server

TEXT = "I moved to Lisbon in May"
BODY = {"user_id": "ann", "memory_content": TEXT, "item_id": "the-one"}
SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.3"}
ELSEWHERE = {
    "between_effects_and_settle",
    "after_ingest",
    "inside_change",
    "inside_index",
    "inside_claim_buffer",
}
"""Steps that a message in one database does not take; see `tests/chaos/test_memory_kills.py` for the last."""
ONE_DATABASE = [point for point in FAILPOINTS if point not in ELSEWHERE]
CASES = [("sqlite", point) for point in ONE_DATABASE] + [
    ("redis", point) for point in (*ONE_DATABASE, "between_effects_and_settle")
]
BEFORE_OR_AFTER_A_CLAIM = {"before_accept", "after_accept", "after_settle"}


def possible_losses(place: Place, point: str) -> set[int]:
    if (place.kind, point) == ("redis", "inside_settle"):
        return {0, 1}  # the request is on its way: the server may have done it or not
    if point == "after_accept":
        return {0, 1}  # a worker in the same process may have begun with it by then
    return {0} if point in BEFORE_OR_AFTER_A_CLAIM else {1}


def add(server: Server) -> str | None:
    """The receipt's status, or None if the server died without an answer."""
    try:
        answer = server.client.post("/product/add", json=BODY)
    except httpx.TransportError:
        return None
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]["status"]


@pytest.mark.parametrize(("place", "point"), CASES, indirect=["place"])
def test_killed(place: Place, point: str) -> None:
    with place.server(REVERIE_FAILPOINT=point, **SHORT_LEASE) as server:
        first = add(server)
        assert server.process.wait(30) == -signal.SIGKILL
    if point in {"before_accept", "after_accept"}:
        assert first is None

    with place.server(**SHORT_LEASE) as server:
        again = add(server)
        assert again == ("accepted" if point == "before_accept" else "duplicate")
        with place.scheduler() as scheduler:
            item = scheduler.wait("the-one", user_id="ann")
            assert item.status == "completed"
            assert item.attempts == 1
            assert item.losses in possible_losses(place, point)
            assert len(scheduler.status("ann")) == 1
        found = server.client.post("/product/search", json={"user_id": "ann", "query": "Lisbon"}).json()
        (cube,) = found["data"]["text_mem"]
        (memory,) = cube["memories"]
        assert memory["memory"] == TEXT
        assert memory["metadata"]["sources"][0]["item_id"] == "the-one"
