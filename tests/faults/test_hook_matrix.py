"""Every hook under every fault: the agent goes on in time, and nothing that was accepted is lost.

A condition is one broken machine, which all of its cells share. A hook writes its file before it needs
anybody, so each cell looks for that file in the spool; at the end of a condition all files become messages
and sessions.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from reverie.capture.hook_log import losses
from reverie.capture.protocol import LARGEST_FRAME, socket_path
from support.agents import CLAUDE, CODEX, EVENTS, HOOK, IN_TIME_S, USER, Home, RunningHook, Told, home
from support.living import wait_until, wait_until_gone
from support.spooling import damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534
LONELY = 65501
"""A user that has no process but the hook itself."""
CONTEXT_EVENTS = {"SessionStart", "SubagentStart", "UserPromptSubmit"}
LARGE = {CLAUDE: 50_000_000, CODEX: 5_000_000}
"""Agent → bytes of a large input. 50 MB take a second of computing, and the agents hardly differ."""
LARGE_FIELDS = {
    "UserPromptSubmit": "prompt",
    "PostToolUse": "tool_response",
    "PostToolUseFailure": "error",
    "PostToolBatch": "tool_calls",
    "SubagentStop": "last_assistant_message",
    "Stop": "last_assistant_message",
    "StopFailure": "last_assistant_message",
    "PostCompact": "compact_summary",
}
"""Event → the field of it that may be long; of other events it is a field that is not known."""
FULL = """
mount -t tmpfs -o size=64k tmpfs "$1" || exit 77
printf x > "$1/hook-losses"
cat /dev/zero > "$1/filler" 2> /dev/null
data=$1 counted=$2
shift 2
"$@" || exit
stat -c %s "$data/hook-losses" > "$counted"
"""
"""Runs a hook whose data folder has no room; the number of counted losses is written outside of it."""


class Condition:
    """A home in which something is broken: `run` calls one hook."""

    keeps = True
    """Whether the event of each hook is kept."""
    in_time_s = IN_TIME_S

    def __init__(self, of: Home) -> None:
        self.home = of
        self.prefix: list[str] = []
        self.accepted: list[str] = []
        """The sessions of the hooks that were kept."""

    def input(self, agent: str, event: str) -> bytes:
        return self.home.input(agent, event, name(agent, event))

    def run(self, agent: str, event: str) -> Told:
        return self.home.start_hook(agent, event, self.prefix).end(self.input(agent, event))

    def check(self, agent: str, event: str) -> None:
        """Look for the one file of a hook."""
        found = [
            record for record in self.home.waiting() if record["input"]["session_id"] == name(agent, event)
        ]
        assert [(record["agent"], record["event"]) for record in found] == [(agent, event)] * self.keeps
        self.accepted += [name(agent, event)] * self.keeps

    def assert_kept(self) -> None:
        """Check that all accepted files were taken in: each session of them is known."""
        accepted, self.accepted = self.accepted, []
        if accepted:
            assert damaged(self.home.spool) == {}
            assert self.home.is_empty()
            with self.home.scheduler() as scheduler:
                for session_id in accepted:
                    assert scheduler.sessions.get(session_id, user_id=USER) is not None, session_id


def name(agent: str, event: str) -> str:
    """The session of a cell."""
    return f"{agent}-{event}"


# -- the worker ---------------------------------------------------------------------------------------------


@contextmanager
def absent(folder: Path) -> Iterator[Condition]:
    with home(folder, start_worker=False) as opened:
        yield Condition(opened)
        opened.take_in()


@contextmanager
def hung(folder: Path) -> Iterator[Condition]:
    with home(folder) as opened:
        worker = opened.start_worker().pid
        os.kill(worker, signal.SIGSTOP)
        yield Condition(opened)
        assert opened.workers() == {worker}, "a second worker was started beside the one that hangs"
        os.kill(worker, signal.SIGCONT)
        wait_until(opened.is_empty)


class Killed(Condition):
    """All hooks have begun when the worker is killed; those that ask for context wait for its answer."""

    def __init__(self, of: Home) -> None:
        super().__init__(of)
        worker = of.start_worker().pid
        os.kill(worker, signal.SIGSTOP)
        of.settings(start_worker=False, context_budget_ms=10_000)
        begun: dict[tuple[str, str], tuple[RunningHook, bytes]] = {}
        self.told: dict[tuple[str, str], Told] = {}
        with ExitStack() as stack:
            for agent, event in EVENTS:
                hook = of.start_hook(agent, event)
                stack.callback(hook.process.kill)
                data = self.input(agent, event)
                middle = len(data) if event in CONTEXT_EVENTS else len(data) // 2
                hook.write(data[:middle])
                begun[agent, event] = hook, data[middle:]
                if event in CONTEXT_EVENTS:
                    hook.process.stdin.close()  # type: ignore[union-attr]
                    hook.process.stdin = None
                    wait_until(hook.has_connection)
            os.kill(worker, signal.SIGKILL)
            wait_until_gone([worker])
            killed_at = time.monotonic()
            for cell, (hook, rest) in begun.items():
                self.told[cell] = hook.end(rest)._replace(seconds=time.monotonic() - killed_at)

    def run(self, agent: str, event: str) -> Told:
        return self.told[agent, event]


@contextmanager
def killed(folder: Path) -> Iterator[Condition]:
    with home(folder) as opened:
        yield Killed(opened)
        opened.start_worker()
        wait_until(opened.is_empty)


# -- the socket ---------------------------------------------------------------------------------------------


@contextmanager
def listening(of: Home, answer: bytes | None) -> Iterator[None]:
    """Another program at the place of the request socket; without an answer it never even accepts."""
    of.data.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_path(str(of.data)))
        listener.listen(64 if answer is not None else 0)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    try:
                        connection.recv(65536)
                        connection.sendall(answer or b"")
                    except OSError:
                        continue  # the hook has gone

        server = threading.Thread(target=serve)
        if answer is not None:
            server.start()
        try:
            yield
        finally:
            if answer is not None:
                listener.shutdown(socket.SHUT_RDWR)
                server.join()


@contextmanager
def garbage(folder: Path) -> Iterator[Condition]:
    with home(folder, start_worker=False) as opened:
        with listening(opened, b"HTTP/1.1 400 Bad Request\r\n\r\n\xff\xfe"):
            yield Condition(opened)
        opened.take_in()


@contextmanager
def silent(folder: Path) -> Iterator[Condition]:
    with home(folder, start_worker=False) as opened:
        with listening(opened, None):
            yield Condition(opened)
        opened.take_in()


# -- the disk -----------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[Condition]:
    with home(folder) as opened:
        opened.start_worker()
        other = apsw.Connection(str(opened.data / "reverie.db"))
        other.set_busy_timeout(10_000)
        other.execute("BEGIN EXCLUSIVE")
        yield Condition(opened)
        other.execute("ROLLBACK")
        other.close()
        wait_until(opened.is_empty)


class FullDisk(Condition):
    """Nothing is kept, and each loss is counted."""

    keeps = False

    def run(self, agent: str, event: str) -> Told:
        counted = self.home.folder / f"{agent}-{event}"
        self.prefix = ["unshare", "-rm", "sh", "-c", FULL, "sh", str(self.home.data), str(counted)]
        told = super().run(agent, event)
        if told.code == 77 or b"unshare" in told.errors:
            pytest.skip(f"a small file system cannot be mounted here: {told.errors.decode()}")
        assert counted.read_text().strip() == "2", "the loss was not counted"
        return told


@contextmanager
def full_disk(folder: Path) -> Iterator[Condition]:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a small file system cannot be mounted")
    with home(folder, start_worker=False) as opened:
        opened.data.mkdir(parents=True)
        yield FullDisk(opened)


class Refused(Condition):
    """Nothing can be kept."""

    keeps = False


@contextmanager
def public_home(**settings: Any) -> Iterator[Home]:
    """A home that another user can reach; pytest's own folders are private."""
    with tempfile.TemporaryDirectory(prefix="rev-") as folder:
        Path(folder).chmod(0o755)
        with home(Path(folder) / "h", **settings) as opened:
            yield opened


