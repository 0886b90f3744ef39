"""The authorization matrix: every route, every kind of caller, own and foreign data.

Each caller that is bound to some data asks in two worlds: one in which there is only its own data, and one
that also has data of others. Every answer must be the same in both. So no text, count, status, error or
cursor can tell a caller anything about data of others, not even whether there is some.
"""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reverie import AsyncScheduler, Bury, Remember
from reverie.api.routes import ROUTES
from reverie.memory.extraction import Extraction
from reverie.memory.sessions import SessionNote
from reverie.models.usage import Spent
from reverie.principal import Role
from reverie.server import create_app
from reverie.settings import load_settings
from reverie.testing import ManualClock
from support.matrix import ROWS, SECRET, Ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reverie.api.routing import Route

VOLATILE = re.compile(
    r'"(waited|elapsed)_seconds":[0-9.e-]+|"(timestamp|worker|instance_id)":"[^"]*"|s1_[\w-]{107}'
    r'|ping - [^\n]*|"(task|item)_id":"[0-9a-f-]{36}(?=[@"])|"scheduled":(true|false)'
)
"""Parts of answers that differ each time: times of the real clock, names of workers, cursors, new ids.

So does whether a push has scheduled a run: the activity of earlier requests is noted after their answers.
"""


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    role: Role | None
    users: tuple[str, ...] | None = None
    cubes: tuple[str, ...] | None = None
    key: str = ""
    """What is sent as a key, if none is made."""

    @property
    def bound(self) -> bool:
        return self.role is None or self.users is not None or self.cubes is not None

    def __str__(self) -> str:
        if self.role is None:
            return "wrong key" if self.key else "no key"
        reach = "one cube" if self.cubes else "one user" if self.users else "all"
        return f"{self.role.title}, {reach}"


ANN = ("ann",)
CALLERS = (
    Caller(None),
    Caller(None, key="rv_000000000000_" + "a" * 43),
    *(Caller(role) for role in Role if role is not Role.USER),
    *(Caller(role, ANN) for role in Role if role is not Role.ADMIN),
    *(Caller(role, ANN, ANN) for role in Role if role is not Role.ADMIN),
)
TARGETS = {
    "own cube": ("ann", "ann"),
    "own user": ("ann", None),
    "other cube": ("ann", "vault"),
    "other user": ("bob", "bob"),
    "other user without a cube": ("bob", None),
}


def test_every_route_has_a_row() -> None:
    assert set(ROWS) == {f"{route.method} {route.path}" for route in ROUTES}, "see tests/support/matrix.py"


@pytest.mark.parametrize("caller", CALLERS, ids=str)
async def test_a_caller_reaches_what_its_key_allows_and_learns_nothing_else(caller: Caller, caplog) -> None:
    caplog.set_level("DEBUG")
    own = [("ann", "ann")] if caller.cubes else [("ann", "ann"), ("ann", "vault")]
    others = [("bob", "bob"), *([("ann", "vault")] if caller.cubes else [])]
    async with AsyncExitStack() as worlds:
        full = await worlds.enter_async_context(world(caller, own, others))
        empty = await worlds.enter_async_context(world(caller, own, [])) if caller.bound else None
        for route in sorted(ROUTES, key=changes):
            for ask in ROWS[f"{route.method} {route.path}"]:
                sent: list[Ask] = []
                for target, (user_id, cube) in TARGETS.items():
                    where = f"{route.method} {route.path} by {caller}: {target}, {ask}"
                    filled = ask.filled(user_id, cube)
                    if filled in sent:
                        continue
                    sent.append(filled)
                    status, body = await send(full, route, filled)
                    assert status in expected(route, ask, caller, user_id, cube), f"{where}: {status} {body}"
                    if empty is not None:
                        assert SECRET not in body, where
                        assert (status, body) == await send(empty, route, filled), where
        tokens = [client.headers.get("authorization", "rv_") for client in (full, empty) if client]
    assert SECRET not in caplog.text
    assert "I keep bees" not in caplog.text
    assert all(token not in caplog.text for token in tokens if len(token) > 20)


def changes(route: Route) -> bool:
    """Whether a route may change what others find; the routes that only read come first."""
    return route.method != "GET"


