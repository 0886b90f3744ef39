"""Submits that come together are kept or refused one by one, whatever becomes of their neighbours."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from reverie.backends.moves import QueueLimits, ScopeLimits
from reverie.backends.sqlite import SqliteBackend
from reverie.errors import ClosedError, InvalidMessageError, QueueFullError
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


async def test_gathered_submits_are_answered_each_for_itself(backend: SqliteBackend) -> None:
    release = hold_writer(backend)
    submits = [
        backend.queue.submit_soon([message("1"), message("2")]),
        backend.queue.submit_soon([message("1"), message("2", "bob")]),
        backend.queue.submit_soon([message("3", "bob", depends_on=("nobody",)), message("4", "bob")]),
        backend.queue.submit_soon([message(f"x{n}", "cem") for n in range(4)]),
        backend.queue.submit_soon([message("5", "bob")]),
    ]
    release.set()

    def outcome(future):
        error = future.exception(30)
        return type(error) if error else [one.status for one in future.result().answers]

    assert [outcome(future) for future in submits] == [
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
        assert [f.result(30).answers[0].status for f in futures] == ["accepted"] * 8


async def test_a_close_answers_those_who_wait(backend: SqliteBackend) -> None:
    release = hold_writer(backend)
    waiting = backend.queue.submit_soon([message("1")])
    closing = threading.Thread(target=backend._database.close)
    closing.start()
    release.set()
    assert waiting.result(30).answers[0].status == "accepted"  # it was given before the end
    closing.join(30)
    late = backend.queue.submit_soon([message("2")])
    assert isinstance(late.exception(30), ClosedError)
    with pytest.raises(ClosedError):
        backend.queue.submit_here([message("3")])
