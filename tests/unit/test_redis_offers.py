"""Requests for work that stand while a worker waits: a submit claims for one of them in the same step."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from redis.asyncio.connection import AbstractConnection

from reverie import Message
from reverie.backends.control import PauseLabel
from reverie.backends.moves import ClaimRequest, LevelRoom, Presence, Want
from reverie.backends.redis.connection import Connections
from reverie.face.scheduler import AsyncScheduler
from reverie.settings import Settings
from support.living import started, until
from support.redis_bench import Bench, message

LABELS = ("work",)


def request(worker: str = "w", label: str = "work", *, stands: bool = True, **want) -> ClaimRequest:
    wants = {label: Want(**{"slots": 2, **want})}
    return ClaimRequest(worker=worker, wants=wants, stands=stands)


async def stand(bench: Bench, worker: str = "w", **want) -> None:
    """Let a request stand, of a worker that the server sees to be there."""
    assert await bench.queue.claim(request(worker, **want)) == []
    channel = f"{bench.prefix}:worker:{worker}"
    await until(lambda: dict(bench.server.pubsub_numsub(channel))[channel.encode()] == 1)


def offers(bench: Bench) -> set[bytes]:
    return set(bench.server.hkeys(f"{bench.prefix}:offers"))


async def test_a_submit_claims_for_a_worker_that_waits(bench: Bench) -> None:
    await stand(bench)
    waiting = await started(bench.queue.wait(LABELS, None))
    await bench.queue.submit([message("1")])
    assert bench.meta(message("1"))["status"] == "in_progress"
    (claim,) = await waiting
    assert (claim.message.item_id, claim.message.content) == ("1", "1")
    assert claim.message.redis_message_id
    assert offers(bench) == set()
    assert bench.tokens("work") == 0, "nobody else is woken for it"
    await bench.settle(claim)
    assert bench.meta(message("1"))["status"] == "completed"


async def test_what_does_not_fit_is_left_to_others(bench: Bench) -> None:
    await stand(bench, slots=2)
    waiting = await started(bench.queue.wait(LABELS, None))
    await bench.queue.submit([message("1", f"u{n}") for n in range(5)])
    assert len(await waiting) == 2
    assert bench.tokens("work") == 1
    assert len(await bench.claim(worker="other")) == 3


async def test_large_submits_wake_workers_instead(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.submit([message("1", f"u{n}") for n in range(11)])
    assert offers(bench) == {b"w"}
    assert bench.tokens("work") == 4


async def test_a_worker_that_is_gone_is_given_nothing(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.close()
    channel = f"{bench.prefix}:worker:w"
    await until(lambda: dict(bench.server.pubsub_numsub(channel))[channel.encode()] == 0)
    await bench.queue.submit([message("1")])
    assert bench.meta(message("1"))["status"] == "waiting"
    assert offers(bench) == set()
    assert bench.tokens("work") == 1


async def test_a_worker_can_go_while_it_is_arriving(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own time limit swallows a cancellation that comes at the moment a send is through."""
    send = AbstractConnection.send_command
    arriving = asyncio.Event()

    async def send_and_swallow(self, *command, **options) -> None:
        await send(self, *command, **options)
        if command[0] == "SUBSCRIBE":
            arriving.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    monkeypatch.setattr(AbstractConnection, "send_command", send_and_swallow)
    assert await bench.queue.claim(request()) == []
    await arriving.wait()
    async with asyncio.timeout(5):
        await bench.queue.close()


async def test_a_request_that_does_not_stand_is_given_nothing(bench: Bench) -> None:
    await stand(bench)
    assert await bench.queue.claim(request(stands=False)) == []
    await bench.queue.claim(ClaimRequest(worker="w", wants={}))  # takes back what stood
    await bench.queue.submit([message("1")])
    assert bench.meta(message("1"))["status"] == "waiting"


async def test_a_worker_that_takes_its_leave_is_given_nothing(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.renew([], 0, Presence(worker="w", labels=()))
    assert offers(bench) == set()


async def test_other_labels_and_levels_without_room_are_not_served(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.submit([message("1", label="other")])
    assert offers(bench) == {b"w"}
    full = ClaimRequest(
        worker="w",
        wants={"work": Want(slots=2, level=3)},
        slots=2,
        levels={3: LevelRoom(share=0, most=0)},
        stands=True,
    )
    assert await bench.queue.claim(full) == []
    await bench.queue.submit([message("2")])
    assert bench.meta(message("2"))["status"] == "waiting"
    assert bench.tokens("work") == 1


async def test_nothing_of_a_paused_label_is_given(bench: Bench) -> None:
    await bench.queue.control(PauseLabel("work"))
    await stand(bench)
    await bench.queue.submit([message("1")])
    assert bench.meta(message("1"))["status"] == "waiting"


async def test_the_next_claim_brings_what_nobody_has_read(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.submit([message("1")])  # nobody waits yet
    (claim,) = await bench.queue.claim(request())
    assert claim.message.item_id == "1"
    await bench.settle(claim)


async def test_a_wait_that_is_cancelled_too_late_still_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand(bench)
    await bench.queue.submit([message("1")])
    hand = f"{bench.prefix}:hand:w"

    async def block(_self, _seconds, *command, late) -> None:
        assert command[1] == hand
        late([hand.encode(), bench.server.lpop(hand)])
        raise asyncio.CancelledError

    monkeypatch.setattr(Connections, "block", block)
    (claim,) = await bench.queue.wait(LABELS, None)
    await bench.settle(claim)


async def test_what_a_dead_worker_was_given_is_handed_on(bench: Bench) -> None:
    await stand(bench)
    await bench.queue.submit([message("1")])
    bench.clock.advance(31)
    await bench.queue.advance(100)
    meta = bench.meta(message("1"))
    assert (meta["status"], meta["losses"]) == ("waiting", 1)
    assert bench.server.pttl(f"{bench.prefix}:hand:w") > 0, "what nobody reads goes by itself"


async def test_a_worker_that_stops_leaves_nothing_to_its_lease(bench: Bench, redis_url: str) -> None:
    """Submits and stops at the same time: whatever was given runs, whatever was not waits."""
    settings = Settings(queue={"url": redis_url, "redis_prefix": bench.prefix, "allow_volatile": True})
    settings.memory.url = "memory://"
    for number in range(20):
        scheduler = AsyncScheduler(settings=settings)

        @scheduler.handler("work")
        async def work(message: Message) -> None:
            pass

        async with scheduler:
            channel = f"{bench.prefix}:worker:*"
            await until(lambda: bench.server.pubsub_channels(channel))  # noqa: B023
            submitted = asyncio.create_task(bench.queue.submit([message(str(number))]))
        await submitted
        assert bench.meta(message(str(number)))["status"] in {"completed", "waiting"}
    assert bench.server.hlen(f"{bench.prefix}:claims") == 0
    assert offers(bench) == set()
