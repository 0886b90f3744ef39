"""How fast each built-in handler works without a model, and what upkeep saves, costs and keeps with one.

Rates are measured with a worker's own loop in one process, on a file at full durability, over memories of
invented conversations. A simulated user (`days.py`) tells what a scripted model costs and what is merged.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.defaults import shipped_settings
from benchmarks.extras import version_of
from benchmarks.memory_texts import turns_of
from benchmarks.simulation import figures_of, growth, simulate
from benchmarks.targets import judged
from reverie import Message, Scheduler
from reverie.capture.intake import add_message
from reverie.effect import Remember
from reverie.evaluation.data import read_conversations
from reverie.evaluation.measure import measure as evaluate
from reverie.evaluation.subject import temporary_store
from reverie.memory.kept_searches import mix_message
from reverie.memory.upkeep import UpkeepSettings
from reverie.observation import Observation, SessionContent, Summary, ToolCall, write_content
from reverie.testing import drain
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from reverie.evaluation.subject import Subject

__all__ = ["measure"]

TENANTS = 20
TURNS = 200
"""Turns of each tenant, in full."""
QUERIES = 20
"""Queries, answers and enhanced searches of each tenant."""
DAYS = 100
LIMIT = 1000
"""`memory.long_term_limit` of the simulated user: what upkeep leaves is far below it."""
RECALL_KEPT, COMPRESSION, LINEAR = 0.98, 1.5, 1.25


def measure(scale: float, path: Path | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all figures, ready for JSON. `path` is a file of conversations and questions, if any."""
    load_average = os.getloadavg()[0]
    figures: dict[str, Any] = {
        "scale": scale,
        "items_per_s": _rates(scale, progress),
        **_simulated(max(10, round(DAYS * scale)), progress),
        **_recall(path, progress),
    }
    aims = {
        "compression_ratio": (figures["compression_ratio"], ">=", COMPRESSION),
        "facts_lost": (figures["facts_lost"], "<=", 0),
        "wrong_answers": (figures["wrong_answers"], "<=", 0),
        "tokens_growth": (figures["tokens_growth"], "<=", LINEAR),
    }
    if figures["recall_kept"] is not None:
        aims["recall_kept"] = (figures["recall_kept"], ">=", RECALL_KEPT)
    return {
        **figures,
        "targets": judged(aims),
        "load_average": round(load_average, 2),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {"reverie": version_of("reverie")},
    }


def _captured() -> dict[str, str]:
    """Label → what hooks of an agent bring."""
    call = ToolCall(name="Edit", input={"file_path": "/app/a.py", "old_string": "x", "new_string": "y"})
    contents: dict[str, Observation | Summary | SessionContent] = {
        "session_init": SessionContent(memory_session_id="session-0"),
        "observation": Observation(memory_session_id="session-0", type="Edit", tool=call),
        "summary": Summary(memory_session_id="session-0"),
        "session_complete": SessionContent(memory_session_id="session-0", at=1),
    }
    return {label: write_content(content) for label, content in contents.items()}


# -- rates without a model -------------------------------------------------------------------------------


def _rates(scale: float, progress: Callable[[str], None]) -> dict[str, float]:
    """Label → items a second: turns, queries or memories, whichever its messages are about."""
    turns = max(10, round(TURNS * scale))
    users = [f"user-{number}" for number in range(max(2, round(TENANTS * scale)))]
    asked = max(2, round(QUERIES * scale))
    said = {user: list(turns_of(number, turns)) for number, user in enumerate(users)}
    with _scheduler() as scheduler:
        rates = {}

        def timed(label: str, messages: Iterable[Message], items: int) -> None:
            progress(label)
            scheduler.submit_messages(list(messages))
            began = time.perf_counter()
            drain(scheduler)
            rates[label] = round(items / (time.perf_counter() - began), 1)

        def each(label: str, content: str = "") -> list[Message]:
            return [Message(user_id=user, label=label, content=content) for user in users]

        everything = turns * len(users)
        add = [
            add_message(
                [Turn(content=turn.text, name=turn.speaker)],
                user_id=user,
                item_id=f"{user}-{number}",
                session_id=f"session-{turn.session}",
            )
            for user in users
            for number, turn in enumerate(said[user])
        ]
        timed("add", add, everything)
        texts = [(user, said[user][number].text) for user in users for number in range(min(asked, turns))]
        timed("mem_read", [Message(user_id=u, label="mem_read", content=t) for u, t in texts], len(texts))
        timed("query", [Message(user_id=u, label="query", content=t) for u, t in texts], len(texts))
        timed("answer", [Message(user_id=u, label="answer", content=t) for u, t in texts], len(texts))
        timed("mem_update", each("mem_update"), len(users))
        for label, content in _captured().items():
            seen = [
                Message(user_id=user, label=label, content=content, session_id="session-0")
                for user, _ in texts
            ]
            timed(label, seen, len(seen))
        wrong = [Message(user_id=u, label="mem_feedback", content=f"No, {t}") for u, t in texts]
        timed("mem_feedback", wrong, len(texts))
        liked = [(user, f"I like {text}") for user, text in texts]
        timed("pref_add", [Message(user_id=u, label="pref_add", content=t) for u, t in liked], len(liked))
        timed("api_mix_search", [mix_message(text, user_id=user) for user, text in texts], len(texts))
        timed("mem_organize", each("mem_organize"), everything)
        timed("memory_compression", each("memory_compression"), everything)
        timed("mem_archive", each("mem_archive"), everything)
        timed("statistics_update", each("statistics_update"), everything)
        timed("embedding_refresh", each("embedding_refresh"), len(users))
        _let_expire(scheduler, users, turns)
        timed("data_cleanup", each("data_cleanup"), everything)
        return rates


