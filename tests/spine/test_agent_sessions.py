"""Whole sessions of both agents, with hooks as real processes and the worker that they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.agent_checks import assert_clean, assert_remembered, settled
from support.agent_script import PLANTED, Conversation
from support.agents import CLAUDE, CODEX, PATIENCE_S, USER, home
from support.living import wait_until, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

    from support.agents import Home

CALLS = {CLAUDE: 42, CODEX: 27}
"""Calls of a session with some turns and a compaction."""


def play(of: Home, conversation: Conversation) -> str:
    """Call all hooks of a session; the answer is the context that its begin was given."""
    first = ""
    for number, (event, fields) in enumerate(conversation.calls(CALLS[conversation.agent])):
        told = of.hook(conversation.agent, event, conversation.session_id, **fields)
        assert PLANTED not in told.context
        if fields.get("source") == "compact" and first:
            assert told.context == first  # the agent has forgotten it, and is told the same again
        if number == 0:
            first = told.context
    return first


def test_two_agents_share_what_is_known_of_a_project(tmp_path: Path) -> None:
    with home(tmp_path) as of:
        one = Conversation(CLAUDE, "one")
        two = Conversation(CODEX, "two", ends=False)
        three = Conversation(CLAUDE, "three", resumes=True)
        assert play(of, one) == ""  # nothing is known, and no worker has been there to say so
        of.worker()
        with of.scheduler() as scheduler:
            settled(of, scheduler)
            told = play(of, two)
            for known in (
                f"Request: {one.prompts[0]}",
                one.last_answer,
                f"Edited /home/ann/app/{one.session_id}",
            ):
                assert known in told
            settled(of, scheduler)
            told = play(of, three)
            assert f"Request: {one.prompts[0]}" in told
            assert f"Request: {two.prompts[0]}" in told
            assert f"Edited app/{two.session_id}" in told
            rows = settled(of, scheduler)
            assert {row.attempts for row in rows} == {1}
            assert sum(row.losses for row in rows) == 0
            assert_remembered(scheduler, [one, two, three])
            asked = of.hook(CODEX, "UserPromptSubmit", "four", prompt=f"What of {three.prompts[1]}?")
            assert three.session_id in asked.context
            settled(of, scheduler)
        assert_clean(of)


def test_the_first_session_of_the_day_has_context_without_a_worker(tmp_path: Path) -> None:
    with home(tmp_path) as of:
        one = Conversation(CODEX, "one")
        play(of, one)
        worker = of.worker().pid
        with of.scheduler() as scheduler:
            settled(of, scheduler)
            wait_until(lambda: one.last_answer in newest_block(of), PATIENCE_S)
        assert of.command("worker", "stop").returncode == 0
        wait_until_gone([worker])
        of.settings(start_worker=False)
        told = of.hook(CLAUDE, "SessionStart", "two")
        assert f"Request: {one.prompts[0]}" in told.context
        assert PLANTED not in told.context
        again = of.hook(CLAUDE, "SessionStart", "two", source="resume")
        assert again.context == told.context
        assert [record["user_id"] for record in of.waiting()] == [USER, USER]


def newest_block(of: Home) -> str:
    """The text of all blocks that the worker has left in files."""
    return "".join(path.read_text() for path in (of.data / "context").glob("*.txt"))
