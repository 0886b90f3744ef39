"""Chinese memories are found by Chinese questions.

Half of the questions share a word with the memory that answers them, and must be found without a model. The
other half say the same in other words: how many of them are found is shown, and depends on the embedder.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from reverie.evaluation.data import Conversation, read_conversations
from reverie.evaluation.measure import measure
from reverie.evaluation.subject import temporary_store
from reverie.settings import load_settings

DATA = Path(__file__).parents[1] / "data" / "chinese.json"


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    (found,) = read_conversations(DATA)
    return found


def pairs_of(text: str) -> set[str]:
    """The pairs of neighbouring Chinese characters."""
    runs = re.findall(r"[\u4e00-\u9fff]+", text)
    return {run[index : index + 2] for run in runs for index in range(len(run) - 1)}


def test_the_questions_are_of_two_kinds(conversation: Conversation) -> None:
    text_of = {turn.id: turn.text for turn in conversation.turns}
    assert len(text_of) == len(set(text_of.values())) == 200
    assert Counter(question.kind for question in conversation.questions) == {
        "shared-word": 100,
        "paraphrased": 100,
    }
    for question in conversation.questions:
        (evidence,) = question.evidence
        shared = pairs_of(question.question) & pairs_of(text_of[evidence])
        assert bool(shared) == (question.kind == "shared-word"), question


def test_questions_that_share_a_word_find_their_memory(conversation: Conversation) -> None:
    with temporary_store(load_settings()) as subject:
        figures = measure(subject, [conversation])
    for kind, scores in figures["by_kind"].items():
        print(f"{kind}: {scores}")
    assert figures["by_kind"]["shared-word"]["recall_at_10"] >= 0.95
