"""Handlers in processes of their own: real processes, killed, dying and hanging."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import uvloop

from reverie import Message, Scheduler
from reverie.assembly import new_place
from reverie.backends.moves import Claim, Status
from reverie.dispatch import processes
from reverie.dispatch.answers import Failed
from reverie.dispatch.child_main import ChildLine
from reverie.dispatch.child_process import ChildProcess, python_command
from reverie.dispatch.child_protocol import Answered, Began, Ended, Task, frame, handler_fields
from reverie.dispatch.context import Context
from reverie.dispatch.interface import Batch
from reverie.dispatch.placement import Placement
from reverie.dispatch.processes import ProcessExecutor
from reverie.dispatch.registry import Registry
from reverie.dispatch.requests import Embed
from reverie.dispatch.settings import LabelSettings
from reverie.errors import InvalidSettingError, ReverieError
from reverie.outcome import Bury, Cancel, Died, Done, Retry, Snooze
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain
from support import context_handlers, cpu_handlers
from support.gate import gate
from support.living import children, is_gone, until, wait_until, wait_until_gone

CONTEXT = Context(worker="tester", timeout_s=30)


def handler(function=cpu_handlers.work, *, batch: bool = False, **options):
    return Registry().add("work", function, batch=batch, options=LabelSettings(cpu=True, **options))


def batch_of(*contents: str, of=None, users: str | None = None, losses: int = 0) -> Batch:
    """Messages with these contents, all of one user unless `users` has a letter for each."""
    claims = [
        Claim(
            Message(user_id=users[n] if users else "ann", label="work", content=content, losses=losses),
            "c",
            0,
        )
        for n, content in enumerate(contents)
    ]
    return Batch(next(NUMBERS), of or handler(), claims)


NUMBERS = iter(range(1, 1_000_000))


@pytest.fixture(autouse=True)
def started():
    """The processes that the test has started; at its end there is none."""
    before = children()  # servers of other tests
    yield lambda: children() - before
    assert children() <= before


class Worker:
    """The line of a worker whose embedder never answers, and where some messages are to be cancelled."""

    def __init__(self) -> None:
        self.cancelled: set = set()
        self.asked: list[list[str]] = []
        self.heard = asyncio.Event()

    async def ask(self, request, claims):
        self.asked.append([claim.message.user_id for claim in claims])
        self.heard.set()
        await asyncio.Event().wait()

    def is_cancelled(self, key) -> bool:
        return key in self.cancelled


@pytest.fixture
async def executor(started):
    executor = ProcessExecutor()
    yield executor
    await executor.close()
    assert started() == set()


def test_an_answer_that_came_while_the_loop_of_a_server_was_held_up_is_heard() -> None:
    async def scene() -> None:
        executor = ProcessExecutor()
        try:
            await executor.run(batch_of("a"), CONTEXT, 30)
            with gate() as door:
                running = asyncio.ensure_future(executor.run(batch_of(f"gate {door.path}"), CONTEXT, 1))
                await asyncio.to_thread(door.arrival)
            too_late = time.monotonic() + 1
            wait_until(lambda: time.monotonic() > too_late)  # blocks the event loop, as a bad handler does
            assert await running == [Done()]
        finally:
            await executor.close()

    uvloop.run(scene())


def pid_of(outcome) -> int:
    return int(outcome.effects[0].text.split()[0])


async def test_it_runs_in_another_process_which_is_used_again(executor: ProcessExecutor) -> None:
    first = await executor.run(batch_of("note a", "note b"), CONTEXT, 30)
    second = await executor.run(batch_of("note c"), CONTEXT, 30)
    pids = {pid_of(outcome) for outcome in first + second}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert [outcome.effects[0].text.split()[1:] for outcome in first] == [["tester", "a"], ["tester", "b"]]


@pytest.mark.parametrize("function", ["work", "work_async", "work_batch"])
async def test_outcomes_come_back(executor: ProcessExecutor, function: str) -> None:
    of = handler(getattr(cpu_handlers, function), batch=function == "work_batch")
    for content, expected in {
        "retry": Retry(after=5, reason="later"),
        "snooze": Snooze(after=5),
        "cancel": Cancel(),
        "bury": Bury("no use"),
        "surrogate": Bury("bad \\ud800"),
    }.items():
        assert await executor.run(batch_of(content, of=of), CONTEXT, 30) == [expected]


async def test_an_answer_that_cannot_be_kept_is_a_failure(executor: ProcessExecutor) -> None:
    for content, words in {
        "fail": "ZeroDivisionError: cannot share by none",
        "quit": "SystemExit: 3",
        "nonsense": "expected an outcome or None",
        "dictionary": "dict is no effect",
        "lambda": "cannot be kept",
        "endless": "Retry(after=inf): after must be a number of seconds, from 0 to 315360000 (ten years)",
    }.items():
        (outcome,) = await executor.run(batch_of(content), CONTEXT, 30)
        assert isinstance(outcome, Retry)
        assert words in outcome.reason


async def test_follow_ups_come_back(executor: ProcessExecutor) -> None:
    (outcome,) = await executor.run(batch_of("follow"), CONTEXT, 30)
    assert [(m.label, m.content) for m in outcome.follow_ups] == [("next", "one")]


async def test_a_handler_without_a_context(executor: ProcessExecutor) -> None:
    assert await executor.run(batch_of("x", of=handler(cpu_handlers.plain)), CONTEXT, 30) == [Done()]


async def test_after_a_retry_the_rest_of_the_lane_is_not_run(executor: ProcessExecutor) -> None:
    outcomes = await executor.run(batch_of("a", "retry", "b", "c", users="xxxy"), CONTEXT, 30)
    assert [type(outcome) for outcome in outcomes] == [Done, Retry, type(None), Done]


async def test_poison_in_a_batch_fails_alone(executor: ProcessExecutor) -> None:
    of = handler(cpu_handlers.work_batch, batch=True)
    outcomes = await executor.run(batch_of("a", "fail", "c", of=of, users="xyz"), CONTEXT, 30)
    assert [type(outcome) for outcome in outcomes] == [Done, Failed, Done]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("exit 1", "ended with exit code 1"),
        ("exit 0", "ended with exit code 0"),
        ("kill", "was killed by SIGKILL"),
        ("crash", "was killed by SIGSEGV"),
    ],
)
async def test_a_process_that_dies_takes_only_its_own_message(
    executor: ProcessExecutor, content: str, words: str
) -> None:
    outcomes = await executor.run(batch_of("a", content, "c", users="xyz"), CONTEXT, 30)
    assert [type(outcome) for outcome in outcomes] == [Done, Died, type(None)]
    assert outcomes[1].reason == f"the process that ran it {words}"
    (after,) = await executor.run(batch_of("d"), CONTEXT, 30)
    assert pid_of(after) != pid_of(outcomes[0])


async def test_all_messages_of_the_call_that_died_are_lost(executor: ProcessExecutor) -> None:
    of = handler(cpu_handlers.work_batch, batch=True)
    outcomes = await executor.run(batch_of("a", "kill", of=of, users="xy"), CONTEXT, 30)
    assert [type(outcome) for outcome in outcomes] == [Died, Died]


async def test_a_neighbour_in_another_process_goes_on(executor: ProcessExecutor) -> None:
    of = handler(concurrency=2)
    with gate() as door:
        running = asyncio.ensure_future(executor.run(batch_of(f"gate {door.path}", of=of), CONTEXT, 30))
        await asyncio.to_thread(door.arrival)
        (dying,) = await executor.run(batch_of("kill", of=of), CONTEXT, 30)
        assert isinstance(dying, Died)
        assert not running.done()
    assert await running == [Done()]


async def test_a_handler_that_hangs_is_killed_in_time(executor: ProcessExecutor, tmp_path: Path) -> None:
    await executor.run(batch_of("a"), CONTEXT, 30)  # so that no start is timed
    began = time.monotonic()
    outcomes = await executor.run(batch_of("b", f"hang {tmp_path / 'pid'}", "c"), CONTEXT, 0.3)
    assert time.monotonic() - began < 3
    assert [type(outcome) for outcome in outcomes] == [Done, Failed, type(None)]
    assert outcomes[1].reason == "timeout: one call took longer than 0.3 s"
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert await executor.run(batch_of("retry"), CONTEXT, 30) == [Retry(after=5, reason="later")]


class Watch:
    """A clock in the hand of the test, which sees who looks at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now