def _let_expire(scheduler: Scheduler, users: Sequence[str], count: int) -> None:
    """Give each user some items whose time is over."""
    store = scheduler.runtime.store
    for user in users:
        over = [
            Remember(memory_id=f"over-{number}", text=f"over {number}", expires_at=1)
            for number in range(count)
        ]
        scheduler.run(store.change((user, user), over))


@contextmanager
def _scheduler(**sections: dict[str, Any]) -> Iterator[Scheduler]:
    with tempfile.TemporaryDirectory(prefix="reverie-handlers-") as folder:
        settings = shipped_settings(
            f"sqlite:///{folder}/reverie.db", scheduler={"enabled": False}, **sections
        )
        with Scheduler(settings=settings.model_copy(update={"data_dir": Path(folder)})).used() as scheduler:
            scheduler.memory.search("warm up", user_id="user-0")
            yield scheduler


# -- the simulated user ----------------------------------------------------------------------------------


def _simulated(days: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """What upkeep does for a user over many days, with a scripted model."""
    with tempfile.TemporaryDirectory(prefix="reverie-days-") as folder:

        def settings(name: str) -> Any:
            found = shipped_settings(
                f"sqlite:///{folder}/{name}.db",
                scheduler={"enabled": False},
                memory={"long_term_limit": LIMIT},
            )
            return found.model_copy(update={"data_dir": Path(folder)})

        with simulate(settings("kept-in-order"), days) as life:
            life.live(upkeep=True, progress=lambda what: progress(f"with upkeep: {what}"))
            course = life.course
            told = {
                "days": days,
                "turns": course.turns[-1],
                "tokens_per_turn": round(course.tokens[-1] / course.turns[-1], 1),
                "tokens_growth": round(growth(course.tokens, course.turns), 3),
                "most_items": max(course.items),
                "long_term_limit": LIMIT,
                "facts_lost": len(life.lost()),
                "wrong_answers": len(life.wrong_homes()),
                "course": figures_of(life),
            }
        with simulate(settings("as-it-came"), days) as life:
            life.live(upkeep=False, progress=lambda what: progress(f"without upkeep: {what}"))
            before = [item for item in life.living() if item.tier == "long_term"]
            recall = life.recall(days)
            life.tidy("mem_organize")
            life.tidy("memory_compression")
            after = [item for item in life.living() if item.tier == "long_term"]
            characters = [sum(len(item.text) for item in items) for items in (before, after)]
            return {
                **told,
                "compression_ratio": round(len(before) / len(after), 3),
                "compression_ratio_characters": round(characters[0] / characters[1], 3),
                "recall_before": round(recall, 4),
                "recall_after": round(life.recall(days), 4),
            }


# -- recall ----------------------------------------------------------------------------------------------


class _KeptInOrder:
    """A subject whose memories are organised and compressed before the questions come."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self.user, self.add, self.search = subject.user, subject.add, subject.search

    def settle(self, users: Iterable[str]) -> None:
        """Wait for all turns, then for both passes of upkeep."""
        users = list(users)
        self._subject.settle(users)
        scheduler: Scheduler = self._subject.scheduler
        for user in users:
            for label in ("mem_organize", "memory_compression"):
                scheduler.submit(label, user_id=user)
                scheduler.observe.wait_idle(user, timeout=600)


def _recall(path: Path | None, progress: Callable[[str], None]) -> dict[str, Any]:
    """Recall at ten before and after upkeep, without a model; each source of a merged item takes a place."""
    names = ("recall_at_10_before", "recall_at_10_after", "recall_kept")
    if path is None:
        return dict.fromkeys(names)
    conversations = read_conversations(path)
    settings = shipped_settings("memory://").model_copy(update={"upkeep": UpkeepSettings(enabled=False)})
    found = []
    for name in ("before", "after"):
        progress(f"recall {name} upkeep")
        with temporary_store(settings) as subject:
            asked: Subject = _KeptInOrder(subject) if name == "after" else subject
            found.append(evaluate(asked, conversations)["all"]["recall_at_10"])
    return dict(zip(names, (*found, round(found[1] / found[0], 4)), strict=True))
