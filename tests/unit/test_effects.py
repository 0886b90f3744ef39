"""Effects through the worker, in one database and in two: what a conflict leads to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from reverie import Done, Message, Remember, Revise, Scheduler
from reverie.backends.moves import Status
from reverie.memory.interface import Application
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain


@pytest.fixture(params=["one database", "two databases"])
def scheduler(request: pytest.FixtureRequest, tmp_path, clock: ManualClock):
    queue = "memory://" if request.param == "two databases" else f"sqlite:///{tmp_path / 'q.db'}"
    settings = load_settings(
        queue={"url": queue, "durability": "normal"}, memory={"url": f"sqlite:///{tmp_path / 'q.db'}"}
    )
    scheduler = Scheduler(settings=settings, clock=clock)
    assert scheduler.runtime.backend.capabilities.applies_effects is (request.param == "one database")
    yield scheduler
    scheduler.close()


def remember(scheduler: Scheduler, memory_id: str, text: str) -> None:
    """Keep one memory of ann by a label of its own."""
    scheduler.handler("keep")(lambda _: Done(effects=[Remember(memory_id=memory_id, text=text)]))
    scheduler.submit("keep", user_id="ann")
    drain(scheduler)


def append(message: Message, ctx) -> Done:
    """Add a word to the memory `note`."""
    (item,) = ctx.memory.items(["note"])
    text = f"{item.text} {message.content}"
    return Done(effects=[Revise(memory_id="note", version=item.version, text=text)])


def test_two_workers_that_change_one_item_lose_no_change(scheduler: Scheduler) -> None:
    """Two lanes change the same item at the same time: one is handed back, reads again, and adds its word."""
    remember(scheduler, "note", "start")
    both = threading.Barrier(2)
    runs = []

    def work(message: Message, ctx) -> Done:
        done = append(message, ctx)
        runs.append(message.conflicts)
        if message.conflicts == 0:
            both.wait(30)  # both have read the first version
        return done

    scheduler.handler("one")(work)
    scheduler.handler("two")(work)
    receipts = [scheduler.submit(label, user_id="ann", content=label) for label in ("one", "two")]
    with scheduler:
        items = [scheduler.wait(receipt.item_id, user_id="ann") for receipt in receipts]
    assert [item.status for item in items] == [Status.COMPLETED] * 2
    assert [item.attempts for item in items] == [1, 1]
    assert sorted(runs) == [0, 0, 1]
    words = scheduler.memory.get("note", user_id="ann").text.split()
    assert (words[0], sorted(words[1:])) == ("start", ["one", "two"])


@pytest.mark.parametrize("queue", ["one database", "two databases", "redis"])
def test_two_schedulers_that_change_one_item_lose_no_change(tmp_path, redis_url: str, queue: str) -> None:
    """The same with two workers, each with its own connections, as in two processes."""
    own_file = f"sqlite:///{tmp_path / ('m.db' if queue == 'one database' else 'q.db')}"
    settings = load_settings(
        queue={
            "url": redis_url if queue == "redis" else own_file,
            "redis_prefix": f"effects-{tmp_path.name}",
            "allow_volatile": True,
        },
        memory={"url": f"sqlite:///{tmp_path / 'm.db'}"},
        data_dir=tmp_path,
    )
    both = threading.Barrier(2)
    conflicts = []

    def work(message: Message, ctx) -> Done:
        done = append(message, ctx)
        conflicts.append(message.conflicts)
        if message.conflicts == 0:
            both.wait(30)  # both have read the first version
        return done

    with Scheduler(settings=settings).used() as first, Scheduler(settings=settings).used() as second:
        remember(first, "note", "start")
        first.handler("one")(work)
        second.handler("two")(work)
        receipts = [first.submit(label, user_id="ann", content=label) for label in ("one", "two")]
        first.start()
        second.start()
        for receipt in receipts:
            assert first.wait(receipt.item_id, user_id="ann").status is Status.COMPLETED
        words = first.memory.get("note", user_id="ann").text.split()
    assert sorted(conflicts) == [0, 0, 1]
    assert (words[0], sorted(words[1:])) == ("start", ["one", "two"])


def test_a_lane_whose_second_message_builds_on_the_first(scheduler: Scheduler) -> None:
    """A batch sees its own first message; when that meets a conflict, the second is handed back with it."""
    remember(scheduler, "note", "start")
    seen: list[list[tuple[str, int]]] = []
    interfered = threading.Event()

    @scheduler.handler("work", batch=True)
    def work(messages, ctx):
        seen.append([(message.content, message.conflicts) for message in messages])
        answers = append_all(messages, ctx)
        if not interfered.is_set():
            interfered.set()
            interfere(scheduler)
        return answers

    for word in ("one", "two", "three"):
        scheduler.submit("work", user_id="ann", content=word)
    drain(scheduler)
    assert seen[0] == [("one", 0), ("two", 0), ("three", 0)]
    assert [pair for batch in seen[1:] for pair in batch] == [("one", 1), ("two", 0), ("three", 0)]
    assert scheduler.memory.get("note", user_id="ann").text == "start between one two three"
    assert {item.status for item in scheduler.status("ann")} == {Status.COMPLETED}
    assert {item.attempts for item in scheduler.status("ann")} == {1}


def append_all(messages, ctx) -> dict:
    """Append the content of each message to the note: each message builds on the one before it."""
    (item,) = ctx.memory_of(messages[0]).items(["note"])
    answers, text, version = {}, item.text, item.version
    for message in messages:
        text = f"{text} {message.content}"
        answers[message.key] = Done(effects=[Revise(memory_id="note", version=version, text=text)])
        version += 1
    return answers


def interfere(scheduler: Scheduler) -> None:
    """Change the memory `note` behind the back of a handler that has read it."""
    change = Revise(memory_id="note", version=1, text="start between")
    application = Application(message=Message(user_id="ann", label="other"), effects=(change,))
    (applied,) = asyncio.run_coroutine_threadsafe(
        scheduler.runtime.store.apply([application]), scheduler._bridge.loop()
    ).result(30)
    assert applied.state == "applied"


def test_five_conflicts_in_a_row_are_a_bug(scheduler: Scheduler, caplog, clock: ManualClock) -> None:
    remember(scheduler, "note", "start")
    runs = []

    @scheduler.handler("work", max_attempts=2)
    def work(message: Message) -> Done:
        runs.append((message.conflicts, message.attempts))
        return Done(effects=[Revise(memory_id="note", version=7, text="never")])

    receipt = scheduler.submit("work", user_id="ann")
    drain(scheduler)
    assert runs == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    item = scheduler.status("ann", receipt.item_id)[0]
    assert (item.status, item.attempts) == (Status.WAITING, 1)
    assert "5 times in a row" in item.error
    assert "memory 'note' has version 1, but the change is based on version 7" in item.error
    assert "handler.bug" in caplog.text
    clock.advance(300)
    drain(scheduler)
    assert runs[5:] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]
    assert scheduler.status("ann", receipt.item_id)[0].status is Status.FAILED


def test_memos_of_steps_that_read_memory_do_not_outlive_a_conflict(scheduler: Scheduler) -> None:
    remember(scheduler, "note", "start")
    paid: list[str] = []

    @scheduler.handler("work")
    def work(message: Message, ctx) -> Done:
        ctx.memo("before", lambda: paid.append("before"))
        (item,) = ctx.memory.items(["note"])
        text = ctx.memo("after", lambda: paid.append("after") or f"{item.text} and more")
        if message.conflicts == 0:
            interfere(scheduler)
        return Done(effects=[Revise(memory_id="note", version=item.version, text=text)])

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    assert paid == ["before", "after", "after"]
    assert scheduler.memory.get("note", user_id="ann").text == "start between and more"


def test_a_memo_made_of_a_memo_of_memory_does_not_outlive_a_conflict(
    scheduler: Scheduler, clock: ManualClock
) -> None:
    """A later run finds what the first has read as a memo, and keeps another that is made of it."""
    remember(scheduler, "note", "start")

    @scheduler.handler("work")
    def work(message: Message, ctx) -> Done:
        text, version = ctx.memo("read", lambda: [(i.text, i.version) for i in ctx.memory.items(["note"])])[0]
        if message.attempts == 0:
            raise RuntimeError("once")
        text = ctx.memo("made", lambda: f"{text} and more")
        if message.conflicts == 0:
            interfere(scheduler)
        return Done(effects=[Revise(memory_id="note", version=version, text=text)])

    scheduler.submit("work", user_id="ann")
    drain(scheduler)
    clock.advance(300)
    drain(scheduler)
    assert scheduler.memory.get("note", user_id="ann").text == "start between and more"


def test_what_a_message_has_read_does_not_concern_the_memos_of_its_neighbour(scheduler: Scheduler) -> None:
    remember(scheduler, "note", "start")
    paid: list[str] = []

    @scheduler.handler("work", concurrency=1)
    def work(message: Message, ctx) -> Done | None:
        if message.content == "reads":
            ctx.memory.items(["note"])
            return None
        ctx.memo("dear", lambda: paid.append(message.content))
        (item,) = ctx.memory.items(["note"])
        if message.content == "pays" and message.conflicts == 0:
            interfere(scheduler)
        return Done(effects=[Revise(memory_id="note", version=item.version, text="paid")])

    scheduler.submit("work", user_id="ann", content="reads")
    drain(scheduler)  # the next two are quick enough for one batch
    for content in ("reads", "pays"):
        scheduler.submit("work", user_id="ann", content=content)
    drain(scheduler)
    assert paid == ["pays"]


@pytest.mark.parametrize("fails", ["apply", "settle"])
def test_a_conflict_in_a_group_that_is_split_holds_up_the_rest_of_its_lane(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The group cannot be sent as a whole: its members are settled one by one, and still in their order."""
    remember(scheduler, "note", "start")
    interfered = threading.Event()

    @scheduler.handler("work", batch=True)
    def work(messages, ctx):
        answers = append_all(messages, ctx)
        if not interfered.is_set():
            interfered.set()
            interfere(scheduler)
        return answers

    def only_one(original):
        async def call(batch):
            if len(batch) > 1:
                raise RuntimeError("too many")
            return await original(batch)

        return call

    runtime = scheduler.runtime
    owner = runtime.store if fails == "apply" else runtime.backend.queue
    monkeypatch.setattr(owner, fails, only_one(getattr(owner, fails)))
    for word in ("one", "two"):
        scheduler.submit("work", user_id="ann", content=word)
    drain(scheduler)
    assert scheduler.memory.get("note", user_id="ann").text == "start between one two"
    assert {item.status for item in scheduler.status("ann")} == {Status.COMPLETED}


def test_effects_are_prepared_off_the_writer_and_late_ones_are_applied_all_the_same(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    store = scheduler.runtime.store
    original = store.prepare

    async def prepare(effects):
        threads.append(threading.current_thread().name)
        if len(threads) == 2:
            await asyncio.Event().wait()  # as a slow embedder would
        return await original(effects)

    monkeypatch.setattr(store, "prepare", prepare)
    for n in range(3):
        scheduler.runtime.worker._prepare_s = 0.05 if n == 1 else 60  # the second is late
        scheduler.memory.add(f"tea number {n}", user_id="ann")
        drain(scheduler)
    assert len(threads) == 3
    assert "reverie-sqlite-writer" not in threads
    assert len(scheduler.memory.search("tea", user_id="ann")) == 3
