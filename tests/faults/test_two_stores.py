"""Two stores on one file, as in two processes: both write, one indexes, and none undoes the other's work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from reverie import Revise
from reverie.memory.sqlite.indexing import LEASE_MS
from support.agreement import assert_agreement
from support.hashing import HashEmbedder
from support.memory_bench import open_file
from support.old_file import build_old_file

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock

OLD = {f"old{n}": f"note number{n}" for n in range(100)}
WRITES = 40
PROCESS = """
import asyncio, sys
from reverie import Delete, Remember, Revise
from support.hashing import HashEmbedder
from support.memory_bench import open_file

async def main(path, name, does_index):
    embedder = HashEmbedder()
    async with open_file(path, embedder) as bench:
        print("open", flush=True)
        sys.stdin.readline()
        for number in range(%d):
            embedder.fails = number %% 3 == 0
            await bench.add(**{f"{name}{number}": f"word{number} of {name}"})
            await bench.apply(Revise(memory_id=f"{name}{number}", version=1, text=f"revised{number} {name}"))
            old = f"old{number if name == 'alpha' else number + 50}"
            assert await bench.apply(Delete(memory_id=old, version=1)) == "applied"
            if does_index == "yes":
                await bench.store.index_next(5)
            assert f"{name}{number}" in await bench.find(f"revised{number}", limit=200)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    build_old_file(path, OLD)
    return path


@pytest.mark.parametrize("indexing", ["yes", "no"])
async def test_two_processes_write_at_once(path: Path, clock: ManualClock, indexing: str) -> None:
    """With `yes` both index, and one of them drops the old index while the other still writes."""
    paths = os.pathsep.join(sys.path)
    processes = [
        subprocess.Popen(  # noqa: ASYNC220  both run at once, and are waited for in a thread
            [sys.executable, "-c", PROCESS % WRITES, str(path), name, does_index],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        for name, does_index in (("alpha", "yes"), ("beta", indexing))
    ]  # fmt: skip
    for process in processes:
        assert await asyncio.to_thread(process.stdout.readline) == "open\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [(await asyncio.to_thread(process.communicate))[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert_agreement(path)
    async with open_file(path, HashEmbedder(), clock) as bench:
        assert (await bench.index()).left == 0
        for name in ("alpha", "beta"):
            for number in (0, WRITES - 1):
                assert (await bench.find(f"revised{number} {name}"))[0] == f"{name}{number}"
    assert_agreement(path, indexed=True)


async def test_one_indexer_at_a_time_until_its_lease_is_over(path: Path, clock: ManualClock) -> None:
    slow, quick = HashEmbedder(), HashEmbedder()
    async with open_file(path, slow, clock) as one, open_file(path, quick, clock) as other:
        slow.gate = asyncio.Event()
        step = asyncio.create_task(one.store.index_next(10))
        await slow.waiting.wait()
        assert await other.store.index_next(10) is None
        clock.advance(LEASE_MS / 1000 - 0.001)
        assert await other.store.index_next(10) is None
        clock.advance(0.001)
        assert await other.store.index_next(30) == 30
        slow.gate.set()
        await step  # the first one wakes up late: what it has is written, the cursor of the other stays
        assert (await other.store.index_progress()).left == len(OLD) - 30
        await other.index()
        assert await one.store.index_next(10) == 0
        assert (await one.search("number7")).degraded == ()
    assert_agreement(path, indexed=True)


async def test_an_indexer_that_ends_lets_another_one_begin(path: Path, clock: ManualClock) -> None:
    async with open_file(path, HashEmbedder(), clock) as other:
        async with open_file(path, HashEmbedder(), clock) as one:
            await one.store.index_next(10)
            assert await other.store.index_next(10) is None
        assert await other.store.index_next(10) == 10
        await other.index()
        async with open_file(path, HashEmbedder(), clock) as one:
            one.embedder.fails = True
            await one.add(new="something new")
            one.embedder.fails = False
            assert await one.store.index_next(10) == 1


async def test_a_clock_that_was_set_back_does_not_stop_the_indexer(path: Path, clock: ManualClock) -> None:
    async with open_file(path, HashEmbedder(), clock) as one, open_file(path, HashEmbedder(), clock) as other:
        assert await one.store.index_next(10) == 10
        clock.advance(-24 * 3600)
        assert await other.store.index_next(10) == 10


async def test_a_version_that_another_process_has_changed_is_a_conflict(
    path: Path, clock: ManualClock
) -> None:
    async with open_file(path, None, clock) as one, open_file(path, None, clock) as other:
        change = Revise(memory_id="old1", version=1, text="changed")
        answers = await asyncio.gather(one.apply(change), other.apply(change))
        assert sorted(answers) == ["applied", "conflict"]
    assert_agreement(path)
