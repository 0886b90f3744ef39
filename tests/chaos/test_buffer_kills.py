"""Processes that use buffers are killed at random and at named steps: no row is lost or read twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from chaos.buffer_writer import KEYS, insert
from support.agreement import assert_agreement
from support.memory_bench import open_file
from support.places import PATHS
from support.scale import SEED, evidence, scaled

KILLS = 120
STEPS = 80
"""How many steps a process does at most before it is killed."""
LOST = """
SELECT count(*) FROM memory_items AS i
WHERE i.kind = 'turn' AND NOT EXISTS (
  SELECT 1 FROM buffer_zone AS b WHERE b.user_id = i.user_id AND b.blob_id = i.id
)
"""
ORPHANS = """
SELECT count(*) FROM buffer_zone AS b
WHERE NOT EXISTS (SELECT 1 FROM memory_items AS i WHERE b.user_id = i.user_id AND b.blob_id = i.id)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


class Writer:
    """A process that works on buffers until it is killed."""

    def __init__(self, path: Path, seed: object, only: str = "", **environment: str) -> None:
        program = Path(__file__).with_name("buffer_writer.py")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
        self.process = subprocess.Popen(
            [sys.executable, program, path, str(seed), only],
            env={**kept, **PATHS, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def steps(self, count: int) -> int:
        """Wait for this many steps; the answer is how many there were before the process ended."""
        return sum(1 for _ in zip(range(count), self.process.stdout, strict=False))

    def kill(self) -> None:
        self.process.kill()
        self.process.stdout.close()
        assert self.process.wait(30) == -signal.SIGKILL


def check(path: Path) -> Counter[str]:
    """Each turn has its row, and each row is done if and only if one fact was made of it."""
    assert_agreement(path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(10_000)
        assert connection.execute(LOST).get == 0
        assert connection.execute(ORPHANS).get == 0
        rows = dict(connection.execute("SELECT buffer_id, status FROM buffer_zone"))
        infos = connection.execute("SELECT info FROM memory_items WHERE kind = 'fact'").fetchall()
    facts = [json.loads(info)["rows"] for (info,) in infos]
    read = Counter(name for names in facts for name in names)
    assert set(read.values()) <= {1}
    assert {name for name, status in rows.items() if status == "done"} == read.keys() & rows.keys()
    return Counter(rows.values())


def read_the_rest(path: Path) -> None:
    """A process that comes later can take every row that is left."""

    async def work() -> None:
        async with open_file(path) as bench:
            bench.clock.advance(10**9)  # all leases are over
            for key in KEYS:
                waiting = {row.buffer_id for row in await bench.store.buffer_rows(key, limit=100_000)}
                done = {row.buffer_id for row in await bench.store.buffer_rows(key, "done", 100_000)}
                await bench.store.retry_failed_rows(key)
                claim = await bench.store.claim_buffer(key, "last", lease_ms=1, max_tokens=10**9)
                assert {row.buffer_id for row in claim.rows} == waiting - done

    asyncio.run(work())


@pytest.mark.scaled
@pytest.mark.timeout(1800)
def test_killed_at_random_moments(path: Path) -> None:
    chance = random.Random(SEED)
    with evidence("buffer-kills") as figures:
        steps = 0
        for number in range(scaled(KILLS)):
            writers = [Writer(path, f"{SEED}-{number}-{each}") for each in range(chance.randint(1, 2))]
            steps += sum(writer.steps(chance.randint(1, STEPS)) for writer in writers)
            for writer in writers:
                writer.kill()
            rows = check(path)
        read_the_rest(path)
        figures |= {"kills": scaled(KILLS), "steps": steps, "rows": dict(rows)}


async def fill(path: Path) -> None:
    """Put many rows into each buffer."""
    async with open_file(path) as bench:
        for key in KEYS:
            for _ in range(30):
                await insert(bench.store, key, random.Random(1))


@pytest.mark.parametrize("point", ["inside_claim_buffer", "inside_change"])
def test_killed_while_rows_are_taken_or_marked_done(path: Path, point: str) -> None:
    asyncio.run(fill(path))
    for seed in range(3):
        before = check(path)
        writer = Writer(path, seed, only="read", REVERIE_FAILPOINT=point)
        writer.steps(1000)
        writer.process.stdout.close()
        assert writer.process.wait(30) == -signal.SIGKILL
        assert check(path).total() == before.total()
    read_the_rest(path)
