"""The helpers that ship for users' tests, used as a user would."""

from __future__ import annotations

import pytest

from reverie import Done, Message, Retry, Scheduler
from reverie.testing import ManualClock, assert_enqueued, drain, enqueued


@pytest.fixture
def scheduler(clock: ManualClock):
    scheduler = Scheduler("memory://", clock=clock)
    yield scheduler
    scheduler.close()


def test_nothing_runs_until_it_is_drained(scheduler: Scheduler) -> None:
    seen = []
    scheduler.handler("work")(lambda message: seen.append(message.content))
    scheduler.submit("work", user_id="ann", content="1")
    assert_enqueued(scheduler, "work", user_id="ann", content="1")
    assert seen == []
    drain(scheduler)
    assert seen == ["1"]
    assert enqueued(scheduler, "work", user_id="ann") == []


def test_the_assertion_says_what_waits_instead(scheduler: Scheduler) -> None:
    scheduler.submit("work", user_id="ann", content="1")
    with pytest.raises(AssertionError, match=r"label='other'.*waiting are: \[\('work', '1'\)\]"):
        assert_enqueued(scheduler, "other", user_id="ann")
    with pytest.raises(AssertionError, match="expected 2"):
        assert_enqueued(scheduler, "work", user_id="ann", count=2)


def test_drain_follows_follow_ups(scheduler: Scheduler) -> None:
    seen = []

    @scheduler.handler("first")
    def first(message: Message) -> Done:
        return Done(follow_ups=[Message(user_id=message.user_id, label="second", content="from first")])

    scheduler.handler("second")(lambda message: seen.append(message.content))
    scheduler.submit("first", user_id="ann")
    drain(scheduler)
    assert seen == ["from first"]


def test_time_moves_only_by_hand(scheduler: Scheduler, clock: ManualClock) -> None:
    runs = []

    @scheduler.handler("work")
    def work(message: Message) -> Retry | None:
        runs.append(clock.now())
        return None if message.attempts else Retry(after=60)

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    clock.advance(59)
    drain(scheduler)
    assert len(runs) == 1
    clock.advance(1)
    drain(scheduler)
    assert [moment - runs[0] for moment in runs] == [0, 60_000]
