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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reverie
from reverie.version import __version__
from support.agent_checks import assert_clean, assert_remembered, is_done, settled
from support.agent_script import PLANTED, Conversation
from support.agents import CLAUDE, CODEX, PATIENCE_S, Home, home
from support.living import wait_until, wait_until_gone
from support.scale import SEED, evidence, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie import Scheduler

HOOKS = 500
KILLS = 20
SESSIONS = 8
LEAST_CALLS = 13
"""Calls of a session that has at least one whole turn."""
LEASE_S = 2.0
OLD_VERSION = "0.0.9"


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
        """Let `calls` more hooks run. Any session may take them."""
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
        """Kill the worker while `calls` hooks run, or while the worker starts."""
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
        """Install another version while `calls` hooks run; one of these restarts the worker."""
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
        """Wait until the worker has settled `messages` messages or all, for two seconds at most."""
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