async def test_the_time_is_for_each_call(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(processes, "time", watch)
    of = handler(cpu_handlers.work_batch, batch=True)
    with gate() as door:
        batch = batch_of(f"gate {door.path}", "fail", of=of, users="xy")
        running = asyncio.ensure_future(executor.run(batch, CONTEXT, 0.1))
        for _ in ("both", "the first alone"):
            await asyncio.to_thread(door.arrival)
            watch.now += 0.08
            seen = watch.looks + 2  # one may be for a report that comes late
            await until(lambda: watch.looks >= seen or running.done())  # noqa: B023
            door.open()
        assert (await running)[0] == Done()


async def test_what_is_abandoned_is_killed_and_not_answered(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    batch = batch_of("a", f"hang {tmp_path / 'pid'}", "c")
    running = asyncio.ensure_future(executor.run(batch, CONTEXT, 30))
    await asyncio.to_thread(
        wait_until, lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()
    )
    await executor.abandon(batch.batch_id)
    outcomes = await running
    assert [type(outcome) for outcome in outcomes] == [Done, type(None), type(None)]
    assert is_gone(int((tmp_path / "pid").read_text()))


async def test_what_is_abandoned_while_it_waits_for_room_never_runs(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    of = handler(concurrency=1)
    first, second = batch_of(f"hang {tmp_path / 'pid'}", of=of), batch_of("a", of=of)
    running = [asyncio.ensure_future(executor.run(batch, CONTEXT, 30)) for batch in (first, second)]
    await asyncio.to_thread(wait_until, (tmp_path / "pid").exists)
    await executor.abandon(second.batch_id)
    assert await running[1] == [None]
    await executor.abandon(first.batch_id)
    assert await running[0] == [None]


async def test_a_thread_that_still_asks_takes_no_task_away(executor: ProcessExecutor) -> None:
    worker = Worker()
    context = Context(worker="tester", timeout_s=30, line=worker)
    of = handler(context_handlers.leave_a_thread, concurrency=1)
    async with asyncio.timeout(30):  # a task that nobody hears of would take twice as long
        for content in ("leave", "next") * 10:
            assert await executor.run(batch_of(content, of=of), context, 30) == [Done()]


def test_a_thread_that_has_outlived_its_call_asks_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = ChildLine(theirs)
        claims = tuple(batch_of("a").claims)
        line.report(Began([0]), claims)
        line.report(Answered({}))
        sent = ours.recv(10_000)
        with pytest.raises(ReverieError, match="the run that asked has ended"):
            line.ask_and_wait(Embed(("late",)), claims)
        line.report(Ended())
        assert b"late" not in sent + ours.recv(10_000)


def test_a_process_whose_worker_was_killed_ends_quietly() -> None:
    batch = batch_of("note a")
    task = Task(
        import_path=f"{cpu_handlers.__name__}:{cpu_handlers.work.__name__}",
        handler=handler_fields(batch.handler),
        claims=list(batch.claims),
        worker="tester",
        timeout_s=30,
    )
    ours, theirs = socket.socketpair()
    alive, lifeline = os.pipe()[::-1]
    with theirs:
        with ours:
            ours.sendall(frame(task))
        words = [str(theirs.fileno()), str(lifeline)]
        command = python_command("reverie.dispatch.child_main", words)
        ended = subprocess.run(
            command, pass_fds=[theirs.fileno(), lifeline], capture_output=True, check=False
        )
    os.close(alive)
    os.close(lifeline)
    assert (ended.returncode, ended.stderr) == (0, b"")


async def test_what_is_asked_concerns_the_messages_of_the_call_alone(executor: ProcessExecutor) -> None:
    worker = Worker()
    context = Context(worker="tester", timeout_s=30, line=worker)
    batch = batch_of("a", "b", users="ab", of=handler(context_handlers.look_at_neighbour))
    running = asyncio.ensure_future(executor.run(batch, context, 30))
    async with asyncio.timeout(30):
        await worker.heard.wait()
    assert worker.asked == [["a"]]
    await executor.abandon(batch.batch_id)
    await running


async def test_what_is_to_be_cancelled_before_a_process_has_it_is_not_run(executor: ProcessExecutor) -> None:
    worker = Worker()
    context = Context(worker="tester", timeout_s=30, line=worker)
    batch = batch_of("note a", "note b", users="ab")
    worker.cancelled = {batch.claims[1].key}
    first, second = await executor.run(batch, context, 30)
    assert isinstance(first, Done)
    assert second is None  # handed back, and cancelled by the queue


async def test_as_many_processes_as_there_is_room_for(executor: ProcessExecutor, started) -> None:
    of = handler(concurrency=4)
    with gate() as door:
        batches = [batch_of(f"gate {door.path}", of=of) for _ in range(5)]
        running = [asyncio.ensure_future(executor.run(batch, CONTEXT, 30)) for batch in batches]
        arrived = [await asyncio.to_thread(door.arrival) for _ in range(4)]
        assert len(set(arrived)) == 4
        assert set(arrived) == started()
        door.open()
        assert await asyncio.to_thread(door.arrival) in arrived
    assert await asyncio.gather(*running) == [[Done()]] * 5


async def test_a_process_killed_while_it_waits_is_nobodys_loss(executor: ProcessExecutor) -> None:
    (outcome,) = await executor.run(batch_of("a"), CONTEXT, 30)
    os.kill(pid_of(outcome), signal.SIGKILL)
    (again,) = await executor.run(batch_of("b"), CONTEXT, 30)
    assert pid_of(again) != pid_of(outcome)


async def test_what_a_handler_has_started_ends_with_its_process(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    (outcome,) = await executor.run(batch_of(f"leave {tmp_path / 'pid'}"), CONTEXT, 30)
    assert isinstance(outcome, Died)
    wait_until_gone([int((tmp_path / "pid").read_text())])


async def test_signals_for_all_do_not_end_it_but_end_what_it_forks(executor: ProcessExecutor) -> None:
    outcomes = await executor.run(batch_of("stop", "fork", "a", users="xyz"), CONTEXT, 20)
    assert [type(outcome) for outcome in outcomes] in ([Done] * 3, [Done, Done, type(None)])  # slow: cut off


async def test_a_cpu_handler_that_stands_elsewhere_by_now_fails_with_a_reason(
    executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of("a", "b")
    monkeypatch.setattr(cpu_handlers, "work", cpu_handlers.plain)
    outcomes = await executor.run(batch, CONTEXT, 30)
    assert {type(outcome) for outcome in outcomes} == {Retry}
    assert "gives something else" in outcomes[0].reason


async def test_no_process_can_be_started(executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    outcomes = await executor.run(batch_of("a", "b"), CONTEXT, 30)
    assert [(type(outcome), outcome.after) for outcome in outcomes] == [(Snooze, 5.0), (Snooze, 5.0)]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert await executor.run(batch_of("a"), CONTEXT, 30) == [outcomes[0]]


async def test_a_handler_that_cannot_be_imported_there_fails_with_the_reason(
    executor: ProcessExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def work(message): ...")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        of = handler("only_here:work")
    (outcome,) = await executor.run(batch_of("a", of=of), CONTEXT, 30)
    assert "No module named 'only_here'" in outcome.reason


@pytest.mark.parametrize("leaves_nothing", [True, False])
async def test_what_a_process_leaves_behind(tmp_path: Path, leaves_nothing: bool) -> None:
    child = ChildProcess("support.cpu_handlers", [str(tmp_path / "pid")], leaves_nothing=leaves_nothing)
    assert await child.wait() == 1
    left = int((tmp_path / "pid").read_text())
    if leaves_nothing:
        wait_until_gone([left])
    else:
        assert not is_gone(left)
        os.kill(left, signal.SIGKILL)


async def test_a_close_ends_what_runs(tmp_path: Path, started) -> None:
    executor = ProcessExecutor()
    running = asyncio.ensure_future(executor.run(batch_of(f"hang {tmp_path / 'pid'}"), CONTEXT, 30))
    await asyncio.to_thread(wait_until, (tmp_path / "pid").exists)
    await executor.close()
    assert await running == [None]
    assert started() == set()


def test_no_process_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        from reverie import Scheduler
        scheduler = Scheduler("memory://")
        scheduler.handler("work", cpu=True, concurrency=2)("support.cpu_handlers:work")
        scheduler.start()
        for name in ("one", "two"):
            scheduler.submit("work", user_id=name, content=f"hang {tmp_path}/{{name}}")
        input()
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE)
    files = [tmp_path / "one", tmp_path / "two"]
    wait_until(lambda: all(path.exists() and path.read_text() for path in files))
    worker.kill()
    worker.communicate()
    wait_until_gone([int(path.read_text()) for path in files], 5)


async def test_a_message_with_losses_runs_in_isolation(started) -> None:
    executors = Placement(new_place, max_abandoned=1, on_too_many=lambda: None, on_fewer=lambda: None)
    of = Registry().add("work", cpu_handlers.work)
    try:
        ((local,), (isolated,), (again,)) = [
            await executors.run(batch_of("a", of=of, losses=losses), CONTEXT, 30) for losses in (1, 2, 3)
        ]
        assert pid_of(local) == os.getpid()
        assert pid_of(isolated) == pid_of(again) != os.getpid()
        (died,) = await executors.run(batch_of("kill", of=of, losses=2), CONTEXT, 30)
        assert isinstance(died, Died)
        nobody_elses = Registry().add("work", lambda message: None)
        assert await executors.run(batch_of("a", of=nobody_elses, losses=2), CONTEXT, 30) == [Done()]
    finally:
        await executors.close()
    assert started() == set()


class Holder:
    def method(self, message: Message) -> None: ...

    @staticmethod
    def static(message: Message) -> None: ...


def test_an_import_path_is_where_the_very_same_function_stands() -> None:
    registry = Registry()

    def nested(message: Message) -> None: ...

    def path(function) -> str | None:
        return registry.add("work", function).import_path

    assert path(cpu_handlers.work) == "support.cpu_handlers:work"
    assert path("support.cpu_handlers:work") == "support.cpu_handlers:work"
    assert path(Holder.static) == f"{__name__}:Holder.static"
    for function in (nested, lambda message: None, Holder().method):
        assert path(function) is None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda message: None, "top level of a module"),
        (Holder().method, "top level of a module"),
        ("support.cpu_handlers:nothing", "cannot be imported"),
        ("nowhere:nothing", "cannot be imported"),
        ("support.cpu_handlers", "import path such as module:function"),
        ("support.cpu_handlers:ACTIONS", "must take the message"),
    ],
)
def test_a_cpu_handler_that_nobody_can_import_is_refused(function, words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        Scheduler("memory://").handler("work", cpu=True)(function)


def test_a_cpu_handler_of_the_program_itself_is_refused() -> None:
    program = textwrap.dedent("""
        from reverie import Scheduler
        @Scheduler("memory://").handler("work", cpu=True)
        def work(message): ...
    """)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "not of the program that is started" in shown.stderr


def test_decorated_configured_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decorated.py").write_text(
        textwrap.dedent("""
            from reverie import Scheduler
            from reverie.settings import load_settings
            settings = load_settings(queue={"url": "memory://"}, labels={"b": {"cpu": True}})
            scheduler = Scheduler(settings=settings)
            @scheduler.handler("a", cpu=True)
            def first(message): ...
            @scheduler.handler("b", concurrency=3)
            def second(message): ...
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import decorated  # noqa: PLC0415

    first, second = (decorated.scheduler.runtime.registry.get(label) for label in "ab")
    assert (first.place, first.import_path, first.concurrency) == (
        "process",
        "decorated:first",
        os.cpu_count(),
    )
    assert (second.place, second.concurrency) == ("process", 3)


def test_a_whole_scheduler_with_cpu_handlers(tmp_path: Path, clock: ManualClock, started) -> None:
    settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}", "durability": "normal"})
    scheduler = Scheduler(settings=settings, clock=clock)
    scheduler.handler("work", cpu=True, max_attempts=1)("support.cpu_handlers:work")
    with scheduler.used():
        ids = {c: scheduler.submit("work", user_id=c[0], content=c).item_id for c in ("a", "bury", "kill")}
        drain(scheduler)
        statuses = {c: scheduler.status(c[0], item)[0] for c, item in ids.items()}
        assert {c: row.status for c, row in statuses.items()} == {
            "a": Status.COMPLETED,
            "bury": Status.FAILED,
            "kill": Status.FAILED,
        }
        assert (statuses["kill"].error, statuses["kill"].losses) == ("killed_worker", 5)
        assert scheduler.memory.get(ids["a"], user_id="a") is not None
    assert started() == set()
