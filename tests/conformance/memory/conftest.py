"""Every memory store, opened empty, with its clock in the test's hand.

A new store joins by one entry in STORES; it is done when the whole folder passes.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reverie.models.wordllama import WordLlamaEmbedder
from support.agreement import disagreements
from support.hashing import HashEmbedder
from support.memory_bench import Bench, open_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from reverie.models.interface import Embedder
    from reverie.testing import ManualClock

    NewBench = Callable[..., Awaitable[Bench]]

WORDLLAMA = WordLlamaEmbedder()


@asynccontextmanager
async def sqlite_in_memory(_: pytest.FixtureRequest, path: str = ":memory:", **given: Any):
    async with open_file(path, **given) as bench:
        yield bench
        assert await bench.store._database.read(disagreements) == []


def sqlite_file(request: pytest.FixtureRequest, **given: Any):
    return sqlite_in_memory(request, str(request.getfixturevalue("tmp_path") / "memory.db"), **given)


STORES = {"sqlite file": sqlite_file, "sqlite in memory": sqlite_in_memory}


@pytest.fixture(params=STORES)
async def new_bench(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[NewBench]:
    """Opens a store with settings, and with an embedder or without."""
    async with AsyncExitStack() as stack:

        async def new(embedder: Embedder | None = None, **settings: Any) -> Bench:
            opened = STORES[request.param](request, embedder=embedder, clock=clock, **settings)
            return await stack.enter_async_context(opened)

        yield new


@pytest.fixture
async def bench(new_bench: NewBench) -> Bench:
    """A store without an embedder."""
    return await new_bench()


@pytest.fixture(params=["no embedder", "wordllama"])
async def both(request: pytest.FixtureRequest, new_bench: NewBench) -> Bench:
    """A store without an embedder, and one with the default embedder."""
    return await new_bench(WORDLLAMA if request.param == "wordllama" else None)


@pytest.fixture
async def embedding(new_bench: NewBench) -> Bench:
    """A store with an embedder of the tests, which can fail."""
    return await new_bench(HashEmbedder())
