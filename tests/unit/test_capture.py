"""Capture while the backend is away, and how what was spooled waits for its turn."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from reverie import AsyncScheduler, Message, Scheduler
from reverie.backends.moves import Presence
from reverie.capture.ingester import SpoolIngester
from reverie.capture.spool import Spool
from reverie.errors import (
    BackendUnavailableError,
    InvalidMessageError,
    QueueFullError,
    SpoolFullError,
)
from reverie.server import create_app
from reverie.settings import load_settings
from support.servers import valkey_server
from support.spooling import NOTE, damaged, ingester_of, waiting


@pytest.fixture
def scheduler(idle_scheduler: AsyncScheduler) -> AsyncScheduler:
    return idle_scheduler


@pytest.fixture
def away_url(redis_url: str) -> Iterator[str]:
    """Where a Redis server may turn up."""
    if not redis_url.startswith("unix:"):
        pytest.skip("the server that was given has no socket that could be hidden")
    with tempfile.TemporaryDirectory(prefix="reverie-") as short:
        yield f"unix://{short}/redis.sock"


async def test_while_the_backend_is_away_nothing_is_removed(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    given = {spool.write(NOTE) for _ in range(3)}
    real = ingester._submit

    async def away(_: object) -> list:
        raise BackendUnavailableError("the server did not answer")

    ingester._submit = away
    assert await ingester.look() == 3600
    assert len(waiting(folder)) == 3
    ingester._submit = real
    await ingester.look()
    assert {item.item_id for item in await scheduler.status("ann")} == given


async def test_a_full_queue_is_filled_and_then_waited_for(tmp_path: Path, folder: Path) -> None:
    scheduler = AsyncScheduler(
        settings=load_settings(data_dir=tmp_path, queue={"url": "memory://", "max_depth": 7})
    )
    ran: list[str] = []
    scheduler.handler("note")(lambda message: ran.append(message.item_id))
    ingester = ingester_of(scheduler, folder)
    spool = Spool(folder)
    given = [spool.write(NOTE) for _ in range(20)]
    await scheduler.open()
    for left in (13, 6, 0):
        pause = await ingester.look()
        assert len(waiting(folder)) == left
        if left:
            with pytest.raises(QueueFullError) as full:
                await scheduler.submit("note", user_id="bob")
            assert pause == full.value.retry_after_s
        await scheduler.runtime.worker.drain()
    assert ran == given
    await scheduler.stop()


async def test_a_tenant_that_is_full_holds_up_only_its_own(tmp_path: Path, folder: Path) -> None:
    scheduler = AsyncScheduler(
        settings=load_settings(data_dir=tmp_path, queue={"url": "memory://", "max_depth_per_tenant": 5})
    )
    ran: list[tuple[str, str]] = []
    scheduler.handler("note")(lambda message: ran.append((message.user_id, message.content)))
    ingester = ingester_of(scheduler, folder)
    spool = Spool(folder)
    for number in range(300):
        spool.write(NOTE | {"content": str(number)})
    for number in range(5):
        spool.write(NOTE | {"user_id": "bob", "content": str(number)})
    await scheduler.open()
    await ingester.look()
    assert len(waiting(folder)) == 295
    await scheduler.runtime.worker.drain()
    assert {user for user, _ in ran} == {"ann", "bob"}
    while waiting(folder):
        await ingester.look()
        await scheduler.runtime.worker.drain()
    assert [content for user, content in ran if user == "ann"] == [str(number) for number in range(300)]
    assert ingester._owners == {}
    await scheduler.stop()


async def test_a_label_that_nobody_handles_yet_waits_for_a_worker(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = AsyncScheduler(
        settings=load_settings(data_dir=tmp_path, queue={"url": "memory://", "unknown_labels": "refuse"})
    )
    ingester, spool = ingester_of(scheduler, folder), Spool(folder)
    await scheduler.open()
    queue = scheduler.runtime.backend.queue
    await queue.renew([], 0, Presence(worker="a", labels=("note",), lives_ms=60_000))
    for user, label in (("ann", "note"), ("ann", "odd"), ("ann", "note"), ("bob", "note")):
        spool.write({"user_id": user, "label": label})
    for _ in range(2):
        assert await ingester.look() == 3600
        assert len(waiting(folder)) == 2, "the odd one, and what ann has said after it"
    assert damaged(folder) == {}
    assert [len(await scheduler.status(user)) for user in ("ann", "bob")] == [1, 1]
    assert caplog.text.count("label='odd': no live worker handles it") == 1
    await queue.renew([], 0, Presence(worker="b", labels=("odd",), lives_ms=60_000))
    await ingester.look()
    assert waiting(folder) == []
    assert len(await scheduler.status("ann")) == 3
    await scheduler.stop()


async def test_room_that_comes_in_between_does_not_change_the_order(tmp_path: Path, folder: Path) -> None:
    scheduler = AsyncScheduler(
        settings=load_settings(data_dir=tmp_path, queue={"url": "memory://", "max_depth_per_tenant": 5})
    )
    ran: list[str] = []
    scheduler.handler("note")(lambda message: ran.append(message.item_id))
    ingester = ingester_of(scheduler, folder)
    submit = ingester._submit

    async def submit_and_make_room(messages):
        try:
            return await submit(messages)
        except QueueFullError:
            if len(messages) == 1:
                await scheduler.runtime.worker.drain()
            raise

    ingester._submit = submit_and_make_room
    given = [Spool(folder).write(NOTE) for _ in range(20)]
    await scheduler.open()
    while waiting(folder):
        await ingester.look()
    await scheduler.runtime.worker.drain()
    assert ran == given
    await scheduler.stop()


async def test_looks_at_the_start(scheduler: AsyncScheduler, spool: Spool) -> None:
    taken = asyncio.Event()

    @scheduler.handler("signal")
    async def signal_it(_: Message) -> None:
        taken.set()

    spool.write(NOTE | {"label": "signal"})
    async with asyncio.timeout(60), scheduler:
        await taken.wait()


async def test_looks_by_itself(tmp_path: Path) -> None:
    scheduler = AsyncScheduler(settings=load_settings(data_dir=tmp_path, spool={"look_s": 0.01}))
    ran = asyncio.Event()

    @scheduler.handler("note")
    async def note(_: Message) -> None:
        ran.set()

    async with asyncio.timeout(60), scheduler:
        scheduler.runtime.spool.write(NOTE)
        await ran.wait()


def test_is_a_submit_while_the_backend_answers(tmp_path: Path) -> None:
    with Scheduler(settings=load_settings(data_dir=tmp_path)).used() as scheduler:
        for _ in range(2):  # by the bridge, then straight to the writer
            assert scheduler.capture("note", user_id="ann", content={"a": 1}).status == "accepted"
        assert len(scheduler.status("ann")) == 2
        again = [scheduler.capture("note", user_id="ann", item_id="i").status for _ in range(2)]
        assert again == ["accepted", "duplicate"]
    assert not (tmp_path / "spool").exists()


def test_a_bad_message_is_refused_and_not_spooled(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}", settings=load_settings(data_dir=tmp_path / "data"))
    with scheduler.used(), pytest.raises(InvalidMessageError, match="user_id"):
        scheduler.capture("note", user_id="_ann")
    assert not (tmp_path / "data").exists()


def test_spools_while_the_server_is_away(redis_url: str, tmp_path: Path, away_url: str) -> None:
    settings = load_settings(data_dir=tmp_path, queue={"url": away_url})
    with Scheduler(settings=settings).used() as scheduler:
        with pytest.raises(BackendUnavailableError):
            scheduler.submit("spool_note", user_id="ann")
        answers = [scheduler.capture("spool_note", user_id="ann", content=n) for n in range(3)]
    assert [answer.status for answer in answers] == ["spooled"] * 3
    assert len(waiting(settings.spool_dir)) == 3
    assert not scheduler.runtime.does("ingest")
    ran: list[str] = []
    more = threading.Semaphore(0)

    @scheduler.handler("spool_note")
    def note(message: Message) -> None:
        ran.append(message.item_id)
        more.release()

    Path(away_url.removeprefix("unix://")).symlink_to(redis_url.removeprefix("unix://"))
    with scheduler:
        assert all(more.acquire(timeout=60) for _ in answers)
        for answer in answers:
            assert scheduler.wait(answer.item_id, user_id="ann").status == "completed"
    assert ran == [answer.item_id for answer in answers]


@pytest.mark.parametrize("face", ["submit", "threads", "http"])
async def test_submits_are_spooled_too_if_they_may_be(tmp_path: Path, face: str) -> None:
    with valkey_server() as server:
        settings = load_settings(
            data_dir=tmp_path,
            queue={"url": server.url},
            memory={"url": f"sqlite:///{tmp_path / 'memory.db'}"},
            spool={"submits": True, "look_s": 0.05},
        )
        messages = [Message(label="note", user_id="ann", item_id=str(n), content="tea") for n in range(3)]
        ran: list[str] = []
        more = asyncio.Semaphore(0)
        scheduler = AsyncScheduler(settings=settings)

        @scheduler.handler("note")
        async def note(message: Message) -> None:
            ran.append(message.item_id)
            more.release()

        async with asyncio.timeout(60), scheduler:
            if face == "threads":
                given = Scheduler(settings=settings)
                await asyncio.to_thread(given.open)
            server.kill()
            if face == "submit":
                answers = [answer.status for answer in await scheduler.submit_messages(messages)]
            elif face == "threads":
                receipts = await asyncio.to_thread(given.submit_messages, messages)
                answers = [answer.status for answer in receipts]
                await asyncio.to_thread(given.close)
            else:
                answers = await _post(scheduler, messages)
            assert answers == ["spooled"] * 3
            server.start()
            for _ in messages:
                await more.acquire()
            for message in messages:
                assert (await scheduler.wait(message.item_id, user_id="ann")).status == "completed"
        assert ran == ["0", "1", "2"]
        assert waiting(settings.spool_dir) == []


async def _post(scheduler: AsyncScheduler, messages: list[Message]) -> list[str]:
    body = [
        {"label": one.label, "user_id": "ann", "item_id": one.item_id, "content": "tea"} for one in messages
    ]
    transport = httpx.ASGITransport(create_app(scheduler, run_worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post("/product/scheduler/submit", json={"messages": body})
    return [one["status"] for one in answer.json()["data"]]


def test_nothing_works(tmp_path: Path, away_url: str) -> None:
    settings = load_settings(
        data_dir=tmp_path, queue={"url": away_url}, spool={"dir": tmp_path / "s", "max_files": 1}
    )
    with Scheduler(settings=settings).used() as scheduler:
        assert scheduler.capture("note", user_id="ann").status == "spooled"
        with pytest.raises(SpoolFullError, match=r"spool\.max_files = 1") as refused:
            scheduler.capture("note", user_id="ann")
    assert isinstance(refused.value.__context__, BackendUnavailableError)


async def test_a_queue_in_memory_has_no_spool(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, queue={"url": "memory://"})
    async with AsyncScheduler(settings=settings) as scheduler:
        assert not scheduler.runtime.does("ingest")
        assert (await scheduler.capture("note", user_id="ann")).status == "accepted"


async def _take(messages, got: list[Message], scheduler: AsyncScheduler):
    answers = await scheduler.runtime.intake.submit(messages)
    got.extend(messages)
    return answers
