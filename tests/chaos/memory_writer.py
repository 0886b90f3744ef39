"""A process that can be killed at any moment: changes memories, indexes them and searches, without an end."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress

from reverie import Delete, Link, Message, Remember, Revise, Supersede, Touch
from reverie.base.clock import SystemClock
from reverie.effect import Move
from reverie.errors import VersionConflictError
from reverie.memory.interface import Application
from reverie.memory.query import SearchQuery
from reverie.memory.settings import MemorySettings
from reverie.memory.sqlite import SqliteMemoryStore
from reverie.models.interface import Models
from reverie.storage.sqlite import Database
from support.hashing import HashEmbedder

NAMES = [f"m{number}" for number in range(60)]
WORDS = [f"word{number}" for number in range(30)]


async def main(path: str, seed: str, embedder: str) -> None:
    """Write until somebody kills this process; each step is announced by a line."""
    chance = random.Random(seed)
    settings = MemorySettings(working_limit=5, long_term_limit=30)
    models = Models(embedder=HashEmbedder(embedder))
    store = SqliteMemoryStore(Database(path, "normal"), SystemClock(), settings, models)
    await store.open()
    print("open", flush=True)
    while True:
        user = chance.choice(["ann", "bob"])
        step = chance.choice([apply, apply, change, index, search, rebuild])
        await step(store, user, chance)
        print(step.__name__, flush=True)


async def effects_of(store: SqliteMemoryStore, user: str, chance: random.Random) -> list:
    chosen = []
    for _ in range(chance.randint(1, 6)):
        name, other = chance.sample(NAMES, 2)
        text = " ".join(chance.choices(WORDS, k=5))
        tier = chance.choice(["working", "long_term", "archive"])
        item = await store.get(user, name)
        if item is None:
            chosen.append(Remember(memory_id=f"{name}", text=text, tier=tier, session_id="s"))
            continue
        chosen.append(
            chance.choice(
                [
                    Revise(memory_id=name, version=item.version, text=text),
                    Move(memory_id=name, version=item.version, tier=tier),
                    Supersede(memory_id=name, version=item.version, successor=other),
                    Link(source_id=name, relation="derived_from", target_id=other),
                    Touch(memory_id=name),
                    *([Delete(memory_id=name, version=item.version)] if chance.random() < 0.1 else []),
                ]
            )
        )
    return chosen


async def apply(store: SqliteMemoryStore, user: str, chance: random.Random) -> None:
    effects = tuple(await effects_of(store, user, chance))
    prepared = await store.prepare(effects) if chance.random() < 0.5 else None
    message = Message(user_id=user, label="work")
    await store.apply([Application(message=message, effects=effects, prepared=prepared)])


async def change(store: SqliteMemoryStore, user: str, chance: random.Random) -> None:
    with suppress(VersionConflictError, ValueError):
        await store.change((user, user), await effects_of(store, user, chance))


async def index(store: SqliteMemoryStore, _: str, chance: random.Random) -> None:
    await store.index_next(chance.randint(1, 20))


async def search(store: SqliteMemoryStore, user: str, chance: random.Random) -> None:
    await store.search(SearchQuery(text=" ".join(chance.choices(WORDS, k=2)), user_id=user))


async def rebuild(store: SqliteMemoryStore, _: str, chance: random.Random) -> None:
    if chance.random() < 0.1:
        await store.rebuild()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