def as_user(number: int) -> list[str]:
    """What makes a command run as somebody whom rights and limits bind; root is not bound."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv: root is bound by no rights")
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]


@contextmanager
def read_only_home(folder: Path) -> Iterator[Condition]:
    with public_home() as opened:
        condition = Refused(opened)
        condition.prefix = as_user(NOBODY)
        opened.folder.chmod(0o555)
        yield condition
        assert not opened.data.exists()
        assert opened.processes() == set()
        opened.folder.chmod(0o755)


@contextmanager
def process_limit(folder: Path) -> Iterator[Condition]:
    if shutil.which("prlimit") is None:
        pytest.skip("no prlimit")
    with public_home() as opened:
        condition = Condition(opened)
        # setpriv comes last: only what it starts itself is found in folders that root keeps private
        condition.prefix = ["prlimit", "--nproc=1", *as_user(LONELY)]
        give(opened.folder, LONELY)
        yield condition
        assert opened.processes() == set()
        give(opened.folder, os.geteuid())
        opened.take_in()
        condition.assert_kept()  # now, because the folder goes


def give(folder: Path, owner: int) -> None:
    """Make root's folder and all in it another user's; whoever is not root keeps it."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, owner, owner)


# -- the input ----------------------------------------------------------------------------------------------


class Empty(Refused):
    def input(self, agent: str, event: str) -> bytes:
        return b""


class Truncated(Refused):
    def input(self, agent: str, event: str) -> bytes:
        return super().input(agent, event)[:-20]


class Large(Condition):
    """The input is cut and marked."""

    in_time_s = 3 * IN_TIME_S

    def input(self, agent: str, event: str) -> bytes:
        field = LARGE_FIELDS.get(event, "note")
        fields: dict[str, Any] = json.loads(super().input(agent, event))
        if event == "PostToolBatch":
            fields[field][0]["tool_response"] = "@"
        else:
            fields[field] = "@"
        return json.dumps(fields).encode().replace(b'"@"', b'"' + b"x" * LARGE[agent] + b'"')

    def check(self, agent: str, event: str) -> None:
        super().check(agent, event)
        own = name(agent, event).encode()
        (file,) = (path for path in self.home.spool.glob("*.json") if own in path.read_bytes())
        assert file.stat().st_size <= 262_144
        assert json.loads(file.read_bytes())["cut"] == [LARGE_FIELDS.get(event, "note")]