def expected(route: Route, ask: Ask, caller: Caller, user_id: str, cube: str | None) -> tuple[int, ...]:
    """The statuses that the answer may have."""
    if caller.role is None and (caller.key or route.reach != "open"):
        return (401,)
    if route.reach == "open":
        return ask.statuses
    assert caller.role is not None
    if caller.role < route.role or (route.reach == "all" and caller.bound):
        return (403,)
    if caller.users is not None and ask.names_user and user_id not in caller.users:
        return (403,)
    if caller.cubes is not None:
        names_cube = ask.names_cube and cube is not None
        if names_cube and cube not in caller.cubes:
            return (403,)
        if ask.whole and not names_cube:
            return (403,)
    return ask.own if (user_id, cube) == ("ann", "ann") else ask.statuses


async def send(client: httpx.AsyncClient, route: Route, ask: Ask) -> tuple[int, str]:
    response = await client.request(
        route.method, route.path.format(**ask.path), params=ask.query, json=ask.body
    )
    return response.status_code, VOLATILE.sub("", response.text)


@asynccontextmanager
async def world(
    caller: Caller, own: list[tuple[str, str]], others: list[tuple[str, str]]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with the data of these tenants."""
    settings = load_settings(queue={"url": "memory://"}, memory={"embedding": "none"})
    scheduler = AsyncScheduler(settings=settings, clock=ManualClock(start_ms=1_800_000_000_000))

    @scheduler.handler("export")
    def export(message: Any) -> Bury:
        return Bury(f"cannot export {message.content}")

    await scheduler.open()
    for tenants, word in ((others, SECRET), (own, "honey")):
        for user_id, cube in tenants:
            await fill(scheduler, user_id, cube, word)
    headers = {"authorization": f"Bearer {caller.key}"} if caller.key else {}
    boss = await scheduler.keys.create("boss", "admin")
    if caller.role is not None:
        made = await scheduler.keys.create("k", caller.role.title, users=caller.users, cubes=caller.cubes)
        headers = {"authorization": f"Bearer {made.token}"}
    assert boss.token
    app = create_app(scheduler, run_worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client
    await scheduler.stop()


async def fill(scheduler: AsyncScheduler, user_id: str, cube: str, word: str) -> None:
    """Give a tenant memories, sessions, a dead letter, work that waits, a timed task, costs and a setting."""
    ids = {"user_id": user_id, "mem_cube_id": cube}
    for name, session_id in (("own", None), ("second", "talk")):
        text = f"I keep bees, {name} {word}"
        await scheduler.memory.add(text, **ids, item_id=f"{name}-{cube}", session_id=session_id)
    await remember_sessions(scheduler, user_id, cube, word)
    await scheduler.submit("export", **ids, item_id=f"dead-{cube}", content=word, task_id="everything")
    await scheduler.runtime.drain()
    await scheduler.submit("import", **ids, item_id=f"waits-{cube}", content=word, task_id="everything")
    await scheduler.memory.update(f"own-{cube}.0", user_id=user_id, text=f"I keep bees, own {word}")
    if cube == user_id:  # a timed task belongs to the user's own cube
        await scheduler.triggers.run("memory_compression", user_id=user_id)
    spent = Spent(
        key=f"{user_id} {cube}",
        day="2027-01-15",
        **ids,
        label="mem_read",
        model="m",
        input_tokens=7,
        output_tokens=0,
    )
    await scheduler.runtime.gateway.ledger.write_spent([spent])
    await scheduler.extraction.set(Extraction(mission=word), **ids)


async def remember_sessions(scheduler: AsyncScheduler, user_id: str, cube: str, word: str) -> None:
    """Give a tenant two sessions of an agent, and a memory about a file, of the session `talk`."""
    at = scheduler.runtime.clock.now()
    tenant = {"user_id": user_id, "mem_cube_id": cube, "at": at, "prompt": f"keep {word}"}
    notes = [SessionNote(session_id=f"{name}-{cube}", **tenant) for name in ("work", "old")]
    await scheduler.runtime.store.note_sessions(notes)
    seen = Remember(
        memory_id=f"third-{cube}.0",
        text=f"Read honey.py: {word}",
        kind="observation",
        session_id="talk",
        tags=("file:honey.py",),
    )
    await scheduler.runtime.store.change((user_id, cube), [seen])
