"""Deleted words and vectors leave the file, also the parts of it that are no longer used."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING

import apsw
import pytest

from reverie import Delete, Link, Remember, Revise, Supersede
from reverie.effect import Buffer, BufferDone, Source
from reverie.memory.buffers import BufferKey
from support.hashing import HashEmbedder
from support.memory_bench import Bench, open_file
from support.old_file import build_old_file

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock

OTHERS = 2000
SECRETS = 40
VECTORS = "SELECT c.vector FROM memory_cards AS c JOIN memory_items AS i ON i.seq = c.seq WHERE i.id LIKE ?"


def secret(number: int) -> str:
    """A word that is in no other text, and whose stem is not the word."""
    return f"zyx{number:03}qwvings"


def traces(path: Path, *parts: bytes) -> list[bytes]:
    """The parts that are still somewhere in the file."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(10_000)
        connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # opens the log
        in_log, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert in_log == copied >= 0
    raw = path.read_bytes()
    return [part for part in parts if part in raw]


async def fill(bench: Bench, chance: random.Random) -> None:
    """Write memories with secrets among others, in an order in which pages of the index are split."""
    words = [f"word{n}" for n in range(500)]
    names = [f"other{n}" for n in range(OTHERS)] + [f"secret{n}" for n in range(SECRETS)]
    chance.shuffle(names)
    for start in range(0, len(names), 100):
        effects = []
        for name in names[start : start + 100]:
            text = " ".join(chance.choices(words, k=12))
            if name.startswith("secret"):
                text += f" {secret(int(name[6:]))} 密{name[6:]}码"
            sources = (Source(item_id="i", name=secret(int(name[6:]))),) if name.startswith("secret") else ()
            effects.append(Remember(memory_id=name, text=text, session_id="s", title=text, sources=sources))
        assert await bench.apply(*effects) == "applied"


def stored_vectors(path: Path) -> list[bytes]:
    with closing(apsw.Connection(str(path))) as connection:
        return [vector for (vector,) in connection.execute(VECTORS, ("secret%",))]


@pytest.mark.parametrize("seed", range(2))
async def test_deleted_memories_leave_no_trace(path: Path, clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    async with open_file(path, HashEmbedder(), clock) as bench:
        await fill(bench, chance)
        vectors = stored_vectors(path)
        assert len(vectors) == SECRETS
        stems = [secret(number)[:10].encode() for number in range(SECRETS)]
        written = traces(path, *stems, *vectors)  # not those on two pages
        assert len(written) > SECRETS
        for number in range(0, SECRETS, 2):  # what was revised, or merged, or superseded, is in history too
            name = f"secret{number}"
            merged = f"merged{number}"
            await bench.apply(
                Revise(memory_id=name, version=1, text=f"{secret(number)} anew"),
                Remember(memory_id=merged, text=f"merged {secret(number)}"),
                Link(source_id=merged, relation="derived_from", target_id=name),
                Supersede(memory_id=name, version=2, successor=merged),
            )
        await bench.index()
        for number in range(SECRETS):
            name = f"secret{number}"
            item = await bench.store.get("ann", name)
            assert await bench.apply(Delete(memory_id=name, version=item.version)) == "applied"
    assert traces(path, *stems, *vectors) == []


async def test_the_old_words_of_a_revised_memory_leave_the_index(path: Path, clock: ManualClock) -> None:
    async with open_file(path, HashEmbedder(), clock) as bench:
        await fill(bench, random.Random(0))
        (vector,) = stored_vectors(path)[:1]
        for number in range(SECRETS):
            await bench.apply(
                Revise(memory_id=f"secret{number}", version=1, text="harmless", title="harmless", sources=())
            )
        await bench.index()
        assert await bench.find(secret(1), kinds=("fact",), limit=1) != ["secret1"]
    with closing(apsw.Connection(str(path))) as connection:
        for table, column in (("memory_postings", "word"), ("memory_cards", "words")):
            found = f"SELECT count(*) FROM {table} WHERE {column} LIKE '%zyx0%'"
            assert connection.execute(found).get == 0
        assert connection.execute("SELECT count(*) FROM memory_names").get == 0
    assert traces(path, vector) == []


async def test_the_name_of_a_speaker_leaves_the_file_with_the_last_turn(
    path: Path, clock: ManualClock
) -> None:
    async with open_file(path, HashEmbedder(), clock) as bench:
        names = {"a": "Will", "b": "Will", "c": secret(1)}
        for memory_id, name in names.items():
            await bench.add(**{memory_id: {"text": "tea", "sources": (Source(item_id="i", name=name),)}})
        for memory_id, left in (("a", ["Will", secret(1)]), ("c", ["Will"]), ("b", [])):
            await bench.apply(Delete(memory_id=memory_id, version=1))
            with closing(apsw.Connection(str(path))) as connection:
                found = [name for (name,) in connection.execute("SELECT name FROM memory_names")]
            assert sorted(found) == sorted(left)


async def test_memories_of_an_old_file_that_are_deleted_leave_no_trace(
    path: Path, clock: ManualClock
) -> None:
    """What an old release itself left in unused parts of the file is not touched."""
    texts = {f"m{n}": f"word{n % 50} {secret(n) if n % 10 == 0 else 'else'}" for n in range(400)}
    build_old_file(path, texts, secure=True)
    async with open_file(path, None, clock) as bench:
        for number in range(0, 400, 10):
            assert await bench.apply(Delete(memory_id=f"m{number}", version=1)) == "applied"
        await bench.index()
    assert traces(path, *[secret(number)[:10].encode() for number in range(0, 400, 10)]) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.mark.parametrize("status", ["idle", "processing", "failed", "done"])
async def test_a_buffered_text_leaves_the_file(tmp_path: Path, clock: ManualClock, status: str) -> None:
    path, key = tmp_path / "memory.db", BufferKey("ann", "ann")
    async with open_file(path, clock=clock) as bench:
        await bench.apply(
            Remember(memory_id="a", text="mere words"),
            Buffer(buffer_id="row", blob_id="a", content=f"{secret(1)} " * 2000, tokens=1),
        )
        if status != "idle":
            claim = await bench.store.claim_buffer(key, "run", lease_ms=1000, max_tokens=1)
            if status == "failed":
                await bench.store.release_buffer(claim, failed=f"{secret(2)} is too long", most=1)
            elif status == "done":
                await bench.apply(BufferDone(token=claim.token, buffer_ids=("row",)))
        (row,) = await bench.store.buffer_rows(key)
        assert row.status == status
        if status != "done":
            await bench.apply(Delete(memory_id="a", version=1))
        assert traces(path, secret(1).encode(), secret(2).encode()) == []
