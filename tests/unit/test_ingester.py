"""The ingester: files become messages, in order; what is damaged is kept aside, with its reason."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie import AsyncScheduler, Message
from reverie.capture.ingester import SpoolIngester
from reverie.capture.spool import FIELDS, Spool
from reverie.settings import load_settings
from support.spooling import NOTE, all_names, damaged, file_name, ingester_of, put, waiting


@pytest.fixture
def scheduler(idle_scheduler: AsyncScheduler) -> AsyncScheduler:
    return idle_scheduler


async def test_takes_in_what_waits_in_order(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    ran: list[str] = []
    scheduler.handler("note")(lambda message: ran.append(message.item_id))
    given = [spool.write(NOTE | {"content": str(number)}) for number in range(250)]
    await ingester.look()
    assert waiting(folder) == []
    await scheduler.runtime.worker.drain()
    assert ran == given


async def test_every_field_arrives(scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    message = Message(
        user_id="ann",
        label="note",
        content="héllo \x00 \n",
        mem_cube_id="cube",
        session_id="s",
        task_id="t",
        trace_id="tr",
        user_name="Ann",
        info={"a": [1, 2.5, None, {"b": "c"}]},
        timestamp=moment,
        due=moment,
        deadline=moment.replace(year=2032),
        unique_key="k",
        unique_window_s=3,
        unique_policy="extend",
        if_dependency_fails="run",
    )
    spool.write(msgspec.to_builtins(message))
    got: list[Message] = []
    ingester._submit = lambda messages: _take(messages, got, scheduler)
    await ingester.look()
    assert got == [message]
    assert [item.item_id for item in await scheduler.status("ann")] == [message.item_id]


async def test_a_file_that_was_taken_before_is_a_duplicate(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    spool.write(NOTE)
    (file,) = waiting(folder)
    content = file.read_bytes()
    await ingester.look()
    file.write_bytes(content)
    await ingester.look()
    assert waiting(folder) == []
    assert damaged(folder) == {}
    assert len(await scheduler.status("ann")) == 1


async def test_a_conflict_is_set_aside(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    for content in ("one", "two"):
        spool.write(NOTE | {"item_id": "same", "content": content})
    spool.write(NOTE | {"item_id": "other"})
    last = waiting(folder)[1].name
    await ingester.look()
    assert damaged(folder) == {last: "the queue has another message with the item_id 'same'\n"}
    assert json.loads((folder / "damaged" / last).read_bytes())["content"] == "two"
    assert {item.item_id for item in await scheduler.status("ann")} == {"same", "other"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"user_id": "ann", "lab', "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "a list and not an object"),
        (b"null", "a NoneType and not an object"),
        (b'{"user_id": "ann", "label": "note"}', "has no item_id"),
        (b'{"user_id": "ann", "label": "note", "item_id": "i", "x": 1}', "unknown fields: 'x'"),
        (b'{"user_id": "ann", "label": "note", "item_id": "i", "losses": 1}', "unknown fields: 'losses'"),
        (b'{"user_id": "ann", "item_id": "i"}', "is no message: .*label"),
        (b'{"user_id": "_ann", "label": "note", "item_id": "i"}', "is no message: user_id='_ann'"),
        (b'{"user_id": 7, "label": "note", "item_id": "i"}', "is no message: .*user_id"),
        (b'{"user_id": "ann", "label": "note", "item_id": "i", "due": "soon"}', "is no message: .*due"),
        (b'{"user_id": "ann", "label": "note", "item_id": "i", "depends_on": ["j"]}', "was refused: "),
        (b'"' + b"x" * 100_000 + b'"', "at most spool.max_file_bytes = 100000"),
    ],
)
async def test_damaged_content_is_set_aside_and_the_rest_goes_on(
    scheduler, ingester: SpoolIngester, spool: Spool, folder: Path, content: bytes, reason: str
) -> None:
    spool.write(NOTE | {"item_id": "before"})
    bad = put(folder, f"{time.time_ns():020d}-{0:016x}.json", content)
    spool.write(NOTE | {"item_id": "after"})
    await ingester.look()
    assert waiting(folder) == []
    assert (folder / "damaged" / bad.name).read_bytes() == content
    why = damaged(folder)
    assert list(why) == [bad.name]
    assert re.search(reason, why[bad.name]), why
    assert {item.item_id for item in await scheduler.status("ann")} == {"before", "after"}


async def test_what_is_no_file_of_ours_is_not_followed(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path, tmp_path: Path
) -> None:
    spool.write(NOTE | {"item_id": "ours"})
    secret = tmp_path / "secret.json"
    waiting(folder)[0].rename(secret)
    link, directory, pipe, foreign = (file_name(number) for number in range(4))
    (folder / link).symlink_to(secret)
    (folder / directory).mkdir()
    (folder / directory / "inside").touch()
    os.mkfifo(folder / pipe)
    unreadable = {link: "is a symbolic link\n", directory: "is a folder\n", pipe: "is no regular file\n"}
    if os.geteuid() == 0:
        (folder / foreign).write_bytes(secret.read_bytes())
        os.chown(folder / foreign, 12345, -1)
        unreadable[foreign] = "belongs to user 12345, not to the one who reads it\n"
    spool.write(NOTE | {"item_id": "good"})
    await ingester.look()
    assert damaged(folder) == unreadable
    assert (folder / "damaged" / directory / "inside").exists()
    assert secret.exists()
    assert [item.item_id for item in await scheduler.status("ann")] == ["good"]
    assert (folder / "damaged").stat().st_mode & 0o777 == 0o700
    assert (folder / "damaged" / f"{link}.reason").stat().st_mode & 0o777 == 0o600


async def test_nothing_set_aside_is_overwritten(ingester: SpoolIngester, folder: Path) -> None:
    for content in (b"first", b"second", b"third"):
        put(folder, file_name(0), content)
        await ingester.look()
    kept = {path.read_text() for path in (folder / "damaged").iterdir() if path.suffix != ".reason"}
    assert kept == {"first", "second", "third"}
    assert len(damaged(folder)) == 3


async def test_what_cannot_be_set_aside_blocks_nobody(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    spool.write(NOTE | {"item_id": "good"})
    (folder / file_name(0)).write_text("bad")
    (folder / "damaged").write_text("a file where the folder should be")
    await ingester.look()
    assert [path.name for path in waiting(folder)] == [file_name(0)]
    assert [item.item_id for item in await scheduler.status("ann")] == ["good"]


async def test_an_unfinished_file_is_set_aside_after_an_hour(ingester: SpoolIngester, folder: Path) -> None:
    names = [f".{file_name(number)}.tmp" for number in range(2)]
    old, new = (put(folder, name, b'{"user_id"') for name in names)
    os.utime(old, (time.time() - 3700, time.time() - 3700))
    await ingester.look()
    assert (new.exists(), old.exists()) == (True, False)
    assert list(damaged(folder)) == [old.name]
    assert (folder / "damaged" / old.name).read_text() == '{"user_id"'


async def test_what_is_not_the_spools_is_left_alone(ingester: SpoolIngester, folder: Path) -> None:
    others = {"reverie.db", "notes.txt", ".hidden.json", "package.json", "1.json", ".editor.tmp"}
    others |= {f"{file_name(1)}.bak", f"x{file_name(1)}", file_name(1).upper()}
    for name in others:
        os.utime(put(folder, name, b"{}"), (0, 0))
    await ingester.look()
    assert all_names(folder) == others | {".lock"}


async def test_a_folder_that_does_not_exist_is_not_made(ingester: SpoolIngester, folder: Path) -> None:
    await ingester.look()
    assert all_names(folder) == set()
    assert "spool" not in all_names(folder.parent)


async def test_one_ingests_at_a_time(
    scheduler: AsyncScheduler, ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    spool.write(NOTE)
    other = ingester_of(scheduler, folder)
    with other._files.locked() as first:
        await ingester.look()
        assert (first, len(waiting(folder))) == (True, 1)
    await ingester.look()
    assert waiting(folder) == []


async def test_the_lock_of_a_process_that_dies_is_free(
    ingester: SpoolIngester, spool: Spool, folder: Path
) -> None:
    spool.write(NOTE)
    program = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(folder / ".lock"), **pipes
    )
    await holder.stdout.readline()
    await ingester.look()
    assert len(waiting(folder)) == 1
    holder.kill()
    await holder.communicate()
    await ingester.look()
    assert waiting(folder) == []


async def test_two_that_take_in_the_same_files_make_one_message_of_each(
    scheduler: AsyncScheduler, spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where flock does nothing, as on some network file systems."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    given = {spool.write(NOTE) for _ in range(250)}
    await asyncio.gather(*(ingester_of(scheduler, folder).look() for _ in range(3)))
    assert waiting(folder) == []
    assert damaged(folder) == {}
    assert {item.item_id for item in await scheduler.status("ann")} == given


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
almost = st.fixed_dictionaries(
    {"user_id": st.just("ann") | json_values, "label": st.just("note"), "item_id": st.text() | json_values},
    optional=dict.fromkeys(FIELDS - {"user_id", "label", "item_id"}, json_values),
)
contents = (
    st.binary(max_size=300)
    | json_values.map(lambda value: json.dumps(value).encode())
    | almost.map(lambda value: json.dumps(value).encode())
)


@settings(max_examples=60, deadline=None)
@given(st.lists(contents, max_size=6))
def test_no_content_stops_the_ingester_and_none_is_lost(files: list[bytes]) -> None:
    async def run(folder: Path) -> None:
        submitted: list[Message] = []
        scheduler = AsyncScheduler(settings=load_settings(data_dir=folder, queue={"url": "memory://"}))
        await scheduler.open()
        ingester = ingester_of(scheduler, folder)
        ingester._submit = lambda messages: _take(messages, submitted, scheduler)
        for number, content in enumerate(files):
            (folder / file_name(number)).write_bytes(content)
        Spool(folder).write(NOTE | {"item_id": "the last one"})
        assert await ingester.look() == 3600
        assert waiting(folder) == []
        reasons = damaged(folder)
        for number, content in enumerate(files):
            if file_name(number) in reasons:
                assert (folder / "damaged" / file_name(number)).read_bytes() == content
            else:
                assert json.loads(content)["item_id"] in {message.item_id for message in submitted}
        assert "the last one" in {message.item_id for message in submitted}
        await scheduler.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def _take(messages, got: list[Message], scheduler: AsyncScheduler):
    answers = await scheduler.runtime.intake.submit(messages)
    got.extend(messages)
    return answers


# -- how much is kept --------------------------------------------------------------------------------


def age(folder: Path, number: int, at: int) -> None:
    """Let the reason of a damaged file be as old as `at` says."""
    os.utime(folder / "damaged" / f"{file_name(number)}.reason", (at, at))


async def test_of_too_many_damaged_files_the_oldest_are_removed_and_counted(
    scheduler: AsyncScheduler, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ingester = ingester_of(scheduler, folder, max_files=20)
    for number in range(20):
        put(folder, file_name(number), b"no JSON")
    await ingester.look()
    assert len(damaged(folder)) == 20
    for number in range(20):
        age(folder, number, 1000 - number)  # the last is the oldest
    (folder / "damaged" / "by-hand").write_text("older than all")
    os.utime(folder / "damaged" / "by-hand", (1, 1))
    put(folder, file_name(99), b"no JSON")
    await ingester.look()
    kept = {path.name for path in (folder / "damaged").iterdir()}
    assert kept == {f"{file_name(number)}{end}" for number in (*range(17), 99) for end in ("", ".reason")}
    assert "spool.damaged_removed files=4" in caplog.text
    assert f"first='by-hand' last='{file_name(17)}'" in caplog.text
    assert ingester._files.damaged.removed == 4


async def test_damaged_files_are_bounded_by_bytes_and_folders_count(
    scheduler: AsyncScheduler, folder: Path
) -> None:
    ingester = ingester_of(scheduler, folder, max_bytes=50_000)
    for number in range(200):
        if number % 20 == 7:
            put(folder / file_name(number) / "deep", "inside", b"x" * 2000)
        else:
            put(folder, file_name(number), b"x" * 1000)
    await ingester.look()
    size = sum(path.lstat().st_size for path in (folder / "damaged").rglob("*") if path.is_file())
    assert 30_000 < size <= 50_000
    assert file_name(199) in damaged(folder)
    assert file_name(0) not in damaged(folder)
    for number in range(200, 400):
        put(folder, file_name(number), b"{}")
        await ingester.look()
    assert file_name(399) in damaged(folder)


async def test_a_label_too_many_holds_up_only_the_files_of_its_user(
    tmp_path: Path, folder: Path, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = load_settings(data_dir=tmp_path, queue={"url": "memory://", "max_labels": 1})
    async with AsyncScheduler(settings=settings) as scheduler:
        ingester = ingester_of(scheduler, folder)
        await scheduler.submit("note", user_id="cem")
        for user_id, label in (("ann", "made-up"), ("ann", "note"), ("bob", "note")):
            spool.write({"user_id": user_id, "label": label})
        await ingester.look()
        assert len(waiting(folder)) == 2
        assert damaged(folder) == {}
        assert len(await scheduler.status("bob")) == 1
    assert caplog.text.count("spool.waits") == 1
    assert "queue.max_labels = 1" in caplog.text
