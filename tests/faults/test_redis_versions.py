"""Several versions of Reverie on one server: each a real copy of the package, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reverie
from reverie.backends.redis import (
    ForbiddenError,
    KeysVersionError,
    PrefixCollisionError,
    RedisBackend,
    examine_server,
)
from reverie.backends.redis.keys import DEFAULT_PREFIX
from reverie.backends.redis.library import QUEUE, VERSION
from support.servers import Valkey, valkey_server

from .redis_case import redis_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]

DRAIN = r"""
import sys
from reverie import ReverieError, Scheduler
from reverie.testing import drain
scheduler = Scheduler()
scheduler.handler("note")(lambda message: sys.stdout.write(f"ran {message.item_id}\n") and None)
try:
    with scheduler.used():
        scheduler.submit("note", user_id="theirs", item_id="theirs", content="theirs")
        drain(scheduler)
        print(*(item.status for item in scheduler.status("theirs")))
except ReverieError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
"""Submits one message, and runs what there is."""


@pytest.fixture
def server() -> Iterator[Valkey]:
    with valkey_server() as server:
        yield server


@pytest.fixture
def run_copy(server: Valkey, tmp_path: Path) -> Run:
    """Run `DRAIN` with a copy of the package in which a text was replaced by another."""

    def run(file: str, old: str, new: str, **environment: str) -> subprocess.CompletedProcess[str]:
        package = Path(reverie.__file__).parent
        shutil.copytree(package, tmp_path / "copy" / "reverie", dirs_exist_ok=True)
        changed = tmp_path / "copy" / "reverie" / "backends" / "redis" / file
        text = changed.read_text()
        assert text.count(old) == 1
        changed.write_text(text.replace(old, new))
        environment |= {
            "PYTHONPATH": str(tmp_path / "copy"),
            "REVERIE_DATA_DIR": str(tmp_path / "theirs"),
            "REVERIE_QUEUE__URL": server.url,
        }
        return subprocess.run(
            [sys.executable, "-c", DRAIN],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


async def test_two_texts_of_one_version_work_on_the_same_keys(
    server: Valkey, tmp_path: Path, run_copy: Run
) -> None:
    async with redis_case(server.url, tmp_path) as case:
        await case.scheduler.start()
        await case.submit("1", label="gated")
        await case.has_begun()
        await case.scheduler.control.pause("note")
        await case.submit("2")
        done = run_copy("lua/base.lua", "local TOKENS = 4", "local TOKENS = 3")
        assert (done.returncode, done.stdout) == (0, "waiting\n"), done.stderr  # it heeds our pause
        with server.client() as client:
            names = {entry[1].decode() for entry in client.function_list()}
            assert len(names) == 2
            assert QUEUE.name in names
        await case.scheduler.control.resume("note")
        await case.scheduler.wait("theirs", user_id="theirs")
        case.go.set()
        items = await case.wait("1", "2")
        assert [(item.status, item.attempts, item.losses) for item in items] == [("completed", 1, 0)] * 2
        (note,) = [state for state in await case.scheduler.control.labels() if state.label == "note"]
        assert (note.waiting, note.in_progress, note.completed) == (0, 0, 2)


async def test_what_one_text_left_another_runs(server: Valkey, tmp_path: Path, run_copy: Run) -> None:
    async with redis_case(server.url, tmp_path) as case:
        await case.submit("1", "2")
        done = run_copy("lua/base.lua", "local TOKENS = 4", "local TOKENS = 3")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["completed", "ran 1", "ran 2", "ran theirs"]
        assert [item.status for item in await case.wait("1", "2")] == ["completed"] * 2
        assert await case.submit("1") == ["duplicate"]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (VERSION - 1, f"a newer Reverie writes them, and this one writes version {VERSION - 1}: upgrade"),
        (
            VERSION + 1,
            f"an older Reverie writes them, and this one writes version {VERSION + 1}: let that one",
        ),
    ],
    ids=["older", "newer"],
)
async def test_another_version_does_not_touch_the_keys(
    server: Valkey, tmp_path: Path, run_copy: Run, version: int, told: str
) -> None:
    change = ("library.py", f"VERSION = {VERSION}\n", f"VERSION = {version}\n")
    async with redis_case(server.url, tmp_path) as case:
        await case.submit("1")
        with server.client() as client:
            before = sorted(client.scan_iter())
            refused = run_copy(*change)
            assert refused.returncode == 1
            assert refused.stderr.startswith(f"KeysVersionError: {server.url}: the keys of the queue ")
            assert told in refused.stderr
            assert sorted(client.scan_iter()) == before
            assert len(client.function_list()) == 1
        beside = run_copy(*change, REVERIE_QUEUE__REDIS_PREFIX="beside")
        assert (beside.returncode, beside.stdout) == (0, "ran theirs\ncompleted\n"), beside.stderr
        assert await case.scheduler.status("theirs") == []
        await case.scheduler.start()
        await case.assert_each_once("1")


