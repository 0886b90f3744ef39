"""A server that dies while it settles a message: its webhook is told once, under one id."""

from __future__ import annotations

import json
import signal

import pytest

from reverie.backends.views import StatusQuery
from reverie.message import SYSTEM_USER
from support.places import Place
from support.receiving import receiver

SHORT_LEASE = {"REVERIE_WORKER__LEASE_S": "1", "REVERIE_WORKER__RENEW_S": "0.3"}
ALLOWED = {"REVERIE_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]'}
CASES = [
    ("sqlite", "inside_settle"),
    ("sqlite", "after_settle"),
    ("redis", "between_effects_and_settle"),
    ("redis", "inside_settle"),
]


@pytest.mark.parametrize(("place", "point"), CASES, indirect=["place"])
def test_killed(place: Place, point: str) -> None:
    place.extra |= ALLOWED | SHORT_LEASE
    with receiver() as hook:
        made = place.command(
            "webhooks", "create", hook.url, "--event", "memory.added", "--event", "task.completed", "--json"
        )
        assert made.returncode == 0, made.stderr
        with place.server(REVERIE_FAILPOINT=point) as server:
            added = {"user_id": "ann", "memory_content": "I moved to Lisbon in May", "item_id": "the-one"}
            server.client.post("/product/add", json=added)
            assert server.process.wait(30) == -signal.SIGKILL
        with place.server(), place.scheduler() as scheduler:
            scheduler.wait("the-one", user_id="ann")
            told = [hook.next(), hook.next()]
            deliveries = scheduler.run(scheduler.runtime.backend.views.read(StatusQuery(user_id=SYSTEM_USER)))
            assert {row.mem_cube_id for row in deliveries.rows} == {json.loads(made.stdout)["id"]}
            ids = {row.item_id for row in deliveries.rows}
        told += hook.all  # a delivery may be repeated, if the server dies before it knows that it was made
    bodies = [json.loads(body) for _, _, body in told]
    assert len(ids) == 2
    assert {headers["webhook-id"] for _, headers, _ in told} == {body["id"] for body in bodies} == ids
    assert {body["type"] for body in bodies} == {"memory.added", "task.completed"}
    assert all(body["data"]["item_id"] == "the-one" for body in bodies)