class NotUtf8(Condition):
    def input(self, agent: str, event: str) -> bytes:
        return super().input(agent, event).replace(b'"cwd"', b'"note": "caf\xe9 \xff\xfe", "cwd"')


class Unknown(Refused):
    def run(self, agent: str, event: str) -> Told:
        return self.home.start_hook(agent, f"{event}Soon").end(self.input(agent, event))


def input_of(kind: type[Condition]) -> Callable[[Path], Any]:
    """The condition that all inputs are of a kind."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Condition]:
        with home(folder, start_worker=False) as place:
            yield kind(place)
            place.take_in()

    return opened


# -- the matrix ---------------------------------------------------------------------------------------------

CONDITIONS: dict[str, Callable[[Path], Any]] = {
    "worker-absent": absent,
    "worker-hung": hung,
    "worker-killed": killed,
    "socket-garbage": garbage,
    "socket-silent": silent,
    "database-locked": locked,
    "disk-full": full_disk,
    "home-read-only": read_only_home,
    "process-limit": process_limit,
    "stdin-empty": input_of(Empty),
    "stdin-truncated": input_of(Truncated),
    "stdin-50-MB": input_of(Large),
    "stdin-not-UTF-8": input_of(NotUtf8),
    "event-unknown": input_of(Unknown),
}


@pytest.fixture(scope="module")
def condition(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Condition]:
    with CONDITIONS[request.param](tmp_path_factory.mktemp("hook")) as opened:
        yield opened
    opened.assert_kept()


@pytest.mark.parametrize(("agent", "event"), EVENTS)
@pytest.mark.parametrize("condition", CONDITIONS, indirect=True)
def test_a_hook_lets_its_agent_go_on_and_loses_nothing(condition: Condition, agent: str, event: str) -> None:
    told = condition.run(agent, event)
    told.assert_harmless(event, condition.in_time_s)
    condition.check(agent, event)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"[]\n",
        b'{"v": 2, "context": "text", "notice": null}\n',
        b'{"v": 1, "context": 5, "notice": null}\n',
        b'{"v": 1, "context": "text", "notice": []}\n',
        b'{"v": 1, "context": "text"',
        b"[" * 100_000 + b"\n",
        b"x" * (LARGEST_FRAME + 1),
    ],
    ids=["none", "no-json", "list", "version", "number", "notice", "half", "deep", "endless"],
)
def test_an_answer_of_another_form_counts_as_none(tmp_path: Path, answer: bytes) -> None:
    with home(tmp_path, start_worker=False) as opened, listening(opened, answer):
        told = opened.hook(CLAUDE, "SessionStart")
        assert told.output == b""
        assert [record["event"] for record in opened.waiting()] == ["SessionStart"]


def test_a_long_answer_is_cut_to_what_an_agent_takes(tmp_path: Path) -> None:
    answer = json.dumps({"v": 1, "context": "ü" * 20_000 + "\ud800", "notice": "n"}).encode() + b"\n"
    with home(tmp_path, start_worker=False) as opened, listening(opened, answer):
        told = opened.hook(CLAUDE, "UserPromptSubmit")
        assert told.context == "ü" * 9000
        assert json.loads(told.output)["systemMessage"] == "n"


@pytest.mark.parametrize("words", [[], [CLAUDE], ["emacs", "Stop"], [CLAUDE, "Stop", "more"], ["--help"]])
def test_a_wrong_command_line_is_harmless(tmp_path: Path, words: list[str]) -> None:
    with home(tmp_path, start_worker=False) as opened:
        told = RunningHook([*HOOK, *words], opened.environment, opened.project).end(
            opened.input(CLAUDE, "Stop")
        )
        told.assert_harmless("Stop")
        assert opened.waiting() == []
        assert losses(str(opened.data)) == 0


def test_closed_streams_are_harmless(tmp_path: Path) -> None:
    with home(tmp_path, start_worker=False) as opened:
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *HOOK, CLAUDE, "SessionStart"]
        done = subprocess.run(closed, env=opened.environment, timeout=60, check=False)
        assert done.returncode == 0
        assert opened.waiting() == []


def test_an_agent_that_does_not_listen_is_harmless(tmp_path: Path) -> None:
    answer = b'{"v": 1, "context": "text", "notice": null}\n'
    with home(tmp_path, start_worker=False) as opened, listening(opened, answer):
        hook = opened.start_hook(CLAUDE, "SessionStart")
        hook.process.stdout.close()  # type: ignore[union-attr]
        hook.process.stdout = None
        assert hook.process.communicate(opened.input(CLAUDE, "SessionStart"), timeout=60)[1] == b""
        assert hook.process.returncode == 0
        assert [record["context"] for record in opened.waiting()] == ["text"]
