"""What only the Redis backend does: its keys, its functions on the server, and which server it refuses."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from reverie.backends.control import PauseLabel
from reverie.backends.moves import ClaimRequest, Move, Presence, Settlement, Status, Want
from reverie.backends.redis import RedisBackend, UnsafeServerError
from reverie.backends.redis.check import check_server
from reverie.backends.redis.connection import Connections
from reverie.backends.redis.keys import GROUP, Keys, encode_id
from reverie.backends.redis.library import QUEUE
from reverie.backends.views import StatusQuery
from reverie.effect import Remember
from reverie.errors import BackendUnavailableError, ClosedError, MissingExtraError
from reverie.message import Lane
from support.living import started, until, wait_until
from support.redis_bench import NOW, Bench, message
from support.servers import valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.backends.redis.queue import RedisQueue

# -- keys --------------------------------------------------------------------------------------------


def test_plain_ids_stand_in_keys_as_they_are() -> None:
    keys = Keys()
    lane = Lane("Ann_1.x@y-z", "cube-2", "mem_read")
    assert keys.stream(lane) == "scheduler:messages:stream:v2.0:Ann_1.x@y-z:cube-2:mem_read"
    assert keys.task_meta("ann") == "memos:task_meta:ann"
    assert keys.task_items("ann", "task-1") == "memos:task_items:ann:task-1"
    assert GROUP == "scheduler_group"


def test_other_ids_are_encoded_byte_by_byte() -> None:
    assert encode_id("a:b") == "a%3Ab"
    assert encode_id("50%") == "50%25"
    assert encode_id("a b/~é") == "a%20b%2F%7E%C3%A9"


async def test_ids_that_look_alike_do_not_collide(bench: Bench) -> None:
    users = ["a:b", "a%3Ab", "a", "a b", "a%20b", "a:b:c"]
    cubes = {"a": "b:c"}
    messages = [message("1", user, mem_cube_id=cubes.get(user, "c"), task_id=f"t:{user}") for user in users]
    answers = await bench.queue.submit(messages)
    assert [answer.status for answer in answers] == ["accepted"] * len(users)
    claims = await bench.claim()
    assert len({claim.message.stream_key for claim in claims}) == len(users)
    await bench.settle(*claims)
    for user in users:
        page = await bench.backend.views.read(StatusQuery(user_id=user, task_id=f"t:{user}"))
        assert [(row.user_id, row.status) for row in page.rows] == [(user, Status.COMPLETED)]


async def test_the_keys_of_a_waiting_message(bench: Bench) -> None:
    await bench.queue.submit([message("1", mem_cube_id="cube", task_id="t")])
    stream = f"{bench.prefix}:ann:cube:work"
    assert bench.server.type(stream) == b"stream"
    assert [group["name"] for group in bench.server.xinfo_groups(stream)] == [b"scheduler_group"]
    assert bench.server.hkeys(f"{bench.prefix}-status:task_meta:ann") == [b"1"]
    assert bench.server.smembers(f"{bench.prefix}-status:task_items:ann:t") == {b"1"}
    (claim,) = await bench.claim()
    assert claim.message.stream_key == stream
    assert bench.server.xrange(stream)[0][0].decode() == claim.message.redis_message_id


async def test_what_is_pending_belongs_to_its_worker_or_was_handed_back(bench: Bench) -> None:
    await bench.queue.submit([message("1"), message("2"), message("3")])
    claims = await bench.claim(slots=2)
    await bench.settle(claims[0], move=Move.RELEASE, attempt=False)
    pending = bench.server.xpending(claims[0].message.stream_key, GROUP)
    assert {entry["name"]: entry["pending"] for entry in pending["consumers"]} == {b"w": 1, b"_returned": 1}


async def test_a_drained_lane_leaves_no_key(bench: Bench) -> None:
    await bench.queue.submit([message(str(n), user) for user in ("ann", "bob") for n in range(3)])
    claims = await bench.claim()
    await bench.settle(*claims[:2], *claims[4:])
    await bench.settle(claims[2], move=Move.CANCEL)
    await bench.settle(claims[3], move=Move.BURY, error="x")
    assert bench.lane_keys() == set()


async def test_a_drained_lane_leaves_nothing_but_its_rest_and_that_goes(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    await bench.settle(*await bench.claim(min_idle_ms=5000))
    assert bench.lane_keys() == {":resting"}
    assert bench.server.zscore(f"{bench.prefix}:resting", "ann:ann:work") == NOW + 5000
    bench.clock.advance(5)
    assert (await bench.queue.advance(10)).staged == 1
    assert bench.lane_keys() == set()


async def test_what_was_kept_long_enough_leaves_no_key(bench: Bench) -> None:
    await bench.queue.submit([message("1", task_id="t")])
    await bench.settle(*await bench.claim())
    bench.clock.advance(60)
    assert (await bench.queue.advance(10)).expired == 1
    assert {key for key in bench.key_names() if not key.startswith(":wake")} == {":labels"}


async def test_a_stream_that_somebody_else_writes_to_is_not_deleted(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    (claim,) = await bench.claim()
    bench.server.xadd(claim.message.stream_key, {"theirs": "1"})
    await bench.settle(claim)
    assert [fields for _, fields in bench.server.xrange(claim.message.stream_key)] == [{b"theirs": b"1"}]


# -- status ------------------------------------------------------------------------------------------


async def test_the_status_is_json_that_others_can_read(bench: Bench) -> None:
    one = message("1", mem_cube_id="cube", task_id="t", content='say "task_type":', label="work")
    await bench.queue.submit([one])
    fixed = {
        "task_type": "work",
        "mem_cube_id": "cube",
        "task_id": "t",
        "submitted_at": NOW,
        "level": 3,
        "fingerprint": one.fingerprint(),
        "lane": "ann:cube:work",
        "seq": 1,
    }
    waiting = bench.meta(one)
    entry = waiting.pop("redis_message_id")
    assert waiting == fixed | {
        "status": "waiting",
        "started_at": None,
        "claim_id": "",
        "attempts": 0,
        "losses": 0,
    }
    bench.clock.advance(1)
    (claim,) = await bench.claim()
    running = {"status": "in_progress", "started_at": NOW + 1000, "claim_id": claim.claim_id}
    run = {"claimed_at": NOW + 1000, "worker": "w"}
    assert bench.meta(one) == waiting | running | run | {"redis_message_id": entry}
    bench.clock.advance(1)
    problem = 'it said "task_type": "x"\n\ttoo often é \ud800'
    await bench.settle(claim, move=Move.BURY, error=problem)
    ended = {"status": "failed", "failed_at": NOW + 2000, "attempts": 1, "claim_id": "", "history": 1}
    meta = bench.meta(one)
    assert meta.pop("error") == problem.replace("\ud800", "\\ud800")
    assert meta == waiting | running | ended | {"redis_message_id": ""}


async def test_an_error_is_kept_while_its_message_runs_again(bench: Bench) -> None:
    one = message("1")
    await bench.queue.submit([one])
    await bench.settle(*await bench.claim(), move=Move.RETRY, error='"boom", %d "task_type":')
    (claim,) = await bench.claim()
    assert bench.meta(one)["error"] == '"boom", %d "task_type":'
    await bench.settle(claim)
    assert "error" not in bench.meta(one)
    assert bench.meta(one)["completed_at"] == NOW


async def test_a_dead_letter_can_be_read(bench: Bench) -> None:
    await bench.queue.submit([message("1", info={"a": 1}), message("2")])
    first, second = await bench.claim()
    await bench.settle(first, move=Move.BURY, error="x")
    await bench.settle(second)
    page = await bench.backend.views.read(StatusQuery(user_id="ann", with_message=True))
    assert [(row.item_id, row.message and row.message.info) for row in page.rows] == [
        ("1", {"a": 1}),
        ("2", None),
    ]


async def test_what_another_program_wrote_is_left_alone(bench: Bench) -> None:
    theirs = '{"status": "waiting", "task_type": "add"}'
    bench.server.hset(f"{bench.prefix}-status:task_meta:ann", "1", theirs)
    accepted = await bench.queue.submit([message("1"), message("2")])
    assert [answer.status for answer in accepted] == ["conflict", "accepted"]
    page = await bench.backend.views.read(StatusQuery(user_id="ann", with_message=True))
    assert [row.item_id for row in page.rows] == ["2"]
    assert bench.server.hget(f"{bench.prefix}-status:task_meta:ann", "1") == theirs.encode()


async def test_effects_belong_elsewhere(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    (claim,) = await bench.claim()
    effects = (Remember(memory_id="m", text="t"),)
    with pytest.raises(ValueError, match="effect store"):
        await bench.queue.settle([Settlement(claim=claim, move=Move.COMPLETE, effects=effects)])
    assert bench.meta(message("1"))["status"] == "in_progress"


# -- the server --------------------------------------------------------------------------------------


async def test_a_large_batch_is_one_step(bench: Bench) -> None:
    messages = [message(str(n), f"u{n % 50}", task_id="t") for n in range(5000)]
    accepted = await bench.queue.submit(messages)
    assert {answer.status for answer in accepted} == {"accepted"}
    claims = await bench.claim()
    assert len(claims) == 5000
    back = [Settlement(claim=claim, move=Move.RELEASE, attempt=False) for claim in claims]
    assert len(await bench.queue.settle(back)) == 5000
    claims = await bench.claim()
    renewal = await bench.queue.renew(claims, 30_000)
    assert (renewal.lost, renewal.cancelled) == ([], [])
    await bench.settle(*claims)
    assert bench.lane_keys() == set()


async def test_a_large_batch_of_one_lane(bench: Bench) -> None:
    await bench.queue.submit([message(str(n)) for n in range(5000)])
    claims = await bench.claim()
    assert [claim.message.item_id for claim in claims] == [str(n) for n in range(5000)]
    bench.clock.advance(100)
    assert (await bench.queue.advance(5000)).reaped == 5000
    for n in range(3):  # what was lost comes alone
        (again,) = await bench.claim()
        assert (again.message.item_id, again.message.losses) == (str(n), 1)
        await bench.settle(again)


async def test_a_missing_library_is_loaded_again(bench: Bench) -> None:
    bench.server.function_delete(QUEUE.name)
    assert [a.status for a in await bench.queue.submit([message("1")])] == ["accepted"]
    bench.server.function_delete(QUEUE.name)
    assert len(await bench.claim()) == 1


async def test_the_time_is_the_servers(bench: Bench) -> None:
    bench.server.delete(f"{bench.prefix}:clock")
    seconds, microseconds = bench.server.time()
    await bench.queue.submit([message("1")])
    taken = bench.meta(message("1"))["submitted_at"] - (seconds * 1000 + microseconds // 1000)
    assert 0 <= taken < 60_000


@pytest.mark.parametrize("known", [True, False])
async def test_a_waiter_that_was_cancelled_takes_no_token_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    await bench.queue.submit([message("1")])
    tokens = f"{bench.prefix}:wake:work"

    async def block(_self, _seconds, *_command, late) -> None:
        token = bench.server.lpop(tokens)  # the server has given it to a waiter that has gone
        assert token is not None
        if known:
            late([tokens.encode(), token])
        raise asyncio.CancelledError

    monkeypatch.setattr(Connections, "block", block)
    with pytest.raises(asyncio.CancelledError):
        await bench.queue.wait(["work"], None)
    assert bench.server.llen(tokens) == 1


async def test_a_cancelled_task_can_still_hand_back_what_it_holds(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    claims = await bench.claim()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await bench.settle(*claims, move=Move.RELEASE, attempt=False)

    working = await started(work())
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert bench.meta(message("1"))["status"] == "waiting"


async def test_tokens_are_few_and_go_when_the_work_is_taken(bench: Bench) -> None:
    await bench.queue.submit([message("1", f"u{n}") for n in range(100)])
    tokens = f"{bench.prefix}:wake:work"
    assert bench.server.llen(tokens) == 4
    assert bench.server.pttl(tokens) > 0
    bench.server.delete(tokens)
    await bench.claim(slots=10)
    assert bench.server.llen(tokens) == 1
    await bench.claim()
    assert bench.server.llen(tokens) == 0


# -- workers that take a wake-up and do nothing with it ------------------------------------------------


@pytest.fixture
async def others(bench: Bench) -> AsyncIterator[list[RedisQueue]]:
    """The same queue, as three other workers have it open."""
    url = bench.backend._connections._url
    backends = [RedisBackend(url, prefix=bench.prefix, allow_volatile=True) for _ in range(3)]
    for backend in backends:
        await backend.open()
    yield [backend.queue for backend in backends]
    for backend in backends:
        await backend.close()


async def blocked(bench: Bench, amount: int) -> None:
    await until(lambda: bench.server.info("clients")["blocked_clients"] >= amount)


async def test_all_who_wait_for_time_hear_of_a_short_lease(bench: Bench, others: list[RedisQueue]) -> None:
    waiting = [asyncio.create_task(queue.wait([], None)) for queue in others]
    await blocked(bench, len(others))
    await bench.queue.submit([message("1")])
    request = ClaimRequest(worker="w", wants={"work": Want(slots=1, quantum=1)}, lease_ms=200)
    assert len(await bench.queue.claim(request)) == 1
    await asyncio.wait_for(asyncio.gather(*waiting), 10)


async def test_all_who_wait_for_work_hear_of_a_lost_message(bench: Bench, others: list[RedisQueue]) -> None:
    await bench.queue.submit([message("1")])
    assert len(await bench.claim()) == 1
    waiting = [asyncio.create_task(queue.wait(["work"], None)) for queue in others]
    await blocked(bench, len(others))
    bench.server.set(f"{bench.prefix}:clock", NOW + 60_000)
    assert (await bench.queue.advance(10)).reaped == 1
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert bench.tokens("work") > 0  # for a worker that was busy
    await bench.claim()
    assert bench.tokens("work") == 0


async def test_a_renewal_offers_again_what_nobody_has_claimed(bench: Bench) -> None:
    """The worker that took the token may be suspended, and any other one renews its presence."""

    async def renew() -> None:
        await bench.queue.renew([], 1000, Presence(worker="v", labels=("work", "rest"), lives_ms=1000))

    await bench.queue.submit([message("1")])
    assert bench.server.lpop(f"{bench.prefix}:wake:work") is not None
    for _ in range(2):
        await renew()
        assert (bench.tokens("work"), bench.tokens("rest")) == (1, 0)
    await bench.queue.control(PauseLabel("work", "later"))
    assert await bench.claim() == []
    await renew()
    assert bench.tokens("work") == 0


async def test_the_queue_serves_several_event_loops(bench: Bench) -> None:
    await bench.queue.submit([message("1")])
    claims = await bench.claim()
    lost: list = []
    renewed = threading.Event()

    async def renew() -> None:
        lost.extend((await bench.queue.renew(claims, 30_000)).lost)
        renewed.set()

    thread = threading.Thread(target=lambda: asyncio.run(renew()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert (renewed.is_set(), lost) == (True, [])
    await bench.settle(*claims)


async def test_threads_submit_without_an_event_loop(bench: Bench) -> None:
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(bench.queue.submit_here, [message(str(n), f"u{n}")]) for n in range(40)]
        assert {future.result(30)[0].status for future in futures} == {"accepted"}
    (again,) = bench.queue.submit_here([message("1", "u1")])
    assert again.status == "duplicate"
    assert len(await bench.claim()) == 40


async def test_a_thread_connects_anew_and_brings_the_library_back(bench: Bench) -> None:
    bench.queue.submit_here([message("1")])
    bench.server.function_flush()
    bench.server.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: len(bench.server.client_list(_type="normal")) == 1)
    answers = bench.queue.submit_here([message("1"), message("2")])
    assert [answer.status for answer in answers] == ["duplicate", "accepted"]


async def test_a_thread_hears_that_the_server_is_away_and_that_the_queue_is_closed() -> None:
    with valkey() as url:
        backend = RedisBackend(url)
        await backend.open()
        backend.queue.submit_here([message("1")])
    with pytest.raises(BackendUnavailableError, match="did not answer"):
        backend.queue.submit_here([message("2")])
    await backend.close()
    with pytest.raises(ClosedError):
        backend.queue.submit_here([message("3")])


async def test_close_ends_the_connections_of_a_loop_that_still_runs(bench: Bench) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    work = asyncio.run_coroutine_threadsafe(bench.queue.advance(1), loop)
    await asyncio.wrap_future(work)
    await bench.backend.close()
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    loop.close()
    with pytest.raises(ClosedError):
        await bench.queue.advance(1)


# -- which servers are refused -----------------------------------------------------------------------


async def open_and_close(url: str, **options) -> str:
    backend = RedisBackend(url, **options)
    try:
        await backend.open()
        return backend.capabilities.durability
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"appendonly": "no"}, "appendonly"),
        ({"appendfsync": "no"}, "appendfsync"),
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy"),
    ],
)
async def test_a_server_that_may_forget_is_refused(config: dict[str, str], setting: str) -> None:
    with valkey(**config) as url:
        with pytest.raises(UnsafeServerError) as refusal:
            await open_and_close(url)
        assert (refusal.value.setting, refusal.value.value) == (setting, config[setting])
        expected = "everysec" if setting == "maxmemory-policy" else "none"
        assert await open_and_close(url, allow_volatile=True) == expected


async def test_a_server_that_does_not_show_its_settings_is_refused() -> None:
    with valkey() as url:
        with Redis.from_url(url) as server:
            server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "+@all", "-config")
        guest = url.replace("unix://", "unix://guest:word@")
        with pytest.raises(UnsafeServerError, match="durability_assumed") as refusal:
            await open_and_close(guest)
        assert "word@" not in str(refusal.value)
        assert await open_and_close(guest, durability_assumed=True) == "assumed"


@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_the_durability_is_named(fsync: str) -> None:
    with valkey(appendfsync=fsync) as url:
        assert await open_and_close(url) == fsync


async def test_an_old_server_is_refused() -> None:
    class OldServer:
        place = "redis://old"
        user = "default"

        async def call(self, *command: str) -> object:
            return b"# Server\r\nredis_version:6.2.14\r\n" if command == ("INFO",) else []

    with pytest.raises(UnsafeServerError, match=r"6\.2\.14"):
        await check_server(OldServer())


async def test_a_server_that_is_not_there_is_unavailable(unused_tcp_port: int) -> None:
    url = f"redis://ann:secret@127.0.0.1:{unused_tcp_port}/0"
    with pytest.raises(BackendUnavailableError, match="did not answer") as error:
        await open_and_close(url)
    assert "secret" not in str(error.value)
    assert f"redis://127.0.0.1:{unused_tcp_port}/0" in str(error.value)
    assert error.value.__cause__ is not None


async def test_a_server_that_goes_away_is_unavailable() -> None:
    with valkey() as url:
        backend = RedisBackend(url)
        await backend.open()
        await backend.queue.submit([message("1")])
    with pytest.raises(BackendUnavailableError):
        await backend.queue.submit([message("2")])
    await backend.close()


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("reverie.backends.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"reverie\[redis\]"):
        importlib.import_module("reverie.backends.redis")
