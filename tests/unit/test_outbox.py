"""Submits that come together are kept or refused one by one, whatever becomes of their neighbours."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reverie.backends.moves import QueueLimits, ScopeLimits, Submitted
from reverie.backends.sqlite import SqliteBackend
from reverie.errors import ClosedError, InvalidMessageError, QueueFullError, ReverieError
from reverie.message import Message
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock


@pytest.fixture
async def backend(tmp_path, clock: ManualClock):
    limits = QueueLimits(tenant=ScopeLimits(depth=3))
    backend = SqliteBackend(Database(str(tmp_path / "q.db"), "normal"), clock, limits)
    await backend.open()
    yield backend
    await backend.close()


def hold_writer(backend: SqliteBackend) -> threading.Event:
    """Keep the writer busy until the event is set, so that submits gather."""
    entered, release = threading.Event(), threading.Event()

    def job(_) -> None:
        entered.set()
        release.wait(30)

    backend._database.submit(job)
    assert entered.wait(30)
    return release


def message(item_id: str, user_id: str = "ann", **fields) -> Message:
    return Message(user_id=user_id, label="work", item_id=item_id, **fields)


def submit_soon(backend: SqliteBackend, *messages: Message) -> asyncio.Task[list[Submitted]]:
    return asyncio.create_task(backend.queue.submit(messages))


async def test_gathered_submits_are_answered_each_for_itself(backend: SqliteBackend) -> None:
    release = hold_writer(backend)
    submits = [
        submit_soon(backend, message("1"), message("2")),
        submit_soon(backend, message("1"), message("2", "bob")),
        submit_soon(backend, message("3", "bob", depends_on=("nobody",)), message("4", "bob")),
        submit_soon(backend, *(message(f"x{n}", "cem") for n in range(4))),
        submit_soon(backend, message("5", "bob")),
    ]
    await asyncio.sleep(0)  # all of them are under way
    release.set()

    async def outcome(submit: asyncio.Task[list[Submitted]]):
        try:
            return [one.status for one in await submit]
        except ReverieError as error:
            return type(error)

    assert [await outcome(submit) for submit in submits] == [
        ["accepted", "accepted"],
        ["duplicate", "accepted"],
        InvalidMessageError,
        QueueFullError,
        ["accepted"],
    ]
    assert [(state.waiting, state.label) for state in await backend.views.labels()] == [(4, "work")]


async def test_threads_that_block_are_answered_too(backend: SqliteBackend) -> None:
    release = hold_writer(backend)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(backend.queue.submit_here, [message(str(n), f"u{n}")]) for n in range(8)]
        release.set()
        assert [f.result(30)[0].status for f in futures] == ["accepted"] * 8


async def test_a_close_answers_those_who_wait(backend: SqliteBackend) -> None:
    release = hold_writer(backend)
    waiting = submit_soon(backend, message("1"))
    await asyncio.sleep(0)
    closing = threading.Thread(target=backend._database.close)
    closing.start()
    release.set()
    assert (await waiting)[0].status == "accepted"  # it was given before the end
    closing.join(30)
    with pytest.raises(ClosedError):
        await backend.queue.submit([message("2")])
    with pytest.raises(ClosedError):
        backend.queue.submit_here([message("3")])
