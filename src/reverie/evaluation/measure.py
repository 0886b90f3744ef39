"""Add conversations, ask questions about them, and count how many of the turns that answer are found."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from reverie.capture.intake import add_message
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from reverie.effect import Source
    from reverie.evaluation.data import Conversation, Question, Utterance
    from reverie.evaluation.subject import Subject
    from reverie.message import Message

__all__ = ["CUTS", "UNANSWERABLE", "Asked", "measure"]

CUTS = (5, 10, 20)
"""Recall is counted among the first 5, 10 and 20 results."""
UNANSWERABLE = "adversarial"
"""The kind of questions that the conversation does not answer: the sum over all kinds leaves them out."""
TURNS = 100
"""The most turns of one message; a longer session becomes several messages."""


class Asked(NamedTuple):
    """One question and its answer."""

    conversation: str
    question: Question
    found: list[str]
    """The ids of the turns that were found, best first; a hit with several sources lists all in its place."""
    took_ms: float
    degraded: Sequence[str]

    def recall(self, k: int) -> float:
        """The share of the evidence that is among the first `k` turns."""
        evidence = set(self.question.evidence)
        return len(evidence & set(self.found[:k])) / len(evidence)


class _Asking(NamedTuple):
    """A conversation that was added."""

    conversation: Conversation
    user_id: str
    turn_of: dict[tuple[str, int], str]
    """(item_id, index) of a turn → its id in the file."""


def measure(
    subject: Subject,
    conversations: Sequence[Conversation],
    *,
    k: int = 10,
    by: str = "kind",
    others: int = 0,
    details: bool = False,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """All figures of an evaluation, ready for JSON.

    `progress` is called with a stage, how much of it is done, and how much there is to do. With `others` the
    questions are asked twice: before that many other users are added, and after.
    """
    cuts = sorted({*CUTS, k})
    began = time.perf_counter()
    added = [_add(subject, number, each) for number, each in _counted("adding", conversations, progress)]
    subject.settle(asking.user_id for asking in added)
    adding_s = time.perf_counter() - began
    asked = _ask_all(subject, added, cuts[-1], progress)
    alone = None
    if others:
        alone = _all_scores(asked, cuts, k) | _latency(asked)
        _add_others(subject, conversations, others, progress)
        asked = _ask_all(subject, added, cuts[-1], progress)
    turns = sum(len(conversation.turns) for conversation in conversations)
    figures: dict[str, Any] = {
        "conversations": len(conversations),
        "turns": turns,
        "others": others,
        "k": k,
        "adding_s": round(adding_s, 3),
        "add_turns_per_s": round(turns / adding_s, 1),
        **_latency(asked),
        "all": _all_scores(asked, cuts, k),
        f"by_{by}": {name: _scores(group, cuts, k) for name, group in _groups(asked, by)},
        "degraded": dict(Counter(reason for each in asked for reason in each.degraded)),
    }
    if alone is not None:
        figures["without_others"] = alone
    if details:
        figures["details"] = [_detail(each, cuts) for each in asked]
    return figures


def _counted(
    what: str, things: Sequence[Any], progress: Callable[[str, int, int], None]
) -> Iterator[tuple[int, Any]]:
    for number, each in enumerate(things):
        progress(what, number, len(things))
        yield number, each
    progress(what, len(things), len(things))


def _add(subject: Subject, number: int, conversation: Conversation) -> _Asking:
    """Hand over one conversation: each session is a message, in order, or several if it is long."""
    asking = _Asking(conversation, subject.user(f"conversation-{number}"), {})
    messages: list[Message] = []
    for session_id, turns in conversation.sessions().items():
        for start in range(0, len(turns), TURNS):
            part = turns[start : start + TURNS]
            if any(turn.content.strip() for turn in part):
                message = _message(part, asking.user_id, session_id, f"{number}-{len(messages)}")
                messages.append(message)
                asking.turn_of.update(((message.item_id, index), turn.id) for index, turn in enumerate(part))
    subject.add(messages)
    return asking


def _message(turns: Iterable[Utterance], user_id: str, session_id: str, item_id: str) -> Message:
    said = [
        Turn(content=turn.content, name=turn.speaker, chat_time=turn.date, message_id=turn.id)
        for turn in turns
    ]
    return add_message(said, user_id=user_id, session_id=session_id, item_id=item_id)


def _add_others(
    subject: Subject,
    conversations: Sequence[Conversation],
    count: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Add users who have said some of the same things, in another order."""
    turns = [turn for conversation in conversations for turn in conversation.turns if turn.content.strip()]
    usual = max(1, len(turns) // len(conversations))
    users = [subject.user(f"other-{number}") for number in range(count)]
    for number, user in _counted("adding others", users, progress):
        chance = random.Random(number)  # noqa: S311  the same others in every run
        said = chance.sample(turns, chance.randint(math.ceil(usual / 4), usual))
        subject.add(
            [
                _message(said[start : start + TURNS], user, f"session-{start // TURNS}", f"{number}-{start}")
                for start in range(0, len(said), TURNS)
            ]
        )
    subject.settle(users)


def _ask_all(
    subject: Subject, added: Sequence[_Asking], limit: int, progress: Callable[[str, int, int], None]
) -> list[Asked]:
    pairs = [(asking, question) for asking in added for question in asking.conversation.questions]
    asked = []
    for _, (asking, question) in _counted("asking", pairs, progress):
        began = time.perf_counter()
        answer = subject.search(question.question, asking.user_id, limit)
        took_ms = 1000 * (time.perf_counter() - began)
        found = [_turn_id(source, asking) for hit in answer.sources for source in hit]
        asked.append(Asked(asking.conversation.id, question, found, took_ms, answer.degraded))
    return asked


def _turn_id(source: Source, asking: _Asking) -> str:
    return source.message_id or asking.turn_of.get((source.item_id, source.index), "")


def _groups(asked: Sequence[Asked], by: str) -> Iterator[tuple[str, list[Asked]]]:
    """The questions of each kind, or of each conversation."""

    def name_of(each: Asked) -> str:
        return each.question.kind if by == "kind" else each.conversation

    for name in sorted({name_of(each) for each in asked}):
        yield name, [each for each in asked if name_of(each) == name]


def _all_scores(asked: Sequence[Asked], cuts: Sequence[int], k: int) -> dict[str, Any]:
    return _scores([each for each in asked if each.question.kind != UNANSWERABLE], cuts, k)


def _scores(asked: Sequence[Asked], cuts: Sequence[int], k: int) -> dict[str, Any]:
    """The mean recall at each cut, and the share of questions with any evidence among the first `k`."""

    def mean(values: Iterable[float]) -> float | None:
        return round(statistics.fmean(values), 4) if asked else None

    return {
        "n": len(asked),
        **{f"recall_at_{cut}": mean(each.recall(cut) for each in asked) for cut in cuts},
        f"hit_at_{k}": mean(each.recall(k) > 0 for each in asked),
    }


def _latency(asked: Sequence[Asked]) -> dict[str, float]:
    times = sorted(each.took_ms for each in asked)
    return {
        f"latency_p{part}_ms": round(times[min(len(times) - 1, len(times) * part // 100)], 3)
        for part in (50, 99)
    }


def _detail(asked: Asked, cuts: Sequence[int]) -> dict[str, Any]:
    return {
        "conversation": asked.conversation,
        "question": asked.question.question,
        "kind": asked.question.kind,
        "evidence": asked.question.evidence,
        "found": asked.found,
        **{f"recall_at_{cut}": round(asked.recall(cut), 4) for cut in cuts},
        "took_ms": round(asked.took_ms, 3),
        "degraded": asked.degraded,
    }
