"""What a step of the buffer zone costs depends on its buffer alone, and never on the rows that are done."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie.effect import Buffer, BufferDone
from reverie.memory.buffers import BufferKey
from reverie.memory.sqlite.buffers import SQL
from reverie.memory.sqlite.rows import load_statements
from support.memory_bench import open_file

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock

EFFECTS = load_statements("effects.sql")
BUFFER = r"user_id=\? AND project_id=\? AND blob_type=\?"
PLANS = {
    "last_place": r"SEARCH buffer_zone",
    "insert_rows": r"SEARCH t USING PRIMARY KEY \(user_id=\? AND id=\?\)",
    "not_held": r"INDEX sqlite_autoindex_buffer_zone_1 \(user_id=\? AND buffer_id=\?\)",
    "finish_rows": r"INDEX sqlite_autoindex_buffer_zone_1 \(user_id=\? AND buffer_id=\?\)",
    "states": rf"COVERING INDEX idx_buffer_zone_open \({BUFFER}\)",
    "taken": rf"COVERING INDEX idx_buffer_zone_open \({BUFFER}\)",
    "free_rows": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "leave_own_rows": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "give_up_lost_rows": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "take_rows": r"INDEX sqlite_autoindex_buffer_zone_1 \(user_id=\? AND buffer_id=\?\)",
    "release_rows": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "full_buffers": r"SCAN buffer_zone USING COVERING INDEX idx_buffer_zone_open",
    "failed_buffers": r"SCAN buffer_zone USING COVERING INDEX idx_buffer_zone_open",
    "rows": r"INDEX sqlite_autoindex_buffer_zone_1 \(user_id=\?\)",
    "open_rows": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "retry_failed": rf"INDEX idx_buffer_zone_open \({BUFFER}\)",
    "prune": r"idx_buffer_zone_done \(updated_at<\?\)",
}
"""Statement → the step of its plan that reads the buffer zone."""


@pytest.fixture
async def file(tmp_path: Path, clock: ManualClock):
    path = tmp_path / "memory.db"
    async with open_file(path, clock=clock) as bench:
        for n in range(200):
            user = f"user{n % 20}"
            row = Buffer(buffer_id=str(n), blob_id=str(n), content="text", tokens=1)
            await bench.apply(row, user_id=user)
            if n % 4:
                claim = await bench.store.claim_buffer(
                    BufferKey(user, user), "run", lease_ms=1, max_tokens=1000
                )
                ids = tuple(row.buffer_id for row in claim.rows)
                await bench.apply(BufferDone(token=claim.token, buffer_ids=ids), user_id=user)
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(30_000)
        yield connection


@pytest.mark.parametrize("analyzed", [False, True])
async def test_every_statement_uses_the_index_that_is_made_for_it(
    file: apsw.Connection, analyzed: bool
) -> None:
    if analyzed:
        file.execute("ANALYZE")
    statements = dict(SQL)
    statements["insert_rows"] += f"({', '.join(['NULL'] * 10)})" + statements.pop("insert_rows_end")
    assert set(PLANS) == set(statements)
    for name, statement in statements.items():
        bindings = dict.fromkeys(re.findall(r":([a-z_]+)", statement))
        steps = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)]
        assert any(re.search(PLANS[name], step) for step in steps), (name, steps)
        scans = [step for step in steps if step.startswith("SCAN buffer_zone")]
        assert len(scans) == (name in {"full_buffers", "failed_buffers"}), (name, steps)
        if name in {"free_rows", "open_rows", "prune"}:
            assert not any("ORDER BY" in step for step in steps), (name, steps)


async def test_deleting_a_memory_looks_its_rows_up(file: apsw.Connection) -> None:
    plan = file.execute("EXPLAIN QUERY PLAN " + EFFECTS["delete_buffered"], {"user_id": "a", "id": "b"})
    steps = " ".join(row[3] for row in plan)
    assert "sqlite_autoindex_buffer_zone_1 (user_id=? AND buffer_id=?)" in steps
    assert "idx_buffer_zone_blob (user_id=? AND blob_id=?)" in steps
