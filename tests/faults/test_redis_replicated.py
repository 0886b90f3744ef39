"""`queue.durability: replicated(n)`: accepted is what so many replicas have, if the primary is lost too."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from reverie import Message, Scheduler
from reverie.backends.redis import NotReplicatedError
from reverie.backends.redis.connection import Connections
from reverie.backends.redis.replication import Replication
from reverie.backends.triggers import Activity, Definition, DueTrigger, Firing
from reverie.errors import BackendUnavailableError, InvalidSettingError, QueueFullError
from reverie.settings import load_settings
from support.living import until
from support.proxy import proxy
from support.servers import Valkey
from support.spooling import waiting

from .redis_case import RedisCase, redis_case
from .two_servers import promote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("brief_pauses")

SHORT_S = 0.05
"""How long a replica that hangs is waited for."""


@pytest.fixture
async def case(primary: Valkey, replica: Valkey, tmp_path: Path) -> AsyncIterator[RedisCase]:
    asked = {"durability": "replicated(1)", "replication_timeout_s": SHORT_S}
    async with redis_case(primary.url, tmp_path, **asked) as case:
        await submit_patiently(case, "first")
        yield case


async def submit_patiently(case: RedisCase, item_id: str) -> None:
    """Submit until the replica, which may have much to do at first, is in time."""
    async with asyncio.timeout(30):
        while True:
            try:
                await case.submit(item_id)
            except NotReplicatedError:
                continue
            return


@contextmanager
def hanging(server: Valkey) -> Iterator[None]:
    server.suspend()
    try:
        yield
    finally:
        server.resume()


def refused(primary: Valkey) -> str:
    return (
        f"{primary.url} has kept what was submitted, but 0 instead of 1 of its replicas confirmed it within "
        f"queue.replication_timeout_s = {SHORT_S}: a failover might lose it. It is safe to submit it again "
        "with the same item_id"
    )


async def test_a_submit_is_answered_when_the_replica_has_it(
    primary: Valkey, replica: Valkey, case: RedisCase
) -> None:
    assert case.scheduler.runtime.backend.capabilities.durability == "replicated(1)"
    for number in range(50):
        await submit_patiently(case, f"n{number}")
        with replica.client() as client:
            (known,) = client.hmget("memos:task_meta:ann", f"n{number}")
        assert known is not None
    with primary.client() as client:
        assert client.info("commandstats")["cmdstat_wait"]["calls"] >= 51


async def test_a_replica_that_hangs(primary: Valkey, replica: Valkey, case: RedisCase) -> None:
    """The primary has it: the same again is safe, and confirmed only when the replica is back."""
    async with case.http() as client:
        with hanging(replica):
            for _ in range(2):  # a submit of what is known is no less to be confirmed
                with pytest.raises(NotReplicatedError) as told:
                    await case.submit("1")
                assert str(told.value) == refused(primary)
                assert (told.value.confirmed, told.value.replicas) == (0, 1)
            body = {"messages": [{"user_id": "ann", "label": "note", "item_id": "1", "content": "1"}]}
            answer = await client.post("/product/scheduler/submit", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            ready = (await client.get("/ready")).json()["dependencies"]
            assert [one["why"] for one in ready if not one["ok"]] == [refused(primary)]
            spooled = await case.scheduler.capture("note", user_id="ann", item_id="2", content="2")
            assert spooled.status == "spooled"
            await case.wait("1")  # it runs all the same
        await submit_patiently(case, "3")
        assert await case.submit("1") == ["duplicate"]
        await until(lambda: waiting(case.scheduler.runtime.settings.spool_dir) == [])
        await case.assert_each_once("first", "1", "2", "3")


async def test_what_another_connection_wrote_must_be_confirmed_too(primary: Valkey, replica: Valkey) -> None:
    """A submit of what is known may change nothing, and yet be answered only when the replica has it."""
    connections, replication = Connections(primary.url), Replication(primary.url, "channel", 1, SHORT_S)
    connections.open()
    with primary.client() as client, hanging(replica):
        client.set("known", "1")
        *_, confirmed = await connections.call_all(("GET", "known"), *replication.commands)
    assert confirmed == 0
    await connections.close()


async def test_waiting_for_a_replica_holds_up_nothing_else(
    primary: Valkey, replica: Valkey, tmp_path: Path
) -> None:
    """However many submits wait for their confirmation, others claim and settle."""
    asked = {"durability": "replicated(1)", "replication_timeout_s": 20}
    async with redis_case(primary.url, tmp_path, **asked) as case:
        await case.scheduler.start()
        with hanging(replica):
            submits = [asyncio.ensure_future(case.submit(f"n{number}")) for number in range(32)]
            await until(lambda: len(case.ran) == 32)
            await case.wait(*(f"n{number}" for number in range(32)))
            assert not any(submit.done() for submit in submits)
        assert await asyncio.gather(*submits) == [["accepted"]] * 32


async def test_a_submit_that_is_given_up_leaves_nobody_the_wrong_answer(
    primary: Valkey, replica: Valkey, case: RedisCase
) -> None:
    case.scheduler.runtime.backend.queue._replication = (
        case.scheduler.runtime.backend.queue._replication._replace(timeout_s=20)
    )
    with primary.client() as client:
        with hanging(replica):
            submits = [asyncio.ensure_future(case.submit(f"n{number}")) for number in range(5)]
            await until(lambda: client.info("clients")["blocked_clients"] == 1)  # they go together
            for submit in submits:
                submit.cancel()
            await asyncio.gather(*submits, return_exceptions=True)
        await until(lambda: client.info("clients")["blocked_clients"] == 0)
    assert [await case.submit(f"n{number}") for number in range(5)] == [["duplicate"]] * 5


async def test_functions_that_are_missing(primary: Valkey, case: RedisCase) -> None:
    with primary.client() as client:
        client.function_flush()
    await submit_patiently(case, "1")
    assert await case.submit("1") == ["duplicate"]


async def test_a_refusal_is_no_matter_of_replicas(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    """What was not kept is not said to be kept."""
    asked = {"durability": "replicated(1)", "replication_timeout_s": SHORT_S, "max_depth": 1}
    async with redis_case(primary.url, tmp_path, **asked) as case:
        await submit_patiently(case, "1")
        with hanging(replica), pytest.raises(QueueFullError):
            await case.submit("2")


def test_submits_from_threads(primary: Valkey, replica: Valkey, tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path,
        queue={"url": primary.url, "durability": "replicated(1)", "replication_timeout_s": SHORT_S},
    )
    message = Message(label="note", user_id="ann", item_id="1", content="1")
    with Scheduler(settings=settings).used() as scheduler:
        scheduler.open()
        assert scheduler.runtime.intake.takes_from_threads
        with hanging(replica):
            for _ in range(2):
                with pytest.raises(NotReplicatedError) as told:
                    scheduler.submit_messages([message])
                assert str(told.value) == refused(primary)
        with replica.client() as client:
            client.ping()  # it goes on
        assert status_once_confirmed(scheduler, message) == "duplicate"
        with primary.client() as client:
            client.function_flush()
        assert status_once_confirmed(scheduler, message) == "duplicate"


def status_once_confirmed(scheduler: Scheduler, message: Message) -> str:
    """The answer to a submit that the replica has confirmed; a busy machine may need more than one try."""
    while True:
        with suppress(NotReplicatedError):
            return scheduler.submit_messages([message])[0].status


async def test_activities_and_firings_wait_for_replicas(
    primary: Valkey, replica: Valkey, case: RedisCase
) -> None:
    """Both are kept although they are not confirmed, and may be repeated."""
    triggers = case.scheduler.runtime.backend.triggers
    await triggers.put([Definition(name="tidy", fields={"name": "tidy"}, enabled=True, version=1)])
    activity = Activity(task_type="tidy", user_key="ann", user_id="ann", interval_ms=1)
    with hanging(replica):
        with pytest.raises(
            NotReplicatedError, match=r"has kept the activity, but 0 instead of 1 .* safe to note"
        ):
            await triggers.touch([activity])
        tasks: list[DueTrigger] = []
        while not tasks:
            tasks = (await triggers.due({"tidy": ()}, 10)).triggers
        (task,) = tasks
        run = Message(user_id="ann", label="tidy", item_id="run", user_key="ann")
        with pytest.raises(NotReplicatedError, match=r"has kept what was fired, but 0 instead of 1"):
            await triggers.fire([Firing(trigger=task, message=run)])
    assert [item.item_id for item in await case.scheduler.status("ann")] == ["first", "run"]
    async with asyncio.timeout(30):
        while True:
            with suppress(NotReplicatedError):
                assert await triggers.fire([Firing(trigger=task, message=run)]) == [False]
                break
    with replica.client() as client:
        assert client.hexists("memos:task_meta:ann", "run")


async def test_what_was_accepted_survives_the_loss_of_the_primary(
    primary: Valkey, replica: Valkey, tmp_path: Path
) -> None:
    """Killed in the middle of submits, of which some are answered: those are on the replica."""
    asked = {"durability": "replicated(1)", "replication_timeout_s": 20}
    accepted: list[str] = []
    async with proxy(primary.socket) as address, redis_case(address.url, tmp_path, **asked) as case:
        await case.scheduler.open()

        async def submit_on(caller: int) -> None:
            for number in range(10_000):
                await case.submit(f"{caller}-{number}")
                accepted.append(f"{caller}-{number}")

        callers = [asyncio.ensure_future(submit_on(caller)) for caller in range(8)]
        await until(lambda: len(accepted) > 200)
        primary.kill()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert {type(end) for end in ends} == {BackendUnavailableError}
    promote(replica)
    async with redis_case(replica.url, tmp_path) as case:
        assert await case.submit(*accepted) == ["duplicate"] * len(accepted)


async def test_a_server_without_enough_replicas_is_refused(
    primary: Valkey, replica: Valkey, tmp_path: Path
) -> None:
    async with redis_case(primary.url, tmp_path, durability="replicated(2)") as case:
        with pytest.raises(BackendUnavailableError) as told:
            await case.scheduler.start()
        assert str(told.value) == (
            f"{primary.url} has 1 replica: queue.durability = replicated(2) asks for 2 to confirm each "
            "submit; let more servers follow this one (type `REPLICAOF host port` there), or ask for less"
        )


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db"])
def test_only_a_server_has_replicas(tmp_path: Path, url: str) -> None:
    settings = load_settings(data_dir=tmp_path, queue={"url": url, "durability": "replicated(1)"})
    with pytest.raises(InvalidSettingError, match="only a server has replicas"):
        Scheduler(settings=settings)
