"""Another embedding model takes over many memories while searches go on: none fails, and none is empty."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.hashing import HashEmbedder
from support.memory_bench import open_file
from support.scale import SEED, evidence, scaled

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock

ITEMS, USERS = 100_000, 10


@pytest.mark.scaled
@pytest.mark.timeout(1800)
async def test_no_search_fails_or_is_empty_while_the_embedder_changes(
    tmp_path: Path, clock: ManualClock
) -> None:
    chance = random.Random(SEED)
    path, each = tmp_path / "memory.db", scaled(ITEMS) // USERS
    users = [f"user{number}" for number in range(USERS)]
    async with open_file(path, HashEmbedder("before"), clock) as bench:
        for user in users:
            await bench.add(
                user, **{f"{user}-{n}": f"note number{n} about topic{n % 7}" for n in range(each)}
            )
    seen: Counter[str] = Counter()
    with evidence("embedder-change") as figures:
        async with open_file(path, HashEmbedder("after", 128), clock, search_timeout_s=60) as bench:
            indexing = asyncio.create_task(bench.index())
            while not indexing.done():
                user, number = chance.choice(users), chance.randrange(each)
                found = await bench.search(f"number{number}", user)
                assert found[0].item.id == f"{user}-{number}"
                seen["degraded" if found.degraded else "whole"] += 1
            assert (await indexing).left == 0
            assert (await bench.search("number1", users[0])).degraded == ()
        assert seen["degraded"], "no search has met the change"
        figures |= {"items": each * USERS, "searches": dict(seen)}
