"""Hooks that are killed while they write their file, and thirty that begin at the same moment."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from support.agent_checks import assert_clean, settled
from support.agents import CLAUDE, CODEX, USER, RunningHook, home
from support.spooling import all_names, damaged

if TYPE_CHECKING:
    from pathlib import Path

SESSIONS = 30
KILLED = """
import os, signal, sys
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
write, rename = os.write, os.rename
def half(file, data):
    if bytes(data[:7]) != b'{{"hook"': return write(file, data)  # it is the log
    write(file, data[: len(data) // 2]); die()
def renamed(*names, **folders): rename(*names, **folders); die()
from reverie.capture import hook
os.{step}
hook.main()
"""
STEPS = {
    "half of the file is written": "write = half",
    "the file is not on disk": "fsync = die",
    "the file has no name yet": "rename = die",
}


def killed_hook(of, agent: str, event: str, step: str, **fields: object) -> None:
    """Run a hook that is killed at a step."""
    command = [sys.executable, "-P", "-c", KILLED.format(step=step), agent, event]
    told = RunningHook(command, of.environment, of.project).end(of.input(agent, event, **fields))
    assert (told.code, told.output) == (-signal.SIGKILL, b"")


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_a_killed_hook_has_not_finished_is_not_taken_in(tmp_path: Path, agent: str, step: str) -> None:
    with home(tmp_path, start_worker=False) as of:
        of.hook(agent, "UserPromptSubmit", prompt="one", prompt_id="1", turn_id="1")
        killed_hook(of, agent, "UserPromptSubmit", step, prompt="two", prompt_id="2", turn_id="2")
        assert len(of.waiting()) == 1
        assert len(all_names(of.spool)) == 2  # its file has the name of one that is being written
        of.hook(agent, "UserPromptSubmit", prompt="three", prompt_id="3", turn_id="3")
        of.take_in()
        assert of.waiting() == []
        assert damaged(of.spool) == {}
        with of.scheduler() as scheduler:
            page = scheduler.memory.page(user_id=USER, kinds=["turn"])
            assert [item.text for item in page.items] == ["one", "three"]


def test_a_hook_that_is_killed_after_it_has_written_its_file_is_taken_in_once(tmp_path: Path) -> None:
    with home(tmp_path, start_worker=False) as of:
        killed_hook(of, CLAUDE, "UserPromptSubmit", "rename = renamed", prompt="one", prompt_id="1")
        assert len(of.waiting()) == 1
        of.hook(CLAUDE, "UserPromptSubmit", prompt="one", prompt_id="1")  # the agent tries again
        of.take_in()
        assert all_names(of.spool) <= {"damaged", ".lock"}
        with of.scheduler() as scheduler:
            page = scheduler.memory.page(user_id=USER, kinds=["turn"])
            assert [item.text for item in page.items] == ["one"]


def test_thirty_sessions_at_once_get_one_worker(tmp_path: Path) -> None:
    with home(tmp_path) as of:
        together = Barrier(SESSIONS)

        def begin(number: int) -> None:
            together.wait(30)
            of.hook((CLAUDE, CODEX)[number % 2], "SessionStart", f"session-{number}")

        with ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(begin, range(SESSIONS)))
        worker = of.worker().pid
        with of.scheduler() as scheduler:
            settled(of, scheduler)
            sessions = scheduler.sessions.list(user_id=USER).sessions
        assert {(session.session_id, session.status) for session in sessions} == {
            (f"session-{number}", "created") for number in range(SESSIONS)
        }
        assert of.workers() == {worker}
        assert of.daemon.log.read_text().count(" worker.started ") == 1
        assert_clean(of)
