"""Export and import: the same memories come out again, whatever happens in between."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from typer.testing import CliRunner

from reverie import Scheduler
from reverie.cli.main import cli
from reverie.effect import Delete, Link, Move, Remember, Revise, Source, Supersede
from reverie.memory.transfer import HEADER
from support.commands import answer, run
from support.forked import REVERIE
from support.living import wait_until
from support.places import Place, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

NOT_KEPT = ("version", "updated_at", "access_count", "accessed_at")
"""What an import does not bring along."""


@pytest.fixture(autouse=True)
def words_alone(place: Place) -> None:
    place.extra["REVERIE_MEMORY__EMBEDDING"] = "none"


@pytest.fixture
def scheduler(place: Place) -> Iterator[Scheduler]:
    with place.scheduler() as scheduler:
        scheduler.open()
        yield scheduler


@pytest.fixture
def other(place: Place, tmp_path: Path) -> Iterator[Place]:
    """An empty store."""
    (tmp_path / "other").mkdir()
    with sqlite(tmp_path / "other") as other:
        other.extra |= place.extra
        yield other


def change(scheduler: Scheduler, tenant: tuple[str, str], *effects) -> None:
    scheduler.run(scheduler.runtime.store.change(tenant, list(effects)))


def fill(scheduler: Scheduler) -> None:
    """Memories of all sorts, of three tenants."""
    change(
        scheduler,
        ("ann", "ann"),
        Remember(
            memory_id="all",
            text="Ann 住在 Lisbon\u2028 \x1b[31m",
            kind="observation",
            type="Bash",
            title="t",
            narrative="n",
            facts=("a", "b"),
            concepts=("c",),
            session_id="s",
            device_id="d",
            agent_id="g",
            domain="home",
            tags=("x", "y"),
            info={"deep": [1, {"a": None}]},
            sources=(Source(item_id="i", index=2, role="user", name="Ann", chat_time="May"),),
            importance=0.75,
            valid_from=5,
            valid_to=6,
            expires_at=2**45,
            learned_at=4,
        ),
        Remember(memory_id="porto", text="Ann lives in Porto", tier="working", learned_at=10),
        Remember(memory_id="lisbon", text="Ann lives in Lisbon", learned_at=10),
        Remember(memory_id="rome", text="Ann lives in Rome", learned_at=20),
        Supersede(memory_id="porto", version=1, successor="lisbon"),
        Supersede(memory_id="lisbon", version=1, successor="rome"),
        Link(source_id="porto", relation="about", target_id="rome"),
        Link(source_id="rome", relation="derived_from", target_id="all"),
        Remember(memory_id="old", text="long ago", learned_at=1),
        Move(memory_id="old", version=1, tier="archive"),
    )
    change(scheduler, ("ann", "work"), *(Remember(memory_id=f"w{n}", text=f"work {n}") for n in range(450)))
    change(scheduler, ("bob", "bob"), Remember(memory_id="all", text="of Bob"))


def export(place: Place, *options: str) -> list[dict[str, Any]]:
    shown = run(place, "export", *options)
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.stdout
    assert "\u2028" not in shown.stdout
    first, *lines = map(json.loads, shown.stdout.splitlines())
    assert first == {"format": "reverie-memories", "version": 1}
    return lines


def kept(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in NOT_KEPT} for line in lines]


def name_all(lines: list[dict[str, Any]]) -> list[str]:
    return [f"{line['user_id']}/{line['mem_cube_id']}/{line['id']}" for line in lines]


# -- export ----------------------------------------------------------------------------------------------


def test_what_comes_out_goes_in_and_comes_out_again(place: Place, scheduler: Scheduler, other: Place) -> None:
    fill(scheduler)
    file = place.folder / "all.jsonl"
    assert run(place, "export", str(file)).stdout == f"exported 456 memories to {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert answer(other, "import", str(file)) == {
        "imported": 456,
        "present": 0,
        "failed": 0,
        "links_left_out": 0,
    }
    assert kept(export(other)) == kept(export(place))
    again = run(other, "import", str(file))
    assert (again.exit_code, again.stdout) == (0, "imported 0 memories\n")
    assert again.stderr == "there before: 456 memories\n"
    assert kept(export(other)) == kept(export(place))
    assert len(answer(other, "search", "Ann lives in", "-u", "ann", "--cube", "ann")["hits"]) == 2, (
        "Rome, all"
    )


def test_a_part_is_exported(place: Place, scheduler: Scheduler) -> None:
    fill(scheduler)
    assert len(export(place, "--user", "ann")) == 455
    assert len(export(place, "--user", "ann", "--cube", "work")) == 450
    assert name_all(export(place, "--cube", "bob", "-")) == ["bob/bob/all"]
    living = export(place, "--user", "ann", "--cube", "ann", "--no-superseded")
    assert [line["id"] for line in living] == ["old", "all", "rome"]
    assert [link for line in living for link in line["links"]] == [
        {"relation": "derived_from", "target_id": "all"}
    ]
    assert export(place, "--user", "nobody") == []


@pytest.mark.parametrize("cut", [0, 10, len(HEADER), len(HEADER) + 1, 700, 5000, 200_000, 10**9])
def test_an_export_goes_on_where_it_was_cut(place: Place, scheduler: Scheduler, cut: int) -> None:
    fill(scheduler)
    file = place.folder / "all.jsonl"
    whole = run(place, "export").stdout.encode()
    file.write_bytes(whole[:cut])
    shown = answer(place, "export", str(file), "--resume")
    assert shown["written"] + shown["written_before"] == 456
    assert file.read_bytes() == whole


def test_an_export_goes_on_after_a_memory_that_is_gone(place: Place, scheduler: Scheduler) -> None:
    change(
        scheduler, ("ann", "ann"), *(Remember(memory_id=f"{n}", text=f"{n}", learned_at=5) for n in range(9))
    )
    file = place.folder / "all.jsonl"
    lines = run(place, "export").stdout.encode().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:5]) + b'{"id"')
    change(scheduler, ("ann", "ann"), Delete(memory_id="3", version=1))
    assert answer(place, "export", str(file), "--resume")["written"] == 5
    assert file.read_bytes() == b"".join(lines)


def test_a_file_is_not_written_over_unasked(place: Place, scheduler: Scheduler) -> None:
    fill(scheduler)
    file = place.folder / "x.jsonl"
    file.write_text("mine\n")
    for options, code, words in [
        ((), 2, "is there already: --resume goes on with it, --overwrite begins anew"),
        (("--resume",), 1, "line 1 is not an export of memories"),
        (("--resume", "--overwrite"), 2, "are opposites"),
    ]:
        shown = run(place, "export", str(file), *options)
        assert (shown.exit_code, shown.stdout) == (code, "")
        assert words in shown.stderr
        assert file.read_text() == "mine\n"
    assert run(place, "export", str(file), "--overwrite", "-u", "bob").exit_code == 0
    assert len(file.read_text().splitlines()) == 2
    shown = run(place, "export", str(file), "--resume", "-u", "ann")
    assert (shown.exit_code, len(file.read_text().splitlines())) == (2, 2)
    assert "has memories of others" in shown.stderr
    assert run(place, "export", "-", "--resume").exit_code == 2
    assert "cannot be written" in run(place, "export", "/nowhere/file").stderr


# -- import ----------------------------------------------------------------------------------------------


def test_an_import_as_another_user(place: Place, scheduler: Scheduler, other: Place) -> None:
    fill(scheduler)
    text = run(place, "export", "-u", "ann").stdout
    shown = CliRunner().invoke(cli, ["import", "-", "--user", "eve"], input=text, env=other.environment)
    assert (shown.exit_code, shown.stdout) == (0, "imported 455 memories\n")
    names = name_all(export(other))
    assert names[:2] == ["eve/eve/old", "eve/eve/all"], "the own cube of Ann becomes that of Eve"
    assert names[-1] == "eve/work/w449"
    shown = CliRunner().invoke(
        cli, ["import", "-", "--user", "joe", "--cube", "c"], input=text, env=other.environment
    )
    assert {name.rpartition("/")[0] for name in name_all(export(other, "-u", "joe"))} == {"joe/c"}


def test_what_cannot_be_imported_is_named_and_the_rest_goes_on(
    place: Place, scheduler: Scheduler, other: Place
) -> None:
    fill(scheduler)
    file = place.folder / "all.jsonl"
    run(place, "export", str(file), "--cube", "ann")
    lines = file.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines[1:]] == ["old", "all", "porto", "lisbon", "rome"]
    bad = [
        '{"id": 5}',
        "{",
        "",
        json.dumps(json.loads(lines[1]) | {"id": "x", "text": " "}),
        json.dumps(json.loads(lines[1]) | {"id": "x", "importance": 7}),
        json.dumps(json.loads(lines[1]) | {"id": "x", "created_at": 2**60}),
        json.dumps(json.loads(lines[1]) | {"id": "x", "user_id": "_root"}),
        json.dumps(json.loads(lines[1]) | {"id": "x" * 9000}),
    ]
    file.write_text("\n".join([*lines, *bad, '{"id": "torn']))
    with other.scheduler() as there:
        there.open()
        change(there, ("ann", "ann"), Remember(memory_id="all", text="another text"))
        change(there, ("ann", "work"), Remember(memory_id="old", text="of another cube"))
        change(
            there, ("ann", "ann"), Remember(memory_id="porto", text="x"), Delete(memory_id="porto", version=1)
        )
    shown = run(other, "import", str(file))
    assert (shown.exit_code, shown.stdout) == (1, "imported 2 memories\n")
    for words in [
        "line 2: the memory id 'old' is taken by another text or cube",
        "line 3: the id 'all' is taken by a memory with another text",
        "line 4: the memory 'porto' was deleted, and stays deleted",
        "line 7: is no memory: Expected `str`, got `int` - at `$.id`",
        "line 8: is no memory: ",
        "line 10: has no text",
        "line 11: importance = 7",
        "line 12: created_at = 1152921504606846976: must be milliseconds since 1970",
        "line 13: user_id='_root': ids that begin with _ are reserved",
        "line 14: memory_id=",
        "line 15: is no memory: Input data was truncated; the line is cut off",
        "not imported as they were, see above: 11",
        "links that lead to no memory, and were left out: 2",
    ]:
        assert words in shown.stderr, shown.stderr
    numbers = [int(number) for number in re.findall(r"^error: .* line (\d+): ", shown.stderr, re.MULTILINE)]
    assert numbers == [2, 3, 4, 7, 8, 10, 11, 12, 13, 14, 15]
    there = {line["id"]: line for line in export(other, "--cube", "ann")}
    assert there.keys() == {"all", "lisbon", "rome"}
    assert there["lisbon"]["superseded_by"] == "rome"


def test_a_memory_whose_successor_is_missing_stays_in_the_archive(
    place: Place, scheduler: Scheduler, other: Place
) -> None:
    fill(scheduler)
    file = place.folder / "all.jsonl"
    lines = run(place, "export", "--cube", "ann").stdout.splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"id":"rome"' not in line))
    shown = run(other, "import", str(file))
    assert shown.exit_code == 1
    assert (
        "line 5: the memory 'lisbon' is in the archive, because its successor 'rome' is not" in shown.stderr
    )
    assert {line["id"]: line["tier"] for line in export(other)}["lisbon"] == "archive"


def test_a_superseded_memory_pushes_none_out(place: Place, scheduler: Scheduler, other: Place) -> None:
    tenant = ("ann", "ann")
    for n in range(60):
        change(
            scheduler, tenant, Remember(memory_id=f"{n}", text=f"place {n}", tier="working", learned_at=n + 1)
        )
        if n >= 15:
            change(scheduler, tenant, Supersede(memory_id=f"{n - 15}", version=1, successor=f"{n}"))
    before = {line["id"]: line["tier"] for line in export(place)}
    file = place.folder / "all.jsonl"
    run(place, "export", str(file))
    assert run(other, "import", str(file)).exit_code == 0
    assert {line["id"]: line["tier"] for line in export(other)} == before


def test_a_circle_of_successors_is_named(place: Place, scheduler: Scheduler, other: Place) -> None:
    change(scheduler, ("ann", "ann"), *(Remember(memory_id=name, text=name, learned_at=1) for name in "abc"))
    lines = [json.loads(line) for line in run(place, "export").stdout.splitlines()]
    for line, successor in zip(lines[1:], "bac", strict=True):
        line["superseded_by"] = successor
    text = "\n".join(map(json.dumps, lines))
    shown = CliRunner().invoke(cli, ["import", "-"], input=text, env=other.environment)
    assert shown.exit_code == 1
    assert "standard input line 3: links of 'b': the memory 'b' cannot supersede itself" in shown.stderr
    assert "standard input line 4: links of 'c': the memory 'c' cannot supersede itself" in shown.stderr


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ("", "is not an export of memories: its first line must be"),
        ('{"id": "1"}\n', "is not an export of memories"),
        ("not json\n", "is not an export of memories"),
        ('{"format":"reverie-memories","version":2}\n', "has version 2 of the format; this Reverie reads"),
    ],
)
def test_a_file_that_is_no_export(place: Place, begin: str, words: str) -> None:
    file = place.folder / "x"
    file.write_text(begin)
    shown = run(place, "import", str(file))
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert words in shown.stderr
    assert "nothing was imported" in shown.stderr
    assert "cannot be read" in run(place, "import", "/nowhere/file").stderr


def count(place: Place) -> int:
    """How many memories a store has; 0 while it is being made."""
    path = place.memory_url.removeprefix("sqlite:///")
    if not Path(path).exists():
        return 0
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(10_000)
    try:
        return connection.execute("SELECT count(*) FROM memory_items").get
    except apsw.SQLError:
        return 0
    finally:
        connection.close()


def test_an_import_that_is_killed_goes_on(place: Place, scheduler: Scheduler, other: Place) -> None:
    change(
        scheduler,
        ("ann", "ann"),
        *(Remember(memory_id=f"m{n}", text=f"memory {n}", learned_at=n + 1) for n in range(3000)),
        *(Supersede(memory_id=f"m{n}", version=1, successor=f"m{n + 1}") for n in range(0, 3000, 2)),
        *(Link(source_id=f"m{n}", relation="about", target_id="m1") for n in range(2, 3000, 3)),
    )
    change(scheduler, ("ann", "ann"), Revise(memory_id="m1", version=1, title="a title"))
    file = place.folder / "all.jsonl"
    run(place, "export", str(file))
    for so_far in 1, 1500, 3000:  # in the first pass, later in it, and in the second
        process = subprocess.Popen(
            [REVERIE, "import", str(file)],
            env={**other.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda so_far=so_far: count(other) >= so_far, 60)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert run(other, "import", str(file)).exit_code == 0
    assert kept(export(other)) == kept(export(place))
