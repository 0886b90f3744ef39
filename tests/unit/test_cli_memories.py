"""Memories from the shell: add, search, list, show, edit and delete; and the index."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest
import typer

from reverie import Scheduler
from reverie.cli.options import read_moment
from reverie.effect import Link, Remember, Supersede
from reverie.testing import drain
from support.commands import answer, run
from support.forked import REVERIE
from support.places import Place
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

DAY = 86_400_000


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    with place.scheduler() as scheduler:
        yield scheduler


def remember(scheduler: Scheduler, *effects, user: str = "ann", cube: str = "ann") -> None:
    scheduler.open()
    scheduler.run(scheduler.runtime.store.change((user, cube), list(effects)))


def some(number: int, **fields) -> list[Remember]:
    return [
        Remember(memory_id=f"m{n}", text=f"a memory about bees, number {n}", learned_at=n + 1, **fields)
        for n in range(number)
    ]


def leave_to_indexer(place: Place) -> None:
    """Leave the vector of the first memory to the indexer, as an embedder that is late does."""
    file = apsw.Connection(place.memory_url.removeprefix("sqlite:///"))
    file.execute("INSERT INTO memory_unindexed VALUES (1)")
    file.close()


# -- add and search --------------------------------------------------------------------------------------


def test_add_says_who_said_what_when(place: Place, scheduler: Scheduler) -> None:
    options = ("--name", "Ann", "--role", "assistant", "--time", "2026-05-02T10:00Z")
    run(
        place, "add", "I keep bees", "-u", "ann", "--item-id", "b", "--tag", "home", "--tag", "bees", *options
    )
    drain(scheduler)
    item = answer(place, "memories", "show", "b.0", "-u", "ann")["item"]
    (source,) = item["sources"]
    assert (source["name"], source["role"], source["chat_time"]) == ("Ann", "assistant", "2026-05-02T10:00Z")
    assert (item["tags"], item["valid_from"]) == (["home", "bees"], 1_777_716_000_000)


def test_search_chooses(place: Place, scheduler: Scheduler) -> None:
    text = "bees like tea"
    remember(
        scheduler,
        Remember(memory_id="1", text=f"{text} 1", kind="event", tags=("a",), valid_from=DAY * 20_000),
        Remember(memory_id="2", text=f"{text} 2", device_id="phone", agent_id="x", valid_from=DAY * 20_002),
        Remember(memory_id="3", text=f"{text} 3", kind="preference", valid_from=DAY * 20_004),
        Remember(memory_id="4", text=f"{text} 4", tier="archive", valid_from=DAY * 20_006),
    )
    remember(scheduler, Remember(memory_id="5", text=f"{text} 5", valid_from=DAY * 20_001), cube="work")
    for options, expected in {
        (): "12345",  # few are found, so the archive is searched, too
        ("--limit", "4"): "1235",
        ("--cube", "work"): "5",
        ("--cube", "work", "--cube", "ann", "--limit", "4"): "1235",
        ("--kind", "event", "--kind", "preference"): "13",
        ("--tag", "a"): "1",
        ("--tier", "archive"): "4",
        ("--device", "phone", "--agent", "x"): "2",
        ("--since", str(DAY * 20_001), "--until", str(DAY * 20_003)): "25",
        ("--since", "2024-10-07T00:00Z"): "34",
    }.items():
        found = answer(place, "search", "bees tea", "-u", "ann", *options)
        assert "".join(sorted(hit["item"]["id"] for hit in found["hits"])) == expected, options
    found = answer(place, "search", "bees tea", "-u", "ann", "--preferences", "1")
    assert [hit["item"]["id"] for hit in found["preferences"]] == ["3"]
    shown = run(place, "search", "bees tea", "-u", "ann", "--preferences", "1").stdout
    assert "preference" in shown


def test_what_was_left_out_is_said(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(3), Remember(memory_id="x", text="the harbour of Lisbon"))
    shown = run(place, "search", "harbour", "-u", "ann", "--threshold", "0.9")
    assert "with a score below 0.9 left out (--threshold)" in shown.stderr
    shown = run(place, "search", "bees", "-u", "ann", "--max-tokens", "1")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "do not fit (--max-tokens)" in shown.stderr
    assert "nothing of ann was found" in shown.stderr


def test_a_search_is_explained(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(3))
    shown = run(place, "search", "bees last week", "-u", "ann", "--explain", "--reference-time", "2026-05-20")
    assert "words      bee" in shown.stdout
    assert "time       2026-05-1" in shown.stdout
    assert "embedder   wordllama-256" in shown.stdout
    assert " ms: filters " in shown.stdout
    assert "memory m1 of 1970-01-01" in shown.stdout
    assert " = " in shown.stdout
    assert ". by words, " in shown.stdout
    found = answer(place, "search", "bees", "-u", "ann", "--explain")
    assert found["timings_ms"]
    assert found["explanation"]["words"] == ["bee"]
    assert found["hits"][0]["signals"]["text_rank"]


def test_what_is_beside_a_hit_is_shown(place: Place, scheduler: Scheduler) -> None:
    remember(
        scheduler,
        Remember(memory_id="1", text="how are you", session_id="s"),
        Remember(memory_id="2", text="my bees swarm", session_id="s"),
        Remember(memory_id="3", text="a summary of the day", kind="summary"),
        Link(source_id="3", relation="about", target_id="2"),
    )
    words = ("search", "bees", "-u", "ann", "--limit", "1", "--neighbours", "1", "--hops", "1")
    for options in ((), ("--explain",)):
        shown = run(place, *words, *options).stdout
        assert "near" in shown
        assert "how are you" in shown
        assert "linked" in shown
        assert "a summary of the day" in shown


@pytest.mark.parametrize("wrong", ["yesterday", "2026", "2026-13-01", "1714000000", ""])
def test_a_time_that_is_none(place: Place, wrong: str) -> None:
    shown = run(place, "search", "bees", "-u", "ann", "--since", wrong)
    assert shown.exit_code == 2
    assert "--since" in shown.stderr
    with pytest.raises(typer.BadParameter, match="must be a date such as 2026-05-02"):
        read_moment(wrong)


def test_times(place: Place) -> None:
    assert read_moment("1777680000000") == 1_777_680_000_000
    assert read_moment("2026-05-02T02:00+02:00") == 1_777_680_000_000


# -- list and show ---------------------------------------------------------------------------------------


def ids(page: dict) -> list[str]:
    return [item["id"] for item in page["items"]]


def pages(place: Place, *options: str) -> list[str]:
    """The ids of all pages."""
    page = answer(place, "memories", "list", *options)
    found = ids(page)
    while page["next"]:
        page = answer(place, "memories", "list", *options, "--after", page["next"])
        assert page["items"]
        found += ids(page)
    return found


def test_a_list_page_by_page(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(5))
    remember(scheduler, Remember(memory_id="w", text="at work", learned_at=9, kind="event"), cube="work")
    remember(scheduler, *some(4), user="bob", cube="bob")
    of_ann = ["m0", "m1", "m2", "m3", "m4", "w"]
    assert pages(place, "-u", "ann", "--limit", "4") == of_ann
    assert pages(place, "-u", "ann", "--limit", "4", "--newest") == of_ann[::-1]
    assert pages(place, "-u", "ann", "--cube", "work") == ["w"]
    assert pages(place, "-u", "ann", "--kind", "event") == ["w"]
    for limit in "1", "3", "5", "10", "11":
        assert pages(place, "--limit", limit) == [*of_ann, "m0", "m1", "m2", "m3"], limit
    assert pages(place, "--cube", "work") == ["w"]
    shown = run(place, "memories", "list", "-u", "ann", "--limit", "2")
    assert "there are more: --after " in shown.stderr
    assert run(place, "memories", "list", "-u", "nobody").stderr == "there are no such memories\n"


def test_a_list_that_cannot_be_ordered(place: Place) -> None:
    for options, words in {
        ("--newest",): "say whose, with --user",
        ("--after", "x"): "cursor='x': must be the `next` of the page before",
        ("--after", "x", "-u", "ann"): "cursor='x': must be the `next` of the page before",
    }.items():
        shown = run(place, "memories", "list", *options)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert words in shown.stderr


def test_a_memory_is_shown_with_its_past_and_its_links(place: Place, scheduler: Scheduler) -> None:
    remember(
        scheduler,
        Remember(memory_id="old", text="Ann lives in Porto", info={"a": "\x1b[31m"}),
        Remember(memory_id="new", text="Ann lives in Lisbon"),
        Supersede(memory_id="old", version=1, successor="new"),
    )
    shown = run(place, "memories", "show", "old", "-u", "ann").stdout
    assert "superseded by new" in shown
    assert "Ann lives in Porto" in shown
    assert "supersedes" in shown
    assert "\x1b" not in shown
    whole = answer(place, "memories", "show", "new", "-u", "ann")
    assert [(link["relation"], link["outgoing"]) for link in whole["links"]] == [("supersedes", True)]
    assert answer(place, "memories", "show", "old", "-u", "ann")["history"][0]["change"] == "supersede"
    assert pages(place, "-u", "ann") == ["new"]
    assert sorted(pages(place, "-u", "ann", "--superseded")) == ["new", "old"]


# -- edit and delete -------------------------------------------------------------------------------------


def test_an_edit_and_its_undo(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, Remember(memory_id="-1", text="I'm here", tags=("a", "b"), importance=0.25))
    options = ("--text", "gone", "--kind", "event", "--title", "t", "--tag", "", "--importance", "1")
    times = ("--valid-from", "2026-05-02T00:00Z", "--valid-to", "1800000000000")
    shown = run(place, "memories", "edit", "-u", "ann", *options, *times, "--", "-1")
    assert (shown.exit_code, shown.stdout) == (0, "changed -1, now version 2\n")
    item = scheduler.memory.get("-1", user_id="ann")
    assert (item.text, item.kind, item.title, item.tags, item.importance) == ("gone", "event", "t", (), 1)
    assert (item.valid_from, item.valid_to) == (1_777_680_000_000, 1_800_000_000_000)
    undo = shlex.split(shown.stderr.removeprefix("to undo: "))
    assert run(place, *undo[1:]).exit_code == 0
    item = scheduler.memory.get("-1", user_id="ann")
    assert (item.text, item.kind, item.title, item.tags, item.importance) == (
        "I'm here",
        "fact",
        "",
        ("a", "b"),
        0.25,
    )
    assert [old.text for old in scheduler.memory.history("-1", user_id="ann")] == ["I'm here", "gone"]


def test_an_edit_of_another_version(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(1))
    shown = run(place, "memories", "edit", "m0", "-u", "ann", "--text", "x", "--version", "7")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "has version 1, but the change is based on version 7" in shown.stderr
    assert (
        answer(place, "memories", "edit", "m0", "-u", "ann", "--text", "x", "--version", "1")["version"] == 2
    )


def test_edits_that_are_refused(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(1))
    for options, code, words in [
        (("m0",), 2, "say what to change: --text"),
        (("m0", "--text", "  "), 1, "use delete to remove a memory"),
        (("nope", "--text", "x"), 1, "there is no memory 'nope' of this user"),
        (("m0", "--importance", "2"), 2, "importance"),
    ]:
        shown = run(place, "memories", "edit", "-u", "ann", *options)
        assert (shown.exit_code, shown.stdout) == (code, ""), options
        assert words in shown.stderr


def test_a_long_text_is_found_in_the_history(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, Remember(memory_id="1", text="line\n" * 100))
    shown = run(place, "memories", "edit", "1", "-u", "ann", "--text", "short")
    assert shown.stderr == "what it was stays in its history: reverie memories show --user ann -- 1\n"


@pytest.mark.parametrize(
    ("script", "text"), [("sed -i s/bees/wasps/", "about wasps"), ("true", "about bees")]
)
def test_an_edit_in_an_editor(place: Place, scheduler: Scheduler, script: str, text: str) -> None:
    remember(scheduler, *some(1))
    place.extra |= {"EDITOR": script, "VISUAL": script}
    with terminal(place, REVERIE, "memories", "edit", "m0", "-u", "ann") as person:
        person.reads("changed m0" if "wasps" in text else "nothing was changed")
        assert person.ends() == (0 if "wasps" in text else 1)
    item = scheduler.memory.get("m0", user_id="ann")
    assert item.text == f"a memory {text}, number 0"


def test_deleting(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(3))
    shown = run(place, "memories", "delete", "m0", "m1", "nope", "-u", "ann")
    assert (shown.exit_code, shown.stdout) == (1, "deleted 2 memories\n")
    assert "this cannot be undone" in shown.stderr
    assert "there is no memory 'nope' of ann" in shown.stderr
    again = answer(place, "memories", "delete", "m0", "-u", "ann")
    assert again == {"deleted": [], "deleted_before": ["m0"], "unknown": []}
    gone = run(place, "memories", "show", "m0", "-u", "ann")
    assert (gone.exit_code, gone.stderr) == (1, "error: the memory 'm0' was deleted\n")
    assert pages(place) == ["m2"]


def test_deleting_several_is_asked_for(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(2))
    with terminal(place, REVERIE, "memories", "delete", "m0", "m1", "-u", "ann") as person:
        person.reads("delete 2 memories of ann? This cannot be undone.")
        person.types("n\n")
        assert person.ends() == 1
    assert pages(place) == ["m0", "m1"]


# -- the index -------------------------------------------------------------------------------------------


def test_the_index(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(3))
    leave_to_indexer(place)
    state = {"total": 3, "left": 1, "embedder": "wordllama-256"}
    assert answer(place, "index", "status") == state
    assert "memories   3\nleft       1\nembedder   wordllama-256" in run(place, "index").stdout
    assert run(place, "index", "run").stdout == "indexed all 3 memories\n"
    assert answer(place, "index", "status") == state | {"left": 0}
    assert answer(place, "index", "rebuild") == state | {"left": 0}


def test_an_index_that_has_to_wait(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(2))
    place.extra |= {"REVERIE_MEMORY__EMBEDDING": "onnx", "REVERIE_MEMORY__EMBEDDING_PATH": "/nowhere/model"}
    shown = run(place, "index", "run")
    assert (shown.exit_code, shown.stdout) == (1, "indexed 0 of 2 memories\n")
    assert "2 memories must wait for the embedder onnx:model:unknown" in shown.stderr
    assert "The reason: memory.embedding_path: there is no folder and no jar /nowhere/model" in shown.stderr


def test_a_rebuild_is_asked_for(place: Place, scheduler: Scheduler) -> None:
    remember(scheduler, *some(2))
    for typed, code, words in ("n\n", 1, "nothing was changed"), ("y\n", 0, "indexed all 2 memories"):
        with terminal(place, REVERIE, "index", "rebuild") as person:
            person.reads("make the vectors of 2 memories anew?")
            person.types(typed)
            person.reads(words)
            assert person.ends() == code


def test_another_embedder_indexes_at_once(place: Place, scheduler: Scheduler, tmp_path: Path) -> None:
    remember(scheduler, *some(2))
    place.extra |= {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    (place.folder / "own_vectors.py").write_text(
        "class Own:\n    async def embed(self, texts):\n        return [[1.0, 2.0] for text in texts]\n\n"
        "def new(settings):\n    return Own()\n"
    )
    shown = place.command("embeddings", "use", "own_vectors:new")
    assert shown.returncode == 0, shown.stderr
    assert "indexed all 2 memories" in shown.stdout
    paths = os.pathsep.join([str(place.folder), os.environ.get("PYTHONPATH", "")])
    status = place.command("index", "status", "--json", PYTHONPATH=paths)
    assert '"embedder": "own_vectors:new"' in status.stdout
    assert '"left": 0' in status.stdout


def test_the_doctor_looks_at_the_index(place: Place, scheduler: Scheduler) -> None:
    place.extra |= {"REVERIE_SERVER__PORT": "0"}
    assert "memory" not in run(place, "doctor").stdout
    remember(scheduler, *some(2))
    assert "2 of 2 memories are indexed, by wordllama-256" in run(place, "doctor", "-v").stdout
    leave_to_indexer(place)
    shown = run(place, "doctor")
    assert shown.exit_code == 1
    assert "1 memory is not indexed, and no worker is running" in shown.stdout
    assert "`reverie index run`" in shown.stdout
    place.extra |= {"REVERIE_MEMORY__EMBEDDING": "onnx", "REVERIE_MEMORY__EMBEDDING_PATH": "/nowhere/model"}
    shown = run(place, "doctor")
    assert "makes no vectors: there is no model in /nowhere/model" in shown.stdout
    assert "`reverie embeddings list`" in shown.stdout
