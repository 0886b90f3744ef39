"""Coding agents as a test plays them: a home of their own, the inputs of their hooks, real hook processes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.capture.protocol import socket_path
from reverie.cli.daemon.state import Daemon
from reverie.face.scheduler import Scheduler
from reverie.settings import load_settings
from support.forked import REVERIE
from support.living import is_gone, wait_until, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reverie.cli.daemon.state import DaemonState

CLAUDE, CODEX = "claude-code", "codex"
COMMAND = Path(sys.executable).with_name("reverie-hook")
HOOK = [str(COMMAND)] if COMMAND.exists() else [sys.executable, "-P", "-m", "reverie.capture.hook"]
IN_TIME_S = 5.0
"""A hook ends within this time, also on a busy machine."""
PATIENCE_S = 60.0
USER = "ann"
OUTPUT_FIELDS = {"hookSpecificOutput", "systemMessage"}
"""All that an agent may be told; Codex takes unknown fields for an error."""

READ = {"tool_name": "Read", "tool_input": {"file_path": "/home/ann/app/auth.py"}}
FIELDS: dict[str, dict[str, Any]] = {
    "SessionStart": {"source": "startup", "model": "a-model"},
    "UserPromptSubmit": {"prompt": "Why does the login fail?", "permission_mode": "default"},
    "PostToolUse": {
        **READ,
        "tool_response": {"type": "text", "file": {"filePath": "/home/ann/app/auth.py", "content": "ok = 1"}},
        "tool_use_id": "toolu_read",
        "duration_ms": 12,
    },
    "PostToolUseFailure": {
        "tool_name": "Bash",
        "tool_input": {"command": "make test", "description": "Run the tests"},
        "tool_use_id": "toolu_bash",
        "error": "Exit code 2",
        "is_interrupt": False,
    },
    "PostToolBatch": {"tool_calls": [{**READ, "tool_response": "ok = 1", "tool_use_id": "toolu_batch"}]},
    "SubagentStart": {"agent_id": "agent-1", "agent_type": "Explore"},
    "SubagentStop": {
        "agent_id": "agent-1",
        "agent_type": "Explore",
        "agent_transcript_path": "/home/ann/.claude/projects/app/agent-1.jsonl",
        "last_assistant_message": "The check is in auth.py.",
        "stop_hook_active": False,
    },
    "Stop": {"stop_hook_active": False, "last_assistant_message": "The check was inverted; it is mended."},
    "StopFailure": {"error": "rate_limit", "last_assistant_message": "API Error: rate limit reached"},
    "PreCompact": {"trigger": "auto", "custom_instructions": ""},
    "PostCompact": {"trigger": "auto", "compact_summary": "The login was mended in auth.py."},
    "SessionEnd": {"reason": "prompt_input_exit"},
    "CwdChanged": {"old_cwd": "/home/ann", "new_cwd": "/home/ann/app"},
}
"""Event → what it has beside the common fields."""
CODEX_EVENTS = (
    "SessionStart", "UserPromptSubmit", "PostToolUse", "SubagentStart", "SubagentStop", "Stop", "PreCompact",
    "PostCompact", "SessionEnd",
)  # fmt: skip
EVENTS = [*((CLAUDE, event) for event in FIELDS), *((CODEX, event) for event in CODEX_EVENTS)]
"""Each kept event of each agent."""


class Told(NamedTuple):
    """How a hook has ended, and what it has told its agent."""

    code: int
    output: bytes
    errors: bytes
    seconds: float

    def assert_harmless(self, event: str, in_time_s: float = IN_TIME_S) -> None:
        """Check that the agent is not held up: exit code 0, in time, and an output that both agents take."""
        assert (self.code, self.errors) == (0, b"")
        assert self.seconds < in_time_s
        if self.output:
            told = json.loads(self.output)
            assert event in {"SessionStart", "SubagentStart", "UserPromptSubmit"}
            assert set(told) <= OUTPUT_FIELDS
            specific = told.get("hookSpecificOutput")
            if specific is not None:
                assert set(specific) == {"hookEventName", "additionalContext"}
                assert specific["hookEventName"] == event
                assert 0 < len(specific["additionalContext"]) <= 9000

    @property
    def context(self) -> str:
        """The context that the agent was given."""
        if not self.output:
            return ""
        return str(json.loads(self.output).get("hookSpecificOutput", {}).get("additionalContext", ""))


class RunningHook:
    """A hook process that has been started, perhaps before its input was written."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def write(self, data: bytes) -> None:
        """Give a part of the input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def has_connection(self) -> bool:
        """Whether the process has a socket open."""
        found = []
        with suppress(FileNotFoundError):
            for path in Path(f"/proc/{self.process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    found.append(str(path.readlink()))
        return any(name.startswith("socket:") for name in found)

    def end(self, data: bytes = b"") -> Told:
        """Give the rest of the input, and wait for the end."""
        try:
            output, errors = self.process.communicate(data, timeout=PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
        return Told(self.process.returncode, output, errors, time.monotonic() - self._began)


@dataclass
class Home:
    """The home of a person with coding agents: nothing here is shared with another test."""

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    """Further variables of the environment."""

    def __post_init__(self) -> None:
        self.project = self.folder / "app"
        self.project.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "config" / "reverie"
        self.data = self.folder / "data" / "reverie"
        self.spool = self.data / "spool"
        self.daemon = Daemon(self.data)
        self._numbers = itertools.count()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of agents and of their hooks."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("REVERIE_", "XDG_", "CLAUDE", "CODEX", "PYTHON", "PYTEST"))
        }
        folders = {
            f"XDG_{name}": str(self.folder / name.lower())
            for name in ("CACHE_HOME", "STATE_HOME", "RUNTIME_DIR")
        }
        return {
            **kept,
            **folders,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.config.parent),
            "XDG_DATA_HOME": str(self.data.parent),
            "LOGNAME": USER,
            **self.extra,
        }

    def settings(self, **fields: Any) -> None:
        """Write the few settings of hooks, as `reverie install` does."""
        self.config.mkdir(parents=True, exist_ok=True)
        (self.config / "hook.json").write_text(json.dumps({"version": 1, **fields}))

    def input(self, agent: str, event: str, session_id: str = "session", **fields: Any) -> bytes:
        """The input of a hook as its agent writes it; `fields` replace those of the sample."""
        common: dict[str, Any] = {
            "session_id": session_id,
            "transcript_path": f"/home/ann/.{agent}/{session_id}.jsonl",
            "cwd": str(self.project),
            "hook_event_name": event,
        }
        number = next(self._numbers)
        if agent == CODEX:
            common |= {"turn_id": f"turn-{number}", "model": "a-model", "permission_mode": "default"}
        elif event not in {"SessionStart", "SessionEnd"}:
            common |= {"prompt_id": f"prompt-{number}", "permission_mode": "default"}
        return json.dumps({**common, **FIELDS.get(event, {}), **fields}).encode()

    def start_hook(self, agent: str, event: str, prefix: list[str] | None = None) -> RunningHook:
        """Start the process of a hook in the agent's folder; its input is given later."""
        return RunningHook([*(prefix or []), *HOOK, agent, event], self.environment, self.project)

    def hook(self, agent: str, event: str, session_id: str = "session", **fields: Any) -> Told:
        """Run a hook to its end; the agent must not notice any trouble."""
        told = self.start_hook(agent, event).end(self.input(agent, event, session_id, **fields))
        told.assert_harmless(event, PATIENCE_S)
        return told

    # -- the spool --------------------------------------------------------------------------------------

    def waiting(self) -> list[dict[str, Any]]:
        """The records in the spool, in the order of their files."""
        return [json.loads(path.read_bytes()) for path in sorted(self.spool.glob("*.json"))]

    def is_empty(self) -> bool:
        """Whether no file waits in the spool."""
        return not any(self.spool.glob("*.json"))

    # -- the worker -------------------------------------------------------------------------------------

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the shell in the agent's folder."""
        return subprocess.run(
            [REVERIE, *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def start_worker(self) -> DaemonState:
        """Start the worker in the background, and wait until it serves hooks."""
        shown = self.command("worker", "start")
        assert shown.returncode == 0, shown.stderr
        return self.worker()

    def worker(self, other_than: int | None = None) -> DaemonState:
        """Wait until a worker serves hooks; `other_than` is a process that is not meant."""
        found: list[DaemonState] = []

        def serves() -> bool:
            found[:] = filter(None, [self.daemon.running()])
            return bool(
                found and found[0].ready_at and found[0].pid != other_than and self._answers(found[0].pid)
            )

        wait_until(serves, PATIENCE_S)
        return found[0]

    def _answers(self, pid: int) -> bool:
        """Whether this process listens at the request socket."""
        path = socket_path(str(self.data))
        with suppress(OSError):
            inodes = {
                line.split()[6]
                for line in Path("/proc/net/unix").read_text().splitlines()
                if line.endswith(f" {path}")
            }
            links = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115
            return any(f"socket:[{inode}]" in links for inode in inodes)
        return False

    def let_start_again(self) -> None:
        """Let the last start of a worker be long ago, once the process that started it has ended."""
        with suppress(FileNotFoundError), (self.data / "worker.starting").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.utime(lock.fileno(), (0, 0))

    def processes(self) -> set[int]:
        """The processes that belong to this home: hooks, workers, and those that start workers."""
        mine = f"HOME={self.folder}".encode()
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    if mine in variables and not is_gone(int(folder.name)):
                        found.add(int(folder.name))
        return found

    def workers(self) -> set[int]:
        """The processes that work for this home in the background."""
        found = set()
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"--daemon" in words:
                    found.add(pid)
        return found

    def end_all(self) -> None:
        """End every process of this home."""
        while left := self.processes():  # one that was just being started appears a moment later
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until_gone(left)

    # -- what is remembered -----------------------------------------------------------------------------

    @contextmanager
    def scheduler(self) -> Iterator[Scheduler]:
        """Look in from this process, without a worker."""
        with Scheduler(settings=load_settings(data_dir=self.data)).used() as scheduler:
            yield scheduler

    def take_in(self) -> None:
        """Take in what waits in the spool, and handle what is ready, in this process."""

        async def work(scheduler: Scheduler) -> None:
            await scheduler.runtime.ingester.look()
            await scheduler.runtime.drain()

        with self.scheduler() as scheduler:
            scheduler.open()
            scheduler.run(work(scheduler))


@contextmanager
def home(folder: Path, **settings: Any) -> Iterator[Home]:
    """A home with these settings of hooks; whatever still runs in it at the end is ended."""
    opened = Home(folder)
    opened.settings(**settings)
    try:
        yield opened
    finally:
        opened.end_all()


def memory_of(pid: int) -> int:
    """The resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
