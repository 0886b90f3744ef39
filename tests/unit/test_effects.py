"""Effects of every kind: what each writes, what a version protects, and what a conflict leads to."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from reverie import Delete, Done, Link, Message, Remember, Revise, Scheduler, Supersede, Touch
from reverie.backends.moves import Status
from reverie.effect import Effect, Move
from reverie.memory.interface import Application, SearchQuery
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.memory.sqlite.effects import WRITERS
from reverie.settings import load_settings
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock, drain

ANN = Message(user_id="ann", label="work", item_id="1")


@pytest.fixture
async def store(tmp_path, clock):
    store = SqliteMemoryStore(Database(str(tmp_path / "m.db")), clock)
    await store.open()
    yield store
    await store.close()


async def apply(store, *effects, message: Message | None = None, prepare: bool = False) -> str:
    """Apply effects as those of one new message."""
    message = message or Message(user_id="ann", label="work")
    prepared = await store.prepare(effects) if prepare else None
    (applied,) = await store.apply([Application(message=message, effects=effects, prepared=prepared)])
    return applied.state


async def find(store, text: str) -> list[str]:
    return [hit.item.id for hit in await store.search(SearchQuery(text=text, user_id="ann"))]


def test_every_kind_has_a_writer_and_comes_back_from_json() -> None:
    effects = [
        Remember(memory_id="a", text="x"),
        Revise(memory_id="a", version=1, text="y"),
        Supersede(memory_id="a", version=2, successor="b"),
        Move(memory_id="a", version=1, tier="archive"),
        Touch(memory_id="a"),
        Link(source_id="a", relation="about", target_id="b"),
        Delete(memory_id="a", version=1),
    ]
    assert [type(effect) for effect in effects] == list(WRITERS)
    for effect in effects:
        assert msgspec.json.decode(msgspec.json.encode(effect), type=Effect) == effect


@pytest.mark.parametrize("prepare", [False, True])
async def test_revise_changes_what_is_given_and_the_index_with_it(store, prepare: bool) -> None:
    await apply(store, Remember(memory_id="a", text="green tea", tags=("drink",)), prepare=prepare)
    assert (
        await apply(store, Revise(memory_id="a", version=1, text="black coffee"), prepare=prepare)
        == "applied"
    )
    item = await store.get("ann", "a")
    assert (item.text, item.tags, item.version) == ("black coffee", ("drink",), 2)
    assert await find(store, "coffee") == ["a"]
    assert await find(store, "tea") == []


async def test_a_superseded_item_is_kept_and_not_found(store) -> None:
    await apply(store, Remember(memory_id="old", text="lives in Porto"))
    new = Remember(memory_id="new", text="lives in Lisbon")
    assert await apply(store, new, Supersede(memory_id="old", version=1, successor="new")) == "applied"
    assert await find(store, "lives") == ["new"]
    assert (await store.get("ann", "old")).superseded_by == "new"


async def test_an_item_is_superseded_only_by_one_that_exists(store) -> None:
    await apply(store, Remember(memory_id="old", text="lives in Porto"))
    assert await apply(store, Supersede(memory_id="old", version=1, successor="nothing")) == "rejected"
    assert await find(store, "lives") == ["old"]


async def test_move_and_touch(store, clock: ManualClock) -> None:
    await apply(store, Remember(memory_id="a", text="x"))
    clock.advance(1)
    assert (
        await apply(store, Move(memory_id="a", version=1, tier="archive"), Touch(memory_id="a")) == "applied"
    )
    item = await store.get("ann", "a")
    assert (item.tier, item.version, item.access_count, item.accessed_at) == ("archive", 2, 1, clock.now())
    assert await apply(store, Touch(memory_id="nothing")) == "applied"


async def test_a_deleted_id_is_never_written_again(store) -> None:
    await apply(store, Remember(memory_id="a", text="secret words"))
    await apply(
        store, Remember(memory_id="b", text="other"), Link(source_id="b", relation="about", target_id="a")
    )
    assert await apply(store, Delete(memory_id="a", version=1)) == "applied"
    assert await store.get("ann", "a") is None
    assert await apply(store, Remember(memory_id="a", text="secret words")) == "applied"
    assert await store.get("ann", "a") is None
    assert await find(store, "secret") == []


@pytest.mark.parametrize(
    "effect",
    [
        Revise(memory_id="a", version=1, text="z"),
        Move(memory_id="a", version=3, tier="archive"),
        Delete(memory_id="a", version=1),
        Supersede(memory_id="a", version=1, successor="b"),
        Revise(memory_id="gone", version=1, text="z"),
    ],
)
async def test_another_version_is_a_conflict_and_nothing_is_applied(store, effect) -> None:
    await apply(store, Remember(memory_id="a", text="x"), Remember(memory_id="b", text="y"))
    await apply(store, Revise(memory_id="a", version=1, text="changed"))
    message = Message(user_id="ann", label="work")
    assert await apply(store, Remember(memory_id="c", text="new"), effect, message=message) == "conflict"
    assert await store.get("ann", "c") is None
    assert (await store.get("ann", "a")).text == "changed"
    assert (
        await apply(store, Remember(memory_id="c", text="new"), message=message) == "applied"
    )  # no inbox row


async def test_a_message_may_change_one_item_twice(store) -> None:
    await apply(store, Remember(memory_id="a", text="x"))
    changes = (Revise(memory_id="a", version=1, text="y"), Move(memory_id="a", version=1, tier="archive"))
    assert await apply(store, *changes) == "applied"
    item = await store.get("ann", "a")
    assert (item.text, item.tier, item.version) == ("y", "archive", 3)


async def test_items_of_another_cube_cannot_be_changed(store) -> None:
    await apply(store, Remember(memory_id="a", text="x"))
    other = Message(user_id="ann", mem_cube_id="work", label="work")
    assert await apply(store, Revise(memory_id="a", version=1, text="y"), message=other) == "conflict"
    link = Link(source_id="a", relation="about", target_id="a")
    assert await apply(store, link, message=Message(user_id="bob", label="work")) == "rejected"


async def test_an_id_of_another_cube_is_refused_even_with_the_same_text(store) -> None:
    work, home = (Message(user_id="ann", mem_cube_id=cube, label="work") for cube in ("work", "home"))
    assert await apply(store, Remember(memory_id="a", text="tea"), message=work) == "applied"
    assert await apply(store, Remember(memory_id="a", text="tea"), message=home) == "rejected"


async def test_after_a_conflict_the_later_messages_of_its_lane_are_not_applied(store) -> None:
    await apply(store, Remember(memory_id="a", text="x"))
    await apply(store, Revise(memory_id="a", version=1, text="y"))
    conflict = Application(message=ANN, effects=(Revise(memory_id="a", version=1, text="z"),))
    behind = Application(
        message=Message(user_id="ann", label="work"), effects=(Remember(memory_id="b", text="b"),)
    )
    beside = Application(
        message=Message(user_id="ann", label="other"), effects=(Remember(memory_id="c", text="c"),)
    )
    applied = await store.apply([conflict, behind, beside])
    assert [answer.state for answer in applied] == ["conflict", "conflict", "applied"]


# -- through the worker, in one database and in two --------------------------------------------------------


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
    assert "memory 'note' has version 1, but the handler read version 7" in item.error
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
