"""A process that can be killed at any moment: fills buffers and makes facts of their rows, without an end."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress

from reverie import Delete, Message, Remember
from reverie.base.clock import SystemClock
from reverie.effect import Buffer, BufferDone
from reverie.errors import VersionConflictError
from reverie.memory.buffers import BufferClaim, BufferKey
from reverie.memory.interface import Application
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.message import new_item_id
from reverie.storage.sqlite import Database

KEYS = [BufferKey("ann", "ann"), BufferKey("ann", "office"), BufferKey("bob", "bob")]


async def main(path: str, seed: str, only: str) -> None:
    """Write until somebody kills this process; each step is announced by a line. `only`: the only step."""
    chance = random.Random(seed)
    store = SqliteMemoryStore(Database(path, "normal"), SystemClock())
    await store.open()
    print("open", flush=True)
    while True:
        key = chance.choice(KEYS)
        step = chance.choice([insert, read, read, read, give_back, delete])
        step = read if only == "read" else step
        await step(store, key, chance)
        print(step.__name__, flush=True)


async def apply(store: SqliteMemoryStore, key: BufferKey, effects: list, chance: random.Random) -> None:
    """Apply effects as those of a message, or as a person's change."""
    if chance.random() < 0.5:
        with suppress(VersionConflictError):
            await store.change(key.tenant, effects)
    else:
        message = Message(user_id=key.user_id, mem_cube_id=key.project_id, label="work")
        await store.apply([Application(message=message, effects=tuple(effects))])


async def insert(store: SqliteMemoryStore, key: BufferKey, chance: random.Random) -> None:
    effects = []
    for _ in range(chance.randint(1, 5)):
        name = new_item_id()
        effects += [
            Remember(memory_id=name, text="a turn", kind="turn"),
            Buffer(buffer_id=name, blob_id=name, content="a turn", tokens=chance.randint(1, 50)),
        ]
    await apply(store, key, effects, chance)


async def claim(store: SqliteMemoryStore, key: BufferKey, chance: random.Random) -> BufferClaim:
    """Take rows; the lease is over before the end of some runs."""
    return await store.claim_buffer(
        key, chance.choice("abc"), lease_ms=chance.choice([0, 1, 20, 60_000]), max_tokens=100
    )


async def read(store: SqliteMemoryStore, key: BufferKey, chance: random.Random) -> None:
    taken = await claim(store, key, chance)
    if taken.rows:
        await asyncio.sleep(chance.choice([0, 0, 0.005]))
        ids = [row.buffer_id for row in taken.rows]
        fact = Remember(memory_id=new_item_id(), text="a fact", info={"rows": ids})
        await apply(store, key, [fact, BufferDone(token=taken.token, buffer_ids=tuple(ids))], chance)


async def give_back(store: SqliteMemoryStore, key: BufferKey, chance: random.Random) -> None:
    taken = await claim(store, key, chance)
    await store.release_buffer(taken, failed=chance.choice([None, "no"]), most=3)
    await store.retry_failed_rows(key)


async def delete(store: SqliteMemoryStore, key: BufferKey, chance: random.Random) -> None:
    rows = await store.buffer_rows(key)
    if rows:
        name = chance.choice(rows).blob_id
        await apply(store, key, [Delete(memory_id=name, version=1)], chance)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
