"""Agents call their hooks while the worker is killed, and upgraded: everything is remembered, and once.

The hooks are real processes, and so is the worker, which nobody but they starts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reverie
from reverie.backends.moves import Status
from reverie.backends.views import StatusQuery
from reverie.capture.hook_log import log_path, losses
from reverie.version import __version__
from support.agent_script import PLANTED, Conversation
from support.agents import CLAUDE, CODEX, PATIENCE_S, USER, Home, home
from support.living import children, wait_until, wait_until_gone
from support.scale import SEED, evidence, scaled
from support.spooling import damaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reverie import Scheduler
    from reverie.backends.views import ItemStatus
    from reverie.memory.item import MemoryItem

HOOKS = 500
KILLS = 20
SESSIONS = 8
LEAST_CALLS = 13
"""Calls of a session that has at least one whole turn."""
LEASE_S = 2.0
OLD_VERSION = "0.0.9"
SETTLED_S = 300.0
"""So long may it take until all work is done after the last hook."""


class Release:
    """The package in a folder of its own, as it is installed: an upgrade replaces its files in place."""

    def __init__(self, folder: Path) -> None:
        self._package = folder / "reverie"
        source = Path(reverie.__file__).parent
        shutil.copytree(source, self._package, ignore=shutil.ignore_patterns("built", "__pycache__"))
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
        self.python.chmod(0o700)
        self.environment = {"PYTHONPATH": str(folder)}
        self.install(OLD_VERSION)

    def install(self, version: str) -> None:
        """Let the next process that starts be of this version."""
        text = Path(reverie.__file__).with_name("version.py").read_text()
        new = self._package / "version.new"
        new.write_text(text.replace(__version__, version))
        new.replace(self._package / "version.py")


class Pace:
    """How far the sessions may go, and how many hooks have ended."""

    def __init__(self) -> None:
        self._allowed = threading.Semaphore(0)
        self._counting = threading.Lock()
        self.ended = 0
        self.slowest_s = 0.0

    def allow(self, calls: int) -> None:
        """Let so many more hooks run, in whichever sessions."""
        self._allowed.release(calls)

    def play(self, of: Home, conversation: Conversation, count: int) -> None:
        """Call the hooks of one session, one after the other, as far as allowed."""
        for event, fields in conversation.calls(count):
            self._allowed.acquire()
            told = of.hook(conversation.agent, event, conversation.session_id, **fields)
            assert PLANTED.encode() not in told.output
            with self._counting:
                self.ended += 1
                self.slowest_s = max(self.slowest_s, told.seconds)


class Killer:
    """Kills the worker at random moments, and upgrades it."""

    def __init__(self, of: Home, release: Release, scheduler: Scheduler, pace: Pace) -> None:
        self.home = of
        self.release = release
        self.scheduler = scheduler
        self.pace = pace
        self.chance = random.Random(SEED)
        self.while_starting = 0

    def kill(self, calls: int) -> None:
        """Kill the worker while so many hooks run, or while it starts."""
        self.home.let_start_again()
        if self.chance.random() < 0.25:
            self.pace.allow(calls)
            self._kill(self._started())
            return
        self.pace.allow(calls - calls // 2)
        worker = self.home.worker().pid
        self.pace.allow(calls // 2)
        self._let_work(self.chance.randint(0, 2 * calls))
        self._kill(worker)

    def upgrade(self, calls: int) -> None:
        """Install another version while so many hooks run; one of them restarts the worker."""
        self.home.let_start_again()
        self.pace.allow(calls - calls // 2)
        old = self.home.worker()
        assert old.version == OLD_VERSION
        self.home.let_start_again()
        self.release.install(__version__)
        self.pace.allow(calls // 2)
        assert self.home.worker(other_than=old.pid).version == __version__

    def _started(self) -> int:
        """The worker that starts, or has just started."""
        wait_until(self.home.daemon.running, PATIENCE_S)
        state = self.home.daemon.running()
        assert state is not None
        self.while_starting += state.ready_at is None
        return state.pid

    @staticmethod
    def _kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])

    def _let_work(self, messages: int) -> None:
        """Let the worker settle so many messages, or all that there are, or what it can in a moment."""
        until = time.monotonic() + self.chance.uniform(0, 2)
        before = self._settled()
        wait_until(
            lambda: (
                time.monotonic() > until
                or self._settled() - before >= messages
                or is_done(self.home, self.scheduler)
            )
        )

    def _settled(self) -> int:
        return sum(state.completed_ever for state in self.scheduler.control.labels())


@pytest.mark.scaled
@pytest.mark.timeout(1800)
def test_a_worker_that_is_killed_and_upgraded_while_agents_work(tmp_path: Path) -> None:
    calls, kills = max(LEAST_CALLS, -(-scaled(HOOKS) // SESSIONS)), scaled(KILLS)
    conversations = eight_sessions()
    wave = calls * SESSIONS // (kills + 2)
    release, pace = Release(tmp_path / "release"), Pace()
    with (
        evidence("agents-kills") as figures,
        agents_home(tmp_path / "home", release) as of,
        of.scheduler() as scheduler,
    ):
        killer = Killer(of, release, scheduler, pace)
        with ThreadPoolExecutor(SESSIONS) as pool:
            playing = [pool.submit(pace.play, of, one, calls) for one in conversations]
            try:
                for number in range(kills):
                    if number == kills // 2:
                        killer.upgrade(wave)
                    killer.kill(wave)
                of.let_start_again()
            finally:
                pace.allow(calls * SESSIONS)
            for each in playing:
                each.result()
        rows = settled(of, scheduler)
        figures |= {
            "hooks": pace.ended,
            "sessions": SESSIONS,
            "kills": kills,
            "kills_while_starting": killer.while_starting,
            "upgrades": 1,
            "observations": sum(len(one.tools) for one in conversations),
            "messages": len(rows),
            "losses": sum(row.losses for row in rows),
            "slowest_hook_s": round(pace.slowest_s, 2),
        }
        assert pace.ended == calls * SESSIONS
        assert of.worker().version == __version__
        assert_remembered(scheduler, conversations)
        assert_clean(of)


def eight_sessions() -> list[Conversation]:
    """Four sessions of each agent; one of each is not ended, or is resumed."""
    agents = [CLAUDE, CODEX] * (SESSIONS // 2)
    sessions = [Conversation(agent, f"{agent}-{number}") for number, agent in enumerate(agents)]
    sessions[2].ends = False
    sessions[3].resumes = True
    return sessions


@contextmanager
def agents_home(folder: Path, release: Release) -> Iterator[Home]:
    """A home whose hooks, and the worker that they start, are of a release; leases are short."""
    with home(folder, python=str(release.python)) as opened:
        opened.extra |= {
            **release.environment,
            "REVERIE_WORKER__LEASE_S": str(LEASE_S),
            "REVERIE_WORKER__RENEW_S": "0.5",
            "REVERIE_QUEUE__MAX_LOSSES": str(10 * KILLS),  # with leases so short, few kills would reach five
        }
        yield opened


# -- what must be true at the end ---------------------------------------------------------------------------


def is_done(of: Home, scheduler: Scheduler) -> bool:
    """Whether nothing waits in the spool, and nothing in the queue."""
    return of.is_empty() and not any(
        state.waiting + state.in_progress for state in scheduler.control.labels()
    )


def settled(of: Home, scheduler: Scheduler) -> Sequence[ItemStatus]:
    """All messages of the person, once all work is done; each must be completed."""
    wait_until(lambda: is_done(of, scheduler), SETTLED_S)
    query = StatusQuery(user_id=USER, limit=100_000)
    rows: Sequence[ItemStatus] = scheduler.run(scheduler.runtime.backend.views.read(query)).rows
    assert {row.status for row in rows} == {Status.COMPLETED}
    assert not any(state.failed for state in scheduler.control.labels())
    return rows


def items(scheduler: Scheduler, *kinds: str, session_id: str | None = None) -> list[MemoryItem]:
    """All memories of the person of these kinds."""
    found: list[MemoryItem] = []
    after = None
    while True:
        page = scheduler.memory.page(
            user_id=USER, kinds=kinds, session_id=session_id, after=after, limit=1000
        )
        found += page.items
        after = page.next
        if after is None:
            return found


def assert_remembered(scheduler: Scheduler, conversations: Sequence[Conversation]) -> None:
    """Each observation, turn and summary is there, and once; each session has its state."""
    for one in conversations:
        session = scheduler.sessions.get(one.session_id, user_id=USER)
        assert session is not None
        assert (session.status, session.agent) == (one.status, one.agent)
        assert (session.title, session.prompts) == (one.prompts[0], len(one.prompts))
        assert (session.completed_at is not None) == (one.status == "completed")
        seen = items(scheduler, "observation", session_id=one.session_id)
        assert Counter((info_of(item)["tool_use_id"], item.title) for item in seen) == Counter(
            one.tools.items()
        )
        said = items(scheduler, "turn", session_id=one.session_id)
        assert Counter(item.text for item in said) == one.said
        summaries = items(scheduler, "summary", session_id=one.session_id)
        assert sorted(item.text for item in summaries if item.type == "compact") == sorted(one.compacts)
        if one.ends:
            (summary,) = (item for item in summaries if item.type == "session")
            first, *last = info_of(summary)["request"].split(" Last: ")
            assert first == one.prompts[0]
            assert (last or [first])[0] in one.prompts[-1 - one.resumes :]
            assert info_of(summary)["completed"].endswith(one.last_answer)
        assert {item.mem_cube_id for item in [*seen, *said, *summaries]} == {session.mem_cube_id}


def info_of(item: MemoryItem) -> dict[str, Any]:
    assert item.info is not None
    return item.info


def assert_clean(of: Home) -> None:
    """Nothing is left over: no file, no loss, no error, no process but the worker, which ends when told."""
    assert of.is_empty()
    assert damaged(of.spool) == {}
    assert list(of.spool.glob(".*.tmp")) == []
    assert losses(str(of.data)) == 0
    log = Path(log_path(str(of.data)))
    assert not log.exists() or " error " not in log.read_text()
    assert "Traceback" not in of.daemon.log.read_text()
    worker = of.worker().pid
    wait_until(lambda: of.processes() <= {worker, *children(worker)})
    stopped = of.command("worker", "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert of.processes() == set()
