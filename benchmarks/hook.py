"""How long an agent waits for a hook: with a worker that answers, with none, and with one that hangs.

Every event starts the installed command anew, as an agent does. In turn with it the same interpreter runs
nothing: what a hook costs beyond that is ours.
"""

from __future__ import annotations

import asyncio
import compileall
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reverie
from benchmarks.defaults import shipped_settings
from benchmarks.extras import version_of
from benchmarks.memory_texts import turns_of
from benchmarks.targets import judged
from reverie.capture.hook_settings import DEFAULT_BUDGET_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Sizes", "measure"]

COMMAND = Path(sys.executable).with_name("reverie-hook")
COMMON = {"session_id": "5e8f7a52-3c5c-4a57-9a54-6d1c2c3a7e01", "permission_mode": "default"}
PLAIN = ("PostToolUse", "Stop", "PostToolUse", "SessionEnd")
"""Events without context, in turn; the first is that of a tool that has read a file."""
WITH_CONTEXT = ("SessionStart", "UserPromptSubmit")
MOST_NOISE = 2.0
"""The slowest median of the bare interpreter over the fastest; beyond this the machine was not quiet."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured in full; `scaled` makes it less."""

    runs: int = 300
    """Runs of the bare interpreter, of events without context and of events with it, in each state."""
    memories: int = 200
    """Memories that there are when context is asked for."""
    searches: int = 200

    @classmethod
    def scaled(cls, scale: float) -> Sizes:
        """Sizes that are smaller by a factor, but large enough to measure anything at all."""
        return cls(*(max(4, round(number * scale)) for number in (cls.runs, cls.memories, cls.searches)))


@dataclass(frozen=True)
class _Times:
    """Milliseconds of each run in one state of the worker."""

    bare: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    context: list[float] = field(default_factory=list)


def measure(scale: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all figures, ready for JSON."""
    shipped_settings("memory://")  # ends the program if other settings are in force
    if not COMMAND.exists():
        raise SystemExit(f"{COMMAND} is missing: install the package (pip install, or make bench)")
    _compile()
    sizes, load_average = Sizes.scaled(scale), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hook-") as folder:
        home = _Home(Path(folder))
        times: dict[str, _Times] = {}
        with _worker(home) as pid:
            progress("memories and searches over MCP")
            mcp_search_p50_ms = asyncio.run(_search(home, sizes))
            progress("the worker is up")
            times["up"] = _run(home, sizes.runs)
            progress("the worker hangs")
            with _stopped(pid):
                times["hung"] = _run(home, sizes.runs)
        progress("the worker is absent")
        home.settings(python="/bin/true")  # what starts it is not what is measured
        times["absent"] = _run(home, sizes.runs)
    return _figures(scale, sizes, times, mcp_search_p50_ms, load_average)


def _figures(
    scale: float, sizes: Sizes, times: dict[str, _Times], mcp_search_p50_ms: float | None, load_average: float
) -> dict[str, Any]:
    states = {
        state: {
            "bare_p50_ms": _percentile(found.bare, 50),
            "hook_p50_ms": _percentile(found.plain, 50),
            "hook_p99_ms": _percentile(found.plain, 99),
            "context_p50_ms": _percentile(found.context, 50),
            "context_p99_ms": _percentile(found.context, 99),
            "ratio": round(_percentile(found.plain, 50) / _percentile(found.bare, 50), 3),
        }
        for state, found in times.items()
    }
    worst = {
        name: max(figures[name] for figures in states.values())
        for name in ("hook_p50_ms", "hook_p99_ms", "context_p50_ms", "context_p99_ms")
    }
    ratio = max(figures["ratio"] for figures in states.values())
    bare = [figures["bare_p50_ms"] for figures in states.values()]
    noise = max(bare) / min(bare)
    aims = {
        "ratio_to_bare_interpreter": (ratio, "<=", 2.5),
        "hook_p99_ms": (worst["hook_p99_ms"], "<=", 100),
        "context_p99_ms": (worst["context_p99_ms"], "<=", DEFAULT_BUDGET_MS + 100),
    }
    return {
        "scale": scale,
        "sizes": asdict(sizes),
        **worst,
        "ratio_to_bare_interpreter": ratio,
        "mcp_search_p50_ms": mcp_search_p50_ms,
        "states": states,
        "context_budget_ms": DEFAULT_BUDGET_MS,
        "targets": judged(aims),
        "noise": round(noise, 2),
        "load_average": round(load_average, 1),
        "quiet": noise <= MOST_NOISE and load_average < (os.cpu_count() or 1),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in ("reverie", "mcp")},
    }


def _percentile(values: list[float], percent: int) -> float:
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 2)


class _Home:
    """The home of a person whose agent works in a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.project = folder / "project"
        subprocess.run(["git", "init", "--quiet", str(self.project)], check=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("REVERIE_", "XDG_", "PYTHON"))
        }
        self.environment = kept | {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "REVERIE_DATA_DIR": str(self.data),
        }
        self.settings()
        self.inputs = {event: self._input(event) for event in {*PLAIN, *WITH_CONTEXT}}

    def settings(self, **fields: str) -> None:
        path = self.folder / "config" / "reverie" / "hook.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 1, "data_dir": str(self.data), **fields}))

    def _input(self, event: str) -> str:
        """The path of a file with what an agent writes for an event."""
        given: dict[str, Any] = COMMON | {"cwd": str(self.project), "hook_event_name": event}
        if event == "PostToolUse":
            path, content = str(self.project / "parser.py"), Path(__file__).read_text(encoding="utf-8")
            given |= {"tool_name": "Read", "tool_input": {"file_path": path}, "tool_use_id": "toolu_01"}
            given["tool_response"] = {"type": "text", "file": {"filePath": path, "content": content}}
        elif event == "UserPromptSubmit":
            given |= {"prompt": "Which tests of the parser failed yesterday?", "source": "user"}
        elif event == "SessionStart":
            given |= {"source": "startup"}
        else:
            given |= {"last_assistant_message": "The parser reads empty lines now.", "reason": "other"}
        path = self.folder / f"{event}.json"
        path.write_text(json.dumps(given))
        return str(path)


