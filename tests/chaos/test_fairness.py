"""Nobody waits because of somebody else's backlog."""

from __future__ import annotations

import pytest

from reverie import Message, Scheduler
from reverie.backends.moves import Status
from support.places import PLACES, Place
from support.scale import evidence, scaled

PORTION = 5000
BACKLOGS = {"memory": 100_000, "sqlite": 100_000, "redis": 500_000}


@pytest.mark.scaled
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_one_message_beside_a_large_backlog(place: Place) -> None:
    backlog = scaled(BACKLOGS[place.kind])
    scheduler = Scheduler(settings=place.settings())
    handled_before: list[int] = []
    handled = 0

    @scheduler.handler("work")
    def work(message: Message) -> None:
        nonlocal handled
        handled += 1
        if message.user_id == "bob":
            handled_before.append(handled - 1)

    with evidence(f"fairness-{place.kind}") as figures, scheduler.used():
        messages = [Message(user_id="ann", label="work") for _ in range(backlog)]
        for start in range(0, backlog, PORTION):
            scheduler.submit_messages(messages[start : start + PORTION])
        last = scheduler.submit("work", user_id="bob")
        with scheduler:
            assert scheduler.wait(last.item_id, user_id="bob", timeout=600).status is Status.COMPLETED
        figures |= {"backlog": backlog, "handled_before": handled_before[0]}
        assert handled_before[0] <= backlog * 0.05
