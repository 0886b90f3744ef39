"""A worker that has handled a hundred thousand observations is hardly larger than after ten thousand.

Upkeep is off: what it compares at once depends on how much is alike, not on how much has come in.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from reverie.capture.protocol import ask_context, ask_look
from reverie.capture.spool import Spool
from support.agents import CLAUDE, PATIENCE_S, USER, Home, home, memory_of
from support.living import wait_until
from support.scale import SCALE, SEED, evidence, scaled

if TYPE_CHECKING:
    from pathlib import Path

    from reverie import Scheduler

OBSERVATIONS = 100_000
PARTS = 10
"""The observations come in ten equal parts; the memory is read after each part."""
MOST_GROWTH = 1.5
"""The memory after all observations over that after the first part."""
CACHES = 0 if SCALE == 1 else 128 * 1024 * 1024
"""Bytes that the caches of the file may take later, in a small run: its first part does not fill them."""
CALLS = 10
"""Calls of tools in one batch."""
BATCHES = 10
"""Batches of one session."""
AT_ONCE = 10
"""Sessions that wait in the spool at most."""
SETTLED_S = 600.0
CAPTURED = ("session_init", "add", "query", "observation", "answer", "summary", "session_complete")
"""The labels of what hooks have told."""


class Agent:
    """Writes what the hooks of one session after the other write, and asks what they ask."""

    def __init__(self, of: Home) -> None:
        self._data = str(of.data)
        self._spool = Spool(of.spool)
        self._project = {"name": of.project.name, "keys": [f"folder:{of.project}"]}
        self._chance = random.Random(SEED)
        self._at = time.time_ns()

    def session(self, number: int) -> None:
        """One session: a prompt, batches of calls, an answer."""
        name = f"session-{number}"
        self._ask(name, "SessionStart", "")
        self._keep(name, "SessionStart", source="startup")
        prompt = f"Please mend fault {number} of {self._words(12)}"
        self._ask(name, "UserPromptSubmit", prompt)
        self._keep(name, "UserPromptSubmit", prompt=prompt, prompt_id=name)
        for batch in range(BATCHES):
            self._keep(
                name, "PostToolBatch", tool_calls=[self._call(f"{name}-{batch}-{n}") for n in range(CALLS)]
            )
        self._keep(name, "Stop", last_assistant_message=f"Mended: {self._words(20)}", prompt_id=name)
        self._keep(name, "SessionEnd", reason="other")
        ask_look(self._data)

    def _keep(self, session_id: str, event: str, **fields: Any) -> None:
        self._at += 1_000_000
        record = {
            "hook": 1,
            "item_id": f"{session_id}-{self._at}",
            "agent": CLAUDE,
            "event": event,
            "at": self._at,
            "user_id": USER,
            "project": self._project,
            "input": {"session_id": session_id, **fields},
        }
        self._spool.write_record(record, self._at)

    def _ask(self, session_id: str, event: str, prompt: str) -> None:
        question = {
            "event": event,
            "source": "startup",
            "user_id": USER,
            "session_id": session_id,
            "agent": CLAUDE,
            "project": self._project,
            "prompt": prompt,
        }
        ask_context(self._data, question, PATIENCE_S)

    def _call(self, use_id: str) -> dict[str, Any]:
        path = f"/home/ann/app/{self._words(2).replace(' ', '/')}.py"
        response = {"type": "text", "file": {"filePath": path, "content": self._words(150)}}
        return {
            "tool_name": "Read",
            "tool_input": {"file_path": path},
            "tool_response": response,
            "tool_use_id": use_id,
        }

    def _words(self, count: int) -> str:
        return " ".join(f"word{self._chance.randrange(20_000)}" for _ in range(count))


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_the_memory_of_a_worker_does_not_grow(tmp_path: Path) -> None:
    sessions = scaled(OBSERVATIONS) // (PARTS * BATCHES * CALLS)
    with evidence("worker-memory") as figures, home(tmp_path) as of, of.scheduler() as scheduler:
        of.extra["REVERIE_UPKEEP__ENABLED"] = "false"
        worker = of.start_worker().pid
        agent, taken = Agent(of), []
        for number in range(1, PARTS * sessions + 1):
            agent.session(number)
            wait_until(lambda: len(list(of.spool.glob("*.json"))) < AT_ONCE * BATCHES, SETTLED_S)
            if number % sessions == 0:
                wait_until(partial(is_settled, of, scheduler, number), SETTLED_S)
                taken.append(memory_of(worker))
                print(f"{number * BATCHES * CALLS} observations: {taken[-1] / 1e6:.1f} MB", flush=True)
        figures |= {
            "observations": PARTS * sessions * BATCHES * CALLS,
            "sessions": PARTS * sessions,
            "resident_mb": [round(size / 1e6, 1) for size in taken],
            "growth": round(taken[-1] / taken[0], 3),
        }
        assert of.workers() == {worker}
        assert max(taken[1:]) <= MOST_GROWTH * taken[0] + CACHES


def is_settled(of: Home, scheduler: Scheduler, sessions: int) -> bool:
    """Whether all that so many sessions have told is handled; upkeep goes on for as long as it likes."""
    states = {state.label: state for state in scheduler.control.labels()}
    return (
        of.is_empty()
        and not any(states[label].waiting + states[label].in_progress for label in CAPTURED)
        and states["observation"].completed_ever == sessions * BATCHES * CALLS
        and states["session_complete"].completed_ever == sessions
    )
