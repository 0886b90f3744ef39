"""Triggers on SQLite: what the model in memory says, one step with the queue, and a file that stays small."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.backends.control import CancelItems, Selection
from reverie.backends.memory import MemoryBackend
from reverie.backends.moves import ClaimRequest, Move, QueueLimits, Settlement, Want
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.sqlite import step as step_module
from reverie.backends.sqlite.trigger_rows import write_runs
from reverie.backends.triggers import (
    TRIGGERS,
    Activity,
    CancelTrigger,
    Definition,
    Firing,
    RunTrigger,
    SwitchType,
)
from reverie.backends.views import StatusQuery
from reverie.base.clock import from_epoch_ms
from reverie.errors import BackendUnavailableError
from reverie.message import Message
from reverie.storage.sqlite import Database
from reverie.testing import ManualClock
from support.living import passes, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reverie.backends.interface import Backend

LIMITS = QueueLimits(max_losses=1)
DAY_S = 86_400
TYPES = ("first", "second")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "q.db")


async def opened(path: str, clock: ManualClock) -> SqliteBackend:
    backend = SqliteBackend(Database(path, "normal"), clock, LIMITS)
    await backend.open()
    return backend


@pytest.fixture
async def backend(path: str, clock: ManualClock) -> AsyncIterator[SqliteBackend]:
    backend = await opened(path, clock)
    await backend.triggers.put([Definition(name=name, fields={}, enabled=True, version=1) for name in TYPES])
    yield backend
    await backend.close()


def activity(user: str = "ann", task_type: str = "first", **fields) -> Activity:
    return Activity(task_type=task_type, user_key=user, user_id=user, **({"interval_ms": 1000} | fields))


async def fire(backend: Backend, *types: str, limit: int = 100, **fields) -> list[bool]:
    due = await backend.triggers.due(dict.fromkeys(types or TYPES, ()), limit)
    return await backend.triggers.fire(
        [
            Firing(
                trigger=task,
                message=Message(
                    user_id=task.user_id or "_system",
                    label=task.task_type,
                    item_id=f"{task.task_type}:{task.user_key}:{task.scheduled_at}",
                    user_key=task.user_key,
                    **fields,
                ),
            )
            for task in due.triggers
        ]
    )


async def claim(backend: Backend, label: str = "first", lease_ms: int = 30_000):
    wants = {label: Want(slots=100)}
    return await backend.queue.claim(ClaimRequest(worker="w", wants=wants, lease_ms=lease_ms))


async def fired(backend: SqliteBackend, clock: ManualClock, *users: str, **fields) -> None:
    await backend.triggers.touch([activity(user) for user in users or ("ann",)])
    clock.advance(1)
    assert all(await fire(backend, **fields))


async def both(backend: SqliteBackend) -> tuple[str, str]:
    """How the message of ann's run stands, and how her task."""
    (task,) = await backend.triggers.states("first", "ann")
    page = await backend.views.read(StatusQuery(user_id="ann", item_id=task.item_id))
    return str(page.rows[0].status), task.status


# -- the model ---------------------------------------------------------------------------------------


