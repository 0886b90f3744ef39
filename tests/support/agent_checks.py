"""What must be true when agents have worked: everything is remembered, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.backends.moves import Status
from reverie.backends.views import StatusQuery
from reverie.capture.hook_log import log_path, losses
from support.agents import USER
from support.living import children, wait_until
from support.spooling import damaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie import Scheduler
    from reverie.backends.views import ItemStatus
    from reverie.memory.item import MemoryItem
    from support.agent_script import Conversation
    from support.agents import Home

SETTLED_S = 300.0
"""So long may it take until all work is done after the last hook."""


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
