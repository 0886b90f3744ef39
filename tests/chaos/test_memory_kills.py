"""Processes that write, index and delete memories are killed at random and at named steps.

Each time the tables agree, the file is whole, and the indexer makes it complete.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from support.agreement import assert_agreement
from support.hashing import HashEmbedder
from support.memory_bench import open_file
from support.old_file import build_old_file
from support.places import PATHS
from support.scale import SEED, evidence, scaled

KILLS = 120
STEPS = 60
"""How many steps a process does at most before it is killed."""
OLD_TEXTS = {f"old{n}": f"word{n % 30} of an earlier version" for n in range(120)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    build_old_file(path, OLD_TEXTS)
    return path


class Writer:
    """A process that writes into a file until it is killed."""

    def __init__(self, path: Path, seed: object, embedder: str = "a", **environment: str) -> None:
        program = Path(__file__).with_name("memory_writer.py")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
        self.process = subprocess.Popen(
            [sys.executable, program, path, str(seed), embedder],
            env={**kept, **PATHS, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def steps(self, count: int) -> int:
        """Wait for so many steps; the answer is how many there were before the process ended."""
        return sum(1 for _ in zip(range(count), self.process.stdout, strict=False))

    def kill(self) -> None:
        self.process.kill()
        self.process.stdout.close()
        assert self.process.wait(30) == -signal.SIGKILL


def check(path: Path, embedder: str = "a") -> None:
    """The file is whole; a new process makes its index complete and finds what is there."""
    assert_agreement(path)

    async def finish() -> None:
        async with open_file(path, HashEmbedder(embedder)) as bench:
            bench.clock.advance(3600)  # the lease of the one that died is over
            assert (await bench.index()).left == 0
            for user in ("ann", "bob"):
                found = await bench.search("word1 word2 word3", user, limit=50)
                assert found.degraded == ()
                assert all(hit.item.user_id == user for hit in found)

    asyncio.run(finish())
    assert_agreement(path, indexed=True)


@pytest.mark.scaled
@pytest.mark.timeout(1800)
def test_killed_at_random_moments(path: Path) -> None:
    chance = random.Random(SEED)
    with evidence("memory-kills") as figures:
        steps = 0
        for number in range(scaled(KILLS)):
            embedder = chance.choice("ab")
            writers = [
                Writer(path, f"{SEED}-{number}-{each}", embedder) for each in range(chance.randint(1, 2))
            ]
            steps += sum(writer.steps(chance.randint(0, STEPS)) for writer in writers)
            for writer in writers:
                writer.kill()
            assert_agreement(path)
            if chance.random() < 0.2:
                check(path, embedder)
        check(path)
        figures |= {"kills": scaled(KILLS), "steps": steps}


@pytest.mark.parametrize("point", ["inside_change", "inside_index"])
def test_killed_at_a_named_step(path: Path, point: str) -> None:
    writer = Writer(path, 1, REVERIE_FAILPOINT=point)
    writer.steps(1000)
    writer.process.stdout.close()
    assert writer.process.wait(30) == -signal.SIGKILL
    check(path)
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT count(*) FROM memory_items").get >= len(OLD_TEXTS)