def _run(home: _Home, runs: int) -> _Times:
    """Run the interpreter alone, an event without context and one with it, in turn."""
    times = _Times()
    bare, nothing = [sys.executable, "-c", ""], os.devnull
    for number in range(runs + 1):
        plain, context = PLAIN[number % len(PLAIN)], WITH_CONTEXT[number % len(WITH_CONTEXT)]
        times.bare.append(_timed(bare, nothing, home.environment))
        times.plain.append(_timed(_hook(plain), home.inputs[plain], home.environment))
        times.context.append(_timed(_hook(context), home.inputs[context], home.environment))
    for values in (times.bare, times.plain, times.context):
        values.pop(0)  # the first reads the files of the program from disk
    return times


def _hook(event: str) -> list[str]:
    return [str(COMMAND), "claude-code", event]


def _timed(command: list[str], stdin: str, environment: dict[str, str]) -> float:
    """Milliseconds from the start of a command to its end."""
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    begun = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=streams)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    return took * 1000


def _compile() -> None:
    """Compile what a hook imports, as an installation does: else every run would."""
    package = Path(reverie.__file__).parent
    for name in ("__init__.py", "version.py"):
        compileall.compile_file(package / name, quiet=2)
    compileall.compile_dir(package / "capture", quiet=2)


@contextmanager
def _worker(home: _Home) -> Iterator[int]:
    """A worker in the background, started as hooks start it; yields its process."""
    command = [sys.executable, "-P", "-m", "reverie", "worker"]
    home.data.mkdir()
    quiet: dict[str, Any] = {"env": home.environment, "cwd": home.data, "capture_output": True}
    subprocess.run([*command, "start"], check=True, **quiet)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (home.data / "worker.sock").exists():
            if time.monotonic() > deadline:
                raise SystemExit("the worker does not serve its socket")
            time.sleep(0.01)
        yield json.loads((home.data / "worker.json").read_bytes())["pid"]
    finally:
        subprocess.run([*command, "stop", "--now"], check=True, **quiet)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Let a process stand still, as one does that hangs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _search(home: _Home, sizes: Sizes) -> float | None:
    """The median of a search over MCP by the official client; None if that client is not installed."""
    try:
        from mcp import Client, StdioServerParameters  # noqa: PLC0415  only this figure needs it
    except ImportError:
        return None
    server = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "reverie", "mcp"], env=home.environment, cwd=home.project
    )
    texts = [said.text for said in turns_of(0, sizes.memories)]
    took = []
    async with Client(server) as client:
        for text in texts:
            added = await client.call_tool("add", {"text": text})
            if added.is_error:
                raise SystemExit(f"the MCP server refused a memory: {added.content}")
        for number in range(sizes.searches + 1):
            begun = time.perf_counter()
            found = await client.call_tool("search", {"query": texts[number % len(texts)]})
            took.append((time.perf_counter() - begun) * 1000)
            if found.is_error:
                raise SystemExit(f"the MCP server refused a search: {found.content}")
    return round(statistics.median(took[1:]), 2)
