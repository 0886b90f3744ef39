"""The outbox of the queue on Redis: submits that come while others are on their way go together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reverie import Message
from reverie.backends.moves import Submitted
from reverie.backends.redis.outbox import CALLS, MOST_CHARACTERS, MOST_MESSAGES, Outbox
from reverie.errors import BackendUnavailableError, QueueFullError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Server:
    """Takes calls, and answers each when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.refused: set[str] = set()
        self.away = False
        self.open = asyncio.Event()
        self._called = asyncio.Condition()

    async def send(self, messages: Sequence[Message]) -> list[Submitted]:
        ids = [message.item_id for message in messages]
        async with self._called:
            self.calls.append(ids)
            self._called.notify_all()
        await self.open.wait()
        if self.away:
            raise BackendUnavailableError("away")
        if self.refused.intersection(ids):
            raise QueueFullError("queue.max_depth", 1, 1.0)
        return [Submitted(item_id, "accepted") for item_id in ids]

    async def called(self, times: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: len(self.calls) >= times)


def message(item_id: object, content: str = "") -> Message:
    return Message(user_id="ann", label="note", item_id=str(item_id), content=content)


async def put(outbox: Outbox, *groups: Sequence[Message]) -> list[asyncio.Task[list[Submitted]]]:
    """Submit groups one after the other, each by a task of its own."""
    tasks = [asyncio.create_task(outbox.put(group)) for group in groups]
    await asyncio.sleep(0)
    return tasks


async def test_submits_of_one_turn_of_the_loop_go_together() -> None:
    server = Server()
    server.open.set()
    tasks = await put(Outbox(server.send), [message(1)], [message(2), message(3)])
    assert [[one.item_id for one in await task] for task in tasks] == [["1"], ["2", "3"]]
    assert server.calls == [["1", "2", "3"]]


async def test_submits_that_come_while_calls_are_on_their_way_wait_and_go_together() -> None:
    server = Server()
    outbox = Outbox(server.send)
    tasks = []
    for number in range(CALLS):
        tasks += await put(outbox, [message(number)])
        await server.called(number + 1)
    tasks += await put(outbox, *([message(number)] for number in range(CALLS, 20)))
    server.open.set()
    assert [(await task)[0].item_id for task in tasks] == [str(number) for number in range(20)]
    first = [[str(number)] for number in range(CALLS)]
    assert server.calls == [*first, [str(number) for number in range(CALLS, 20)]]


async def test_a_call_has_at_most_so_much_but_one_submit_is_never_divided() -> None:
    server = Server()
    server.open.set()
    large = [message(f"large-{number}", "x" * (MOST_CHARACTERS // 2)) for number in range(4)]
    many = [message(f"many-{number}") for number in range(MOST_MESSAGES + 1)]
    tasks = await put(Outbox(server.send), large[:1], large[1:2], large[2:], [message("small")], many)
    for task in tasks:
        assert {one.status for one in await task} == {"accepted"}
    assert sorted(len(call) for call in server.calls) == [2, 3, MOST_MESSAGES + 1]


async def test_a_refusal_concerns_only_the_submit_that_is_refused() -> None:
    server = Server()
    server.open.set()
    server.refused = {"2"}
    first, second, third = await put(Outbox(server.send), [message(1)], [message(2)], [message(3)])
    assert (await first)[0].status == (await third)[0].status == "accepted"
    with pytest.raises(QueueFullError):
        await second
    assert server.calls == [["1", "2", "3"], ["1"], ["2"], ["3"]]


async def test_nothing_is_sent_twice_if_the_server_may_have_it() -> None:
    server = Server()
    server.open.set()
    server.away = True
    tasks = await put(Outbox(server.send), [message(1)], [message(2)])
    for task in tasks:
        with pytest.raises(BackendUnavailableError):
            await task
    assert server.calls == [["1", "2"]]


async def test_one_who_no_longer_waits_disturbs_nobody() -> None:
    server = Server()
    gone, staying = await put(Outbox(server.send), [message(1)], [message(2)])
    await server.called(1)
    gone.cancel()
    server.open.set()
    assert (await staying)[0].item_id == "2"
    with pytest.raises(asyncio.CancelledError):
        await gone


def test_each_event_loop_sends_its_own_and_its_end_ends_what_waits() -> None:
    async def ask(outbox: Outbox, server: Server) -> None:
        server.open = asyncio.Event()
        server.open.set()
        assert (await outbox.put([message(1)]))[0].status == "accepted"
        server.open = asyncio.Event()
        await put(outbox, [message(2)])

    async def both() -> Outbox:
        server = Server()
        outbox = Outbox(server.send)
        await ask(outbox, server)
        return outbox

    outbox = asyncio.run(both())
    server = Server()
    outbox._send = server.send
    asyncio.run(ask(outbox, server))