async def test_a_queue_that_another_version_has_begun_meanwhile(server: Valkey, tmp_path: Path) -> None:
    """The server was emptied, and a newer Reverie came first: ours notices when it brings its functions."""
    async with redis_case(server.url, tmp_path) as case:
        await case.submit("1")
        prefix = case.scheduler.runtime.settings.queue.redis_prefix
        with server.client() as client:
            client.flushall()
            client.function_flush()
            client.set(f"{prefix}:version", VERSION + 1)
            with pytest.raises(KeysVersionError, match="upgrade this one"):
                await case.submit("2")
            client.delete(f"{prefix}:version")
            assert await case.submit("2") == ["accepted"]
            assert client.get(f"{prefix}:version") == str(VERSION).encode()


async def test_queues_with_different_prefixes_are_apart(server: Valkey, tmp_path: Path) -> None:
    async with redis_case(server.url, tmp_path) as case:
        await case.submit("1")
        other = RedisBackend(server.url, prefix="other")
        await other.open()
        try:
            accepted = await other.queue.submit([reverie.Message(user_id="ann", label="note", item_id="1")])
            assert [answer.status for answer in accepted] == ["accepted"]
        finally:
            await other.close()
        await case.scheduler.start()
        await case.assert_each_once("1")


# -- prefixes ----------------------------------------------------------------------------------------


async def opened(server: Valkey, prefix: str) -> None:
    backend = RedisBackend(server.url, prefix=prefix)
    await backend.open()
    await backend.close()


MEETING = [
    ("q", "q:x"),
    ("q", "q:x:ready"),
    ("q", "q-status"),
    ("q", "q-scheduler:task"),
    (DEFAULT_PREFIX, f"{DEFAULT_PREFIX}:x"),
    (DEFAULT_PREFIX, "scheduler"),
    (DEFAULT_PREFIX, "memos"),
    (DEFAULT_PREFIX, "memos:task_items"),
]


@pytest.mark.parametrize(("one", "two"), [*MEETING, *(pair[::-1] for pair in MEETING)])
async def test_of_two_queues_whose_keys_could_meet_the_second_is_refused(
    server: Valkey, one: str, two: str
) -> None:
    await opened(server, one)
    with server.client() as client:
        before = sorted(client.scan_iter())
        for _ in range(2):
            with pytest.raises(PrefixCollisionError) as told:
                await opened(server, two)
            assert (told.value.prefix, told.value.other) == (two, one)
            assert f"keys of a queue with the prefix {two!r} could have the same names" in str(told.value)
            assert f"as keys of the queue {one!r}, which is there already" in str(told.value)
        assert sorted(client.scan_iter()) == before
        findings = {found.check: found for found in await examine_server(server.url, prefix=two)}
        assert findings["queue.redis_prefix"].level == "problem"
        await opened(server, one)
        client.delete(f"{one}:version")  # the queue is gone, and its keys with it
        await opened(server, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("q", "queue"),
        ("q:x", "q:xy"),
        ("q:x", "q:y"),
        ("q", "q-x"),
        (DEFAULT_PREFIX, "scheduler:messages:stream:v3.0"),
    ],
)
async def test_queues_whose_keys_cannot_meet_are_beside_each_other(
    server: Valkey, one: str, two: str
) -> None:
    for prefix in (one, two, one, two):
        await opened(server, prefix)
        assert "queue.redis_prefix" not in {
            found.check for found in await examine_server(server.url, prefix=prefix)
        }


async def test_two_queues_that_come_at_once_are_never_both_opened(server: Valkey) -> None:
    for number in range(10):
        both = (f"q{number}", f"q{number}:x")
        answers = await asyncio.gather(*(opened(server, prefix) for prefix in both), return_exceptions=True)
        refused = [answer for answer in answers if answer is not None]
        assert refused
        assert {type(answer) for answer in refused} == {PrefixCollisionError}


async def test_a_queue_that_an_older_version_has_begun_is_seen(server: Valkey) -> None:
    with server.client() as client:
        client.set("q:version", VERSION)  # it lists nothing
    with pytest.raises(PrefixCollisionError, match="'q'"):
        await opened(server, "q:x")


async def test_a_user_with_few_rights_may_list_the_prefix(server: Valkey) -> None:
    rules = ("on", ">word", "~q:x*", "&*", "+@all")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", *rules)
        guest = RedisBackend(server.url.replace("unix://", "unix://guest:word@"), prefix="q:x")
        with pytest.raises(ForbiddenError, match=r"ACL SETUSER guest ~q:prefixes\* ~q:x\*"):
            await guest.open()
        client.execute_command("ACL", "SETUSER", "guest", "~q:prefixes*")
        await guest.open()
        await guest.close()
