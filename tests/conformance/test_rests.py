"""Rests: of a label with `min_idle_ms`, a lane gives one message a run, and rests after its end."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from conformance.conftest import Bench, done, ids, message, settle
from reverie import Retry, ScheduleMessageItem, Scheduler
from reverie.backends.control import PauseLabel, ResumeLabel
from reverie.backends.moves import ClaimRequest, LevelRoom, Move, ScopeLimits, Settlement, Want
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support.living import wait_until
from support.servers import RedisClock, delete_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IDLE = 5000
RESTS = {"min_idle_ms": IDLE}
USER, LABEL = "user_123", "my_custom_async_task"


async def starts(bench: Bench, seconds: int, end=done, worker: str = "w", **want) -> list[tuple[float, str]]:
    """Claim each second, and end each run after one more; the seconds at which runs began, and their ids."""
    found = []
    for second in range(seconds):
        request = ClaimRequest(worker=worker, wants={"work": Want(slots=100, **{**RESTS, **want})})
        claims = await bench.queue.claim(request)
        found += [(second, item_id) for item_id in ids(claims)]
        await bench.advance(1)
        await settle(bench, *(end(claim) for claim in claims))
        await bench.advance()
    return found


@pytest.mark.parametrize(
    ("per_slot", "quantum"), [(1, 1), (1, 10), (10, 10)], ids=["one", "quantum", "batch"]
)
async def test_a_lane_gives_one_message_a_run(bench: Bench, per_slot: int, quantum: int) -> None:
    await bench.queue.control(PauseLabel("work"))
    for n in "123":
        await bench.submit(message(n))
    await bench.submit(message("b", "bob"))
    assert await bench.claim(**RESTS) == []
    await bench.queue.control(ResumeLabel("work"))
    found = await starts(bench, 14, per_slot=per_slot, quantum=quantum)
    assert sorted(found) == [(0, "1"), (0, "b"), (6, "2"), (12, "3")]


async def test_slots_are_shared_among_lanes_with_rests(bench: Bench) -> None:
    """A lane gives one, however many slots are free, by the share of its level and of what others leave."""
    await bench.submit(*(message(f"{user}{n}", user) for user in ("ann", "bob") for n in range(3)))
    request = ClaimRequest(
        worker="w",
        wants={"work": Want(slots=8, per_slot=4, **RESTS)},
        slots=8,
        levels={3: LevelRoom(share=1, most=8)},
    )
    assert sorted(ids(await bench.queue.claim(request))) == ["ann0", "bob0"]
    assert await bench.queue.claim(request) == []


async def test_a_lane_with_rests_runs_one_at_a_time_also_of_an_unordered_label(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    assert await starts(bench, 7, ordered=False) == [(0, "1"), (6, "2")]


async def test_several_workers_keep_the_rests_of_a_lane(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    workers = [ClaimRequest(worker=name, wants={"work": Want(slots=4, **RESTS)}) for name in "vw"]
    (first,) = await bench.queue.claim(workers[0])
    assert await bench.queue.claim(workers[1]) == []
    await settle(bench, done(first))
    for worker in workers:
        assert await bench.queue.claim(worker) == []
    await bench.advance(5)
    assert ids(await bench.queue.claim(workers[1])) == ["2"]
    assert await bench.queue.claim(workers[0]) == []


async def test_min_idle_keeps_two_runs_of_a_lane_apart(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    (first,) = await bench.claim(**RESTS)
    bench.clock.advance(3)
    await settle(bench, done(first))
    await bench.submit(message("3"), message("b", "bob"))
    assert ids(await bench.claim(**RESTS)) == ["b"]
    await bench.advance(4.9)
    assert await bench.claim(**RESTS) == []
    await bench.advance(0.1)
    assert ids(await bench.claim(**RESTS)) == ["2"]


async def test_min_idle_holds_for_a_follow_up_into_the_same_lane(bench: Bench) -> None:
    await bench.submit(message("1"))
    (first,) = await bench.claim(**RESTS)
    await settle(bench, done(first, follow_ups=(message("2"),)))
    assert await bench.claim(**RESTS) == []
    await bench.advance(5)
    assert ids(await bench.claim(**RESTS)) == ["2"]


@pytest.mark.parametrize("delay_s", [0, 2, 7])
async def test_min_idle_holds_after_a_retry(bench: Bench, delay_s: int) -> None:
    """The longer of the two counts: the rest of the lane, or the delay of the retry."""
    await bench.submit(message("1"), message("2"))
    (first,) = await bench.claim(**RESTS)
    await settle(bench, Settlement(claim=first, move=Move.RETRY, delay_ms=delay_s * 1000, error="no"))
    found = await starts(bench, 15)
    assert found == ([(7, "1"), (13, "2")] if delay_s == 7 else [(5, "1"), (11, "2")])


async def test_min_idle_holds_after_a_loss(bench: Bench) -> None:
    await bench.submit(message("1"), message("2"))
    await bench.claim(lease_ms=1000, **RESTS)
    assert (await bench.advance(1)).reaped == 1
    assert await bench.claim(**RESTS) == []
    assert (await bench.advance(4.9)).next_due == bench.clock.now() + 100
    await bench.advance(0.1)
    assert await starts(bench, 7) == [(0, "1"), (6, "2")]


async def test_min_idle_holds_for_a_lane_that_was_drained(bench: Bench) -> None:
    await bench.submit(message("1"))
    (first,) = await bench.claim(**RESTS)
    await settle(bench, done(first))
    await bench.submit(message("2"))
    assert await bench.claim(**RESTS) == []
    await bench.advance(5)
    assert ids(await bench.claim(**RESTS)) == ["2"]


async def test_a_run_is_followed_by_the_rest_that_it_began_with(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(5)))
    assert await starts(bench, 2, min_idle_ms=0, quantum=1) == [(0, "0"), (1, "1")]
    assert await starts(bench, 1) == [(0, "2")]
    assert await starts(bench, 6, min_idle_ms=2000) == [(5, "3")]
    assert await starts(bench, 3, min_idle_ms=0) == [(2, "4")]


async def test_a_lane_that_becomes_ordered_waits_for_what_still_runs(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(4)))
    loose = await bench.claim(quantum=2, ordered=False)
    assert await bench.claim() == []
    await settle(bench, done(loose[0]))
    assert await bench.claim() == []
    await settle(bench, done(loose[1]))
    assert ids(await bench.claim()) == ["2", "3"]


async def test_a_lane_that_begins_to_rest_waits_for_what_still_runs(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(4)))
    loose = await bench.claim(quantum=2, ordered=False)
    assert await bench.claim(**RESTS) == []
    await settle(bench, done(loose[0]))
    await bench.advance(3)
    await settle(bench, done(loose[1]))
    await bench.advance(4.9)
    assert await bench.claim(**RESTS) == []
    await bench.advance(0.1)
    assert ids(await bench.claim(**RESTS)) == ["2"]


@pytest.mark.limits(tenant=ScopeLimits(concurrency=3))
async def test_a_lane_that_begins_to_rest_holds_up_no_other(bench: Bench) -> None:
    await bench.submit(*(message(str(n)) for n in range(3)), message("b", "bob"))
    (loose,) = await bench.claim(slots=1, per_slot=1, quantum=1, ordered=False)
    assert ids(await bench.claim(**RESTS)) == ["b"]
    await settle(bench, done(loose))
    await bench.advance(5)
    assert ids(await bench.claim(**RESTS)) == ["1"]


# -- the walk-through of the seed ----------------------------------------------------------------------


class Desk:
    """A scheduler on one of the backends, its clock, and the runs of its handler."""

    def __init__(self, kind: str, new: Callable[[], Scheduler], *clocks: ManualClock | RedisClock) -> None:
        self.kind = kind
        self.new = new
        self.scheduler = new()
        self.clocks = clocks
        self.worker_waits: Callable[[], bool] = lambda: True
        """Whether a submit now would claim for the worker in the same step, if the backend can do that."""
        self.began = clocks[0].now()
        self.runs: list[tuple[float, list[str]]] = []
        """The seconds since the beginning, and the contents of the messages."""

    def handle(self, messages: list[ScheduleMessageItem]) -> None:
        """The handler of the walk-through."""
        self.runs.append((self.seconds, [str(message.content) for message in messages]))

    @property
    def seconds(self) -> float:
        return (self.clocks[0].now() - self.began) / 1000

    def submit(self, *contents: str) -> None:
        """Submit messages in one call; each has its content as its id."""
        self.scheduler.memos_message_queue.submit_messages(
            [ScheduleMessageItem(user_id=USER, label=LABEL, content=one, item_id=one) for one in contents]
        )

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)

    def pass_time(self, seconds: int) -> None:
        """Run all that is ready, now and after each of these numbers of seconds."""
        drain(self.scheduler)
        for _ in range(seconds):
            self.advance(1)
            drain(self.scheduler)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def desk(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Desk]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'r.db'}"}
    is_redis = request.param == "redis"
    url = request.getfixturevalue("redis_url") if is_redis else urls[request.param]
    prefix = f"test-{uuid.uuid4()}"
    queue = {"url": url, "durability": "normal", "redis_prefix": prefix, "allow_volatile": True}
    settings = load_settings(data_dir=tmp_path, queue=queue, memory={"url": "memory://"})
    clocks = [clock, RedisClock(url, prefix, clock.now())] if is_redis else [clock]
    opened = Desk(request.param, lambda: Scheduler(settings=settings, clock=clock), *clocks)
    if is_redis:
        opened.worker_waits = lambda: clocks[1]._server.hlen(f"{prefix}:offers") == 1
    yield opened
    opened.scheduler.close()
    if is_redis:
        clocks[1].close()
        delete_keys(url, prefix)


def test_the_walk_through_of_the_seed_gives_runs_five_seconds_apart(desk: Desk) -> None:
    desk.scheduler.register_handlers({LABEL: desk.handle})
    desk.scheduler.orchestrator.tasks_min_idle_ms[LABEL] = IDLE
    desk.scheduler.control.pause(LABEL)
    for content in "abc":
        desk.submit(content)
    desk.pass_time(1)
    assert desk.runs == []
    desk.scheduler.control.resume(LABEL)
    desk.pass_time(11)
    assert desk.runs == [(1, ["a"]), (6, ["b"]), (11, ["c"])]


@pytest.mark.parametrize("is_batch", [True, False], ids=["batch", "plain"])
def test_a_retried_message_runs_again_after_the_rest(desk: Desk, is_batch: bool) -> None:
    def fail_once(message: ScheduleMessageItem) -> Retry | None:
        desk.handle([message])
        return Retry(after=1) if message.attempts == 0 and message.content == "a" else None

    def fail_once_of_all(messages: list[ScheduleMessageItem]) -> dict:
        return {message.key: fail_once(message) for message in messages}

    handler = desk.scheduler.handler(LABEL, batch=is_batch, min_idle_ms=IDLE, ordered=False)
    handler(fail_once_of_all if is_batch else fail_once)
    desk.submit("a", "b")
    desk.pass_time(10)
    assert desk.runs == [(0, ["a"]), (5, ["a"]), (10, ["b"])]


def test_several_schedulers_keep_the_rests_of_a_lane(desk: Desk) -> None:
    other = desk.new() if desk.kind != "memory" else desk.scheduler
    for scheduler in (desk.scheduler, other):
        scheduler.register_handlers({LABEL: desk.handle})
        scheduler.orchestrator.tasks_min_idle_ms[LABEL] = IDLE
    desk.submit("a", "b", "c")
    for _ in range(11):
        for scheduler in (desk.scheduler, other):
            drain(scheduler)
        desk.advance(1)
    other.close()
    assert desk.runs == [(0, ["a"]), (5, ["b"]), (10, ["c"])]


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "too late"])
def test_a_worker_that_waits_heeds_a_rest_that_is_set(desk: Desk, is_told: bool) -> None:
    """Also if a submit claims for the worker before the worker hears of the rest."""
    desk.scheduler.register_handlers({LABEL: desk.handle})
    with desk.scheduler as scheduler:
        wait_until(desk.worker_waits)
        if not is_told:
            scheduler.runtime.registry.on_change = lambda: None
        scheduler.orchestrator.tasks_min_idle_ms[LABEL] = IDLE
        desk.submit("a", "b")
        scheduler.wait("a", user_id=USER)
        desk.advance(5)
        scheduler.wait("b", user_id=USER)
    assert desk.runs == [(0, ["a"]), (5, ["b"])]


def test_a_rest_that_is_set_holds_for_runs_that_begin_after_it(desk: Desk) -> None:
    rests = desk.scheduler.orchestrator.tasks_min_idle_ms

    def handle(messages: list[ScheduleMessageItem]) -> None:
        desk.handle(messages)
        rests[LABEL] = {"a": IDLE, "b": 2000}.get(str(messages[0].content), 0)

    desk.scheduler.handler(LABEL, batch=True)(handle)
    desk.submit("a")
    desk.pass_time(1)
    desk.submit("b", "c", "d", "e")
    desk.pass_time(8)
    assert desk.runs == [(0, ["a"]), (1, ["b"]), (6, ["c"]), (8, ["d", "e"])]