async def act(backend: Backend, dice: random.Random, clock: ManualClock) -> object:
    """One thing that may happen, and what it answers."""
    users = [dice.choice("abcd") for _ in range(dice.randrange(1, 4))]
    kind = dice.choice((*TYPES, "cron"))
    mine = activity(users[0], dice.choice(TYPES), interval_ms=dice.randrange(1, 4000))
    what = dice.choice(
        ("touch", "touch", "move", "due", "fire", "fire", "end", "end", "person", "skip", "put")
    )
    triggers = backend.triggers
    if what == "touch":
        return await triggers.touch([activity(user, dice.choice(TYPES)) for user in users])
    if what == "move":
        moving = activity(users[0], debounce=True, max_wait_ms=dice.choice((None, 1500)))
        return await triggers.touch([moving, moving])
    if what == "due":
        depends_on = {"first": (), "second": ("first",), "cron": ("cron",) if dice.random() < 0.1 else ()}
        return await triggers.due(depends_on, dice.randrange(4))
    if what == "fire":
        return await fire(backend, kind, limit=3)
    if what == "skip":
        due = await triggers.due({"cron": ()}, 1)
        after = clock.now() + dice.randrange(3000)
        skipped = [
            Firing(trigger=task, message=None, next_at=after, next_anchor=after) for task in due.triggers
        ]
        return await triggers.fire(skipped)
    if what == "end":
        claims = sorted(await claim(backend, kind), key=lambda one: one.message.item_id)
        move = dice.choice((Move.COMPLETE, Move.COMPLETE, Move.BURY, Move.CANCEL, Move.RETRY, Move.LOSE))
        ended = await backend.queue.settle([Settlement(claim=one, move=move, error="no") for one in claims])
        return [answer.state for answer in ended]
    if what == "put":
        version, due = dice.randrange(6), clock.now() + 500
        fields = {"interval": str(version // 2)}
        return await triggers.put(
            [Definition(name="cron", fields=fields, enabled=True, version=version, first_due=due)]
        )
    switch = SwitchType(kind, enabled=dice.random() < 0.8)
    return await triggers.control(
        dice.choice((CancelTrigger(mine.task_type, users[0]), RunTrigger(mine), switch))
    )


@pytest.mark.parametrize("seed", range(12))
async def test_it_does_what_the_model_does(path: str, seed: int) -> None:
    clocks = [ManualClock(start_ms=1_800_000_000_000) for _ in range(2)]
    backends: list[Backend] = [MemoryBackend(clocks[0], LIMITS), await opened(path, clocks[1])]
    choices = random.Random(seed)
    first = Definition(name="first", fields={}, enabled=True, version=1)
    for backend in backends:
        await backend.triggers.put([first, Definition(name="second", fields={}, enabled=True, version=1)])
    for _ in range(150):
        number, later = choices.random(), choices.randrange(1, 900) / 1000
        answers, states = [], []
        for backend, clock in zip(backends, clocks, strict=True):
            clock.advance(later)
            answers.append(await act(backend, random.Random(number), clock))
            tasks = [await backend.triggers.states(name) for name in (*TYPES, "cron")]
            states.append((tasks, await backend.triggers.statistics(), await backend.triggers.types()))
        assert answers[1] == answers[0]
        assert states[1] == states[0]
    await backends[1].close()


# -- one step with the queue -------------------------------------------------------------------------


class BrokenError(RuntimeError):
    """What the tests raise."""


async def end_by_settling(backend: SqliteBackend, clock: ManualClock, move: Move) -> None:
    claims = await claim(backend)
    await backend.queue.settle([Settlement(claim=one, move=move, error="no") for one in claims])


async def end_by_cancel(backend: SqliteBackend, clock: ManualClock) -> None:
    await backend.queue.control(CancelItems(Selection(user_id="ann", label="first")))


async def end_by_deadline(backend: SqliteBackend, clock: ManualClock) -> None:
    clock.advance(60)
    await backend.queue.advance(10)


async def end_by_late_claim(backend: SqliteBackend, clock: ManualClock) -> None:
    clock.advance(60)
    assert await claim(backend) == []


async def end_by_loss(backend: SqliteBackend, clock: ManualClock) -> None:
    await claim(backend, lease_ms=1000)
    clock.advance(2)
    await backend.queue.advance(10)


ENDS = {
    "completed": lambda *given: end_by_settling(*given, Move.COMPLETE),
    "buried": lambda *given: end_by_settling(*given, Move.BURY),
    "cancelled": lambda *given: end_by_settling(*given, Move.CANCEL),
    "lost": lambda *given: end_by_settling(*given, Move.LOSE),
    "cancelled while it waits": end_by_cancel,
    "deadline": end_by_deadline,
    "deadline seen by a claim": end_by_late_claim,
    "lost too often": end_by_loss,
}


@pytest.mark.parametrize("end", ENDS)
async def test_message_and_task_end_together_or_not_at_all(
    backend: SqliteBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await fired(backend, clock, deadline=from_epoch_ms(clock.now() + 31_000))

    def fail(*_: object) -> None:
        raise BrokenError

    monkeypatch.setattr(step_module, "write_runs", fail)
    with pytest.raises(BrokenError):
        await ENDS[end](backend, clock)
    assert (await both(backend))[0] in {"waiting", "in_progress"}
    assert (await both(backend))[1] == "running"
    monkeypatch.setattr(step_module, "write_runs", write_runs)
    clock.advance(60)  # whoever has a claim has lost it
    await backend.queue.advance(10)
    assert await both(backend) == ("failed", "failed")


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_message_ends_its_run(
    backend: SqliteBackend, clock: ManualClock, end: str
) -> None:
    await fired(backend, clock, deadline=from_epoch_ms(clock.now() + 31_000))
    await ENDS[end](backend, clock)
    message, task = await both(backend)
    assert task == ("completed" if end == "completed" else "failed")
    assert message in {task, "cancelled"}
    (found, _) = await backend.triggers.statistics()
    assert (found.runs, found.running, found.failures) == (1, 0, 0 if end == "completed" else 1)


async def test_a_run_that_fails_with_what_it_depends_on(backend: SqliteBackend, clock: ManualClock) -> None:
    await backend.queue.submit([Message(user_id="ann", item_id="parent", label="other")])
    await fired(backend, clock, depends_on=("parent",))
    assert await both(backend) == ("waiting", "running")
    await backend.queue.control(CancelItems(Selection(user_id="ann", item_ids=("parent",))))
    assert await both(backend) == ("failed", "failed")


async def test_what_is_taken_back_has_ended_no_run(backend: SqliteBackend, clock: ManualClock) -> None:
    await fired(backend, clock, unique_key="one")
    await backend.queue.submit([Message(user_id="ann", label="work")])
    (working,) = await claim(backend, "work")
    replacing = Message(user_id="ann", label="first", unique_key="one", unique_policy="replace")
    unwritable = Message(user_id="ann", label="work", info={"what": object()})
    settlement = Settlement(claim=working, move=Move.COMPLETE, follow_ups=(replacing, unwritable))
    assert [answer.state for answer in await backend.queue.settle([settlement])] == ["rejected"]
    assert await both(backend) == ("waiting", "running")


CHILD = """
import asyncio, os, signal, sys
from reverie.backends.moves import ClaimRequest, Move, Settlement, Want
from reverie.backends.sqlite import SqliteBackend, step
from reverie.base.clock import SystemClock
from reverie.storage.sqlite import Database

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(path, move):
    backend = SqliteBackend(Database(path), SystemClock())
    await backend.open()
    claims = await backend.queue.claim(ClaimRequest(worker="child", wants={"first": Want(slots=1)}))
    assert len(claims) == 1
    if "REVERIE_FAILPOINT" not in os.environ:
        step.write_runs = die
    await backend.queue.settle([Settlement(claim=claims[0], move=Move[move], error="no")])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("move", ["COMPLETE", "BURY"])
@pytest.mark.parametrize("point", [None, "inside_settle"])
async def test_killed_between_the_end_of_the_message_and_of_the_task(
    backend: SqliteBackend, path: str, clock: ManualClock, move: str, point: str | None
) -> None:
    """Without a failpoint it dies between the two; `inside_settle` is after both, before the commit."""
    await fired(backend, clock)
    await backend.close()
    command = [sys.executable, "-c", CHILD, path, move]
    environment = {} if point is None else {"REVERIE_FAILPOINT": point}
    died = await asyncio.to_thread(subprocess.run, command, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    await backend.open()
    assert await both(backend) == ("in_progress", "running")


async def test_messages_of_nobodys_trigger_cost_nothing(backend: SqliteBackend, clock: ManualClock) -> None:
    await fired(backend, clock)
    seen: list[str] = []

    def watch(_: object, statement: str, __: object) -> bool:
        seen.append(statement)
        return True

    await backend.queue.written(lambda step: step.connection.set_exec_trace(watch))
    await backend.queue.submit([Message(user_id="ann", label="work", item_id=str(n)) for n in range(3)])
    await backend.queue.control(CancelItems(Selection(user_id="ann", item_ids=("0",))))
    one, other = await claim(backend, "work")
    await backend.queue.settle([Settlement(claim=one, move=Move.COMPLETE)])
    await backend.queue.settle([Settlement(claim=other, move=Move.BURY, error="no")])
    assert len(seen) > 10
    assert [statement for statement in seen if "trigger_" in statement] == []
    await backend.queue.control(CancelItems(Selection(user_id="ann", label="first")))
    assert [statement for statement in seen if "trigger_" in statement]


async def test_the_end_of_a_run_that_nobody_noted(path: str, clock: ManualClock) -> None:
    """By a process of an earlier version, or because a damaged file has lost its message."""
    backend = await opened(path, clock)
    await backend.triggers.put([Definition(name="first", fields={}, enabled=True, version=1)])
    await fired(backend, clock, "ann", "bob", "cem", "dan")
    await backend.triggers.touch([activity("cem")])
    await backend.close()
    file = apsw.Connection(path)
    ended = "UPDATE pending_messages SET status = ?, processed_at_epoch = ? WHERE user_id = ?"
    file.execute(ended, ("completed", clock.now(), "ann"))
    file.execute("DELETE FROM pending_messages WHERE user_id = 'bob'")
    file.execute(ended, ("failed", clock.now(), "cem"))
    file.execute("UPDATE queue_counters SET turn = turn + 1")
    file.close()
    backend = await opened(path, clock)
    found = {task.user_id: task for task in await backend.triggers.states("first")}
    assert {user: task.status for user, task in found.items()} == {
        "ann": "completed",
        "bob": "failed",
        "cem": "pending",
        "dan": "running",
    }
    assert found["ann"].last_exec == clock.now()
    assert found["cem"].scheduled_at == clock.now() + 1000
    (touched,) = await backend.queue.written(lambda step: step.rows("SELECT sum(touched) FROM trigger_tasks"))
    assert touched == (0,), "what was touched is scheduled instead"
    (counted,) = await backend.triggers.statistics()
    assert (counted.pending, counted.running) == (1, 1)
    clock.advance(DAY_S)
    await backend.triggers.fire([])
    assert [task.user_id for task in await backend.triggers.states("first")] == ["cem", "dan"]
    await backend.close()


async def test_a_run_whose_message_has_ended_before_is_not_waited_for(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    await backend.triggers.control(RunTrigger(activity()))
    for _ in range(2):  # twice within one millisecond: the second has the id of the first
        assert await fire(backend) == [True]
        await end_by_settling(backend, clock, Move.COMPLETE)
        assert await both(backend) == ("completed", "completed")
        await backend.triggers.control(RunTrigger(activity()))


# -- waking ------------------------------------------------------------------------------------------


async def heard(backend: SqliteBackend) -> None:
    async with asyncio.timeout(10):
        await backend.queue.wait((TRIGGERS,), None)


async def test_other_processes_hear_of_due_times_and_ends(
    backend: SqliteBackend, path: str, clock: ManualClock
) -> None:
    other = await opened(path, clock)
    waiting = await started(heard(other))
    await backend.triggers.touch([activity()])
    await waiting
    clock.advance(1)
    await fire(backend)
    waiting = await started(heard(other))
    await end_by_settling(backend, clock, Move.COMPLETE)
    await waiting
    await other.close()


async def test_who_is_merely_touched_wakes_nobody(backend: SqliteBackend, clock: ManualClock) -> None:
    await backend.triggers.touch([activity()])
    await heard(backend)
    waiting = await started(backend.queue.wait((TRIGGERS,), None))
    await backend.triggers.touch([activity(), activity(debounce=True)])
    await passes(20)  # who is woken is woken before the touch is answered
    assert not waiting.done()
    await backend.triggers.touch([activity("bob")])
    async with asyncio.timeout(10):
        await waiting


# -- retention ---------------------------------------------------------------------------------------


async def test_what_ended_long_ago_is_forgotten_in_portions(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    users = [f"u{n:03}" for n in range(250)]
    await fired(backend, clock, *users[:100])
    await end_by_settling(backend, clock, Move.COMPLETE)
    await fired(backend, clock, *users[100:200])
    await end_by_settling(backend, clock, Move.BURY)
    await fired(backend, clock, *users[200:225])  # under way
    await backend.triggers.touch([activity(user) for user in users[225:]])  # scheduled
    await backend.triggers.touch([activity(user, interval_ms=3 * DAY_S * 1000) for user in users[:10]])

    async def left() -> int:
        count = "SELECT count(*) FROM trigger_tasks WHERE task_type = 'first'"
        ((rows,),) = await backend.queue.written(lambda step: step.rows(count))
        return rows

    clock.advance(DAY_S - 3)
    await backend.triggers.fire([])
    assert await left() == 250
    clock.advance(3)
    seen = []
    for _ in range(3):
        await backend.triggers.fire([])
        seen.append(await left())
    assert seen == [150, 60, 60]
    (counted, _) = await backend.triggers.statistics()
    assert (counted.pending, counted.running) == (35, 25)


async def test_a_finished_task_that_was_cancelled_since_is_forgotten_too(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    await fired(backend, clock)
    await end_by_settling(backend, clock, Move.COMPLETE)
    await backend.triggers.touch([activity()])
    assert await backend.triggers.control(CancelTrigger("first", "ann"))
    assert [task.status for task in await backend.triggers.states("first")] == ["completed"]
    clock.advance(DAY_S)
    await backend.triggers.fire([])
    assert await backend.triggers.states("first") == []


# -- tasks that wait for others ----------------------------------------------------------------------

DEPENDS_ON = {"second": ("first",)}


async def aside(backend: SqliteBackend) -> set[str]:
    """The users whose task is put aside."""
    rows = await backend.queue.written(
        lambda step: step.rows("SELECT user_key FROM trigger_tasks WHERE blocked")
    )
    return {user for (user,) in rows}


async def blocked(backend: SqliteBackend, clock: ManualClock, *users: str) -> None:
    """Let tasks be due that wait for others, which run."""
    await backend.triggers.touch([activity(user, kind) for user in users for kind in TYPES])
    clock.advance(1)
    assert all(await fire(backend, "first"))


async def test_one_look_puts_a_limited_number_of_tasks_aside(
    backend: SqliteBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.backends.sqlite.triggers.LOOKED_AT", 2)
    await blocked(backend, clock, *"abcde")
    for number, next_due in ((3, clock.now()), (5, None)):
        found = await backend.triggers.due(DEPENDS_ON, 0)
        assert (found.triggers, found.next_due) == ([], next_due)
        assert len(await aside(backend)) == number


async def test_a_look_at_many_tasks_that_wait_may_end_early(
    backend: SqliteBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated when the last that it has seen is due."""
    monkeypatch.setattr("reverie.backends.sqlite.triggers.LOOKED_AT", 2)
    await backend.triggers.touch([activity(user, "first") for user in "abcde"])
    later = [activity(user, "second", interval_ms=2000 + n) for n, user in enumerate("abcde")]
    await backend.triggers.touch(later)
    assert (await backend.triggers.due(DEPENDS_ON, 0)).next_due == clock.now() + 2002
    assert await aside(backend) == set()


async def test_a_task_whose_obstacle_ends_during_the_look_is_not_put_aside(
    backend: SqliteBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await blocked(backend, clock, "ann")
    read = backend.triggers._rows

    async def read_slowly(statement: str, **bindings):
        rows = await read(statement, **bindings)
        await end_by_settling(backend, clock, Move.COMPLETE)
        return rows

    monkeypatch.setattr(backend.triggers, "_rows", read_slowly)
    assert len((await backend.triggers.due(DEPENDS_ON, 10)).triggers) == 1
    assert await aside(backend) == set()


async def test_what_is_due_can_be_told_while_nothing_can_be_written(
    backend: SqliteBackend, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await blocked(backend, clock, "ann")
    await backend.triggers.touch([activity("bob", "second")])
    clock.advance(1)

    async def refuse(job):
        raise BackendUnavailableError("the disk is full")

    monkeypatch.setattr(backend.triggers, "_written", refuse)
    assert [task.user_id for task in (await backend.triggers.due(DEPENDS_ON, 10)).triggers] == ["bob"]


async def test_a_task_comes_back_when_its_obstacle_is_forgotten(
    backend: SqliteBackend, clock: ManualClock
) -> None:
    await backend.triggers.touch([activity("ann", kind) for kind in TYPES])
    clock.advance(1)
    (first,) = (await backend.triggers.due({"first": ()}, 10)).triggers
    assert await backend.triggers.fire([Firing(trigger=first, message=None)]) == [True]
    assert (await backend.triggers.due(DEPENDS_ON, 10)).triggers == []
    assert await aside(backend) == {"ann"}
    clock.advance(DAY_S)
    await backend.triggers.fire([])
    assert len((await backend.triggers.due(DEPENDS_ON, 10)).triggers) == 1


async def test_a_task_comes_back_when_its_obstacle_has_ended_unseen(path: str, clock: ManualClock) -> None:
    backend = await opened(path, clock)
    await backend.triggers.put([Definition(name=name, fields={}, enabled=True, version=1) for name in TYPES])
    await blocked(backend, clock, "ann", "bob")
    assert (await backend.triggers.due(DEPENDS_ON, 10)).triggers == []
    assert await aside(backend) == {"ann", "bob"}
    await backend.close()
    file = apsw.Connection(path)
    file.execute("DELETE FROM pending_messages WHERE user_id = 'ann'")
    file.execute("UPDATE queue_counters SET turn = turn + 1")
    file.close()
    backend = await opened(path, clock)
    assert [task.user_id for task in (await backend.triggers.due(DEPENDS_ON, 10)).triggers] == ["ann"]
    assert await aside(backend) == {"bob"}
    await backend.close()
