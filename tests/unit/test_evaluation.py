"""The evaluation of one's own conversations: the file, the metric, the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from reverie.effect import Source
from reverie.errors import InvalidDataError, InvalidSettingError, MissingExtraError
from reverie.evaluation.chart import check_chart
from reverie.evaluation.data import read_conversations
from reverie.evaluation.measure import measure
from reverie.evaluation.subject import Answer, temporary_store, until_indexed
from reverie.settings import load_settings
from support.commands import answer, run
from support.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.message import Message

EXAMPLE = Path(__file__).parents[2] / "examples" / "conversations.json"
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def conversation(**changes: Any) -> dict[str, Any]:
    turns = [{"id": f"t{n}", "session": n // 3, "speaker": "Ann", "text": f"word{n}"} for n in range(7)]
    questions = [{"question": "word1?", "evidence": ["t1"]}]
    return {"id": "c", "turns": turns, "questions": questions} | changes


def written(folder: Path, content: Any) -> Path:
    path = folder / "data.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
        ('{"conversations": "\\ud800"}', "is not valid Unicode text"),
        ("[" * 100_000, "is no JSON: "),
        ("9" * 5000, "is no JSON: "),
        ([], "Expected `object`, got `array`"),
        ({"conversations": 7}, "conversations = 7: Expected `array`, got `int`"),
        ({"conversations": []}, "no conversation has a question"),
        (
            {"conversations": [conversation(turns=[{"id": 5, "text": "x"}])]},
            "conversations[0].turns[0].id = 5: Expected `str`, got `int`",
        ),
        (
            {"conversations": [conversation(turns=[{"id": "t1"}])]},
            "conversations[0].turns[0] = {'id': 't1'}: Object missing required field `text`",
        ),
        (
            {"conversations": [conversation(questions=[{"question": "who?", "evidence": ["t9"]}])]},
            "conversations[0].questions[0].evidence = 't9': no turn of this conversation",
        ),
        (
            {"conversations": [conversation(questions=[{"question": "who?", "evidence": []}])]},
            "conversations[0].questions[0].evidence = []: must name at least one turn",
        ),
        (
            {"conversations": [conversation(questions=[{"question": " ", "evidence": ["t1"]}])]},
            "conversations[0].questions[0].question = ' ': must not be empty",
        ),
        ({"conversations": [conversation(), conversation()]}, "'c': two conversations have this id"),
        (
            {"conversations": [conversation(turns=[{"id": "t1", "text": "x"}] * 2)]},
            "conversations[0].turns = 't1': two turns of this conversation have this id",
        ),
    ],
)
def test_a_bad_file_is_refused_with_place_and_value(tmp_path: Path, content: Any, words: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InvalidDataError) as refused:
        read_conversations(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_unknown_fields_are_ignored_and_others_may_be_left_out(tmp_path: Path) -> None:
    turns = [{"id": "a", "text": "tea", "mood": "good"}, {"id": "b", "text": "cake", "caption": "a plate"}]
    content = {"licence": "mine", "conversations": [conversation(turns=turns, questions=[])]}
    content["conversations"].append(conversation(id="d"))
    first, second = read_conversations(written(tmp_path, content))
    assert [turn.content for turn in first.turns] == ["tea", "cake a plate"]
    assert second.questions[0].kind == "question"
    assert list(second.sessions()) == ["session-0", "session-1", "session-2"]


class Rigged:
    """Answers each question with hits whose sources are given."""

    def __init__(self, found: dict[str, list[list[str]]]) -> None:
        self.found = found
        self.added: list[Message] = []

    def user(self, name: str) -> str:
        return f"rigged-{name}"

    def add(self, messages: Sequence[Message]) -> None:
        self.added += messages

    def settle(self, users: Iterable[str]) -> None:
        self.settled = list(users)

    def search(self, question: str, user_id: str, limit: int) -> Answer:
        hits = self.found[question][:limit]
        sources = [[Source(item_id="i", message_id=turn) for turn in hit] for hit in hits]
        return Answer(sources, ["no vectors"] if question == "q1" else ())


def test_recall_is_the_share_of_evidence_among_the_first_turns(tmp_path: Path) -> None:
    turns = [{"id": f"t{n}", "text": f"word{n}"} for n in range(40)]
    questions = [
        {"question": "q1", "kind": "x", "evidence": ["t1", "t2"]},
        {"question": "q2", "kind": "x", "evidence": ["t3"]},
        {"question": "q3", "kind": "adversarial", "evidence": ["t4"]},
    ]
    path = written(tmp_path, {"conversations": [conversation(turns=turns, questions=questions)]})
    rigged = Rigged(
        {
            "q1": [["t9", "t8", "t7"], ["t1"], *[[f"t{n}"] for n in range(20, 26)], ["t2"]],
            "q2": [["t30", "t31", "t32", "t33", "t34", "t3"]],
            "q3": [["t4"]],
        }
    )
    figures = measure(rigged, read_conversations(path), details=True)
    assert figures["by_kind"] == {
        "adversarial": {"n": 1, "recall_at_5": 1, "recall_at_10": 1, "recall_at_20": 1, "hit_at_10": 1},
        "x": {"n": 2, "recall_at_5": 0.25, "recall_at_10": 0.75, "recall_at_20": 1, "hit_at_10": 1},
    }
    assert figures["all"] == figures["by_kind"]["x"]
    assert figures["degraded"] == {"no vectors": 1}
    assert [detail["recall_at_5"] for detail in figures["details"]] == [0.5, 0.0, 1.0]
    assert [message.session_id for message in rigged.added] == ["session-1"]
    assert rigged.settled == ["rigged-conversation-0"]


def test_a_long_session_becomes_several_messages_whose_turns_are_known(tmp_path: Path) -> None:
    turns = [{"id": f"t{n}", "text": f"word{n}"} for n in range(250)]
    questions = [{"question": f"word{n}", "evidence": [f"t{n}"]} for n in range(0, 250, 50)]
    path = written(tmp_path, {"conversations": [conversation(turns=turns, questions=questions)]})
    with temporary_store(load_settings()) as subject:
        figures = measure(subject, read_conversations(path), k=1, by="conversation", details=True)
    assert figures["by_conversation"]["c"]["recall_at_1"] == 1
    assert figures["turns"] == 250


async def test_the_indexer_is_awaited_where_there_is_one() -> None:
    scheduler = AsyncMock()
    await until_indexed(scheduler)
    scheduler.memory.indexed.assert_awaited_once_with()
    del scheduler.memory.indexed
    await until_indexed(scheduler)


def test_a_store_of_the_users_own_is_not_written_into() -> None:
    settings = load_settings(memory={"store": "mine:store"})
    with pytest.raises(InvalidSettingError, match="writes only into a temporary store"):
        temporary_store(settings).__enter__()


@SQLITE
def test_the_command_measures_the_example_and_leaves_nothing(place: Place) -> None:
    before = sorted(path.name for path in place.folder.iterdir())
    figures = answer(place, "eval", str(EXAMPLE), "--others", "3", "--details")
    assert (figures["conversations"], figures["turns"], figures["all"]["n"]) == (2, 40, 11)
    assert figures["all"]["recall_at_10"] >= 0.8
    assert figures["without_others"]["recall_at_10"] >= 0.8
    assert len(figures["details"]) == 13
    shown = run(place, "eval", str(EXAMPLE), "--by", "conversation")
    assert "recall@10" in shown.stdout
    assert "garden" in shown.stdout
    assert sorted(path.name for path in place.folder.iterdir()) == before


@SQLITE
def test_the_command_measures_a_server(place: Place) -> None:
    with place.server() as server:
        figures = answer(place, "eval", str(EXAMPLE), "--server", str(server.client.base_url))
    assert figures["all"]["recall_at_10"] >= 0.8


@SQLITE
def test_refusals_of_the_command(place: Place, tmp_path: Path) -> None:
    for arguments, words in {
        ("--server", "http://example.org:80"): "is not on this machine: --yes sends",
        ("--server", "sqlite:///here.db"): "must be the address of a server, http://host:port",
        ("--server", "http://127.0.0.1:9"): "does not answer",
        ("--chart", "recall.pdf"): "must end with .png",
        ("--chart", "nowhere/recall.png"): "its folder does not exist",
    }.items():
        shown = run(place, "eval", str(EXAMPLE), *arguments)
        assert shown.exit_code == 1, shown.output
        assert words in shown.stderr
    assert "nothing.json: cannot be read" in run(place, "eval", str(tmp_path / "nothing.json")).stderr


def test_a_chart_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'reverie\[bench\]'"):
        check_chart(tmp_path / "recall.png")
