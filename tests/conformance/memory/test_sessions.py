"""Sessions and the keys of projects, on every memory store."""

from __future__ import annotations

import pytest

from reverie import Remember
from reverie.effect import PutSession
from reverie.errors import InvalidSelectionError
from reverie.memory.sessions import SessionNote, SessionQuery


def note(at: int = 1000, session: str = "s", **fields) -> SessionNote:
    given = {"user_id": "ann", "session_id": session, "mem_cube_id": "app", "at": at}
    return SessionNote(**given | fields)


async def status(bench, session: str = "s") -> str | None:
    found = await bench.store.session("ann", session)
    return None if found is None else found.status


async def test_a_session_is_created_and_active_from_the_first_prompt_on(bench) -> None:
    await bench.store.note_sessions([note(1000, agent="codex")])
    assert await status(bench) == "created"
    await bench.store.note_sessions([note(2000, prompt="fix the build"), note(3000, prompt="and the tests")])
    session = await bench.store.session("ann", "s")
    assert (session.status, session.title, session.prompts) == ("active", "fix the build", 2)
    assert (session.agent, session.created_at, session.updated_at) == ("codex", 1000, 3000)
    assert await bench.store.session("bob", "s") is None


async def test_a_note_that_is_repeated_changes_nothing(bench) -> None:
    notes = [note(1000), note(2000, prompt="go", items={"app/add": "i"}), note(3000)]
    await bench.store.note_sessions(notes)
    once = await bench.store.session("ann", "s")
    await bench.store.note_sessions(notes)
    assert await bench.store.session("ann", "s") == once
    assert once.last_items == {"app/add": "i"}


async def test_the_end_is_written_once_its_message_is_settled(bench) -> None:
    await bench.store.note_sessions([note(1000, prompt="go"), note(2000, is_end=True)])
    assert await status(bench) == "active"
    assert (await bench.store.session("ann", "s")).ended_at == 2000
    await bench.apply(PutSession(session_id="s", status="completed", at=2000), cube="app")
    session = await bench.store.session("ann", "s")
    assert (session.status, session.completed_at) == ("completed", bench.clock.now())


async def test_a_later_hook_makes_a_session_active_again(bench) -> None:
    await bench.store.note_sessions([note(1000, prompt="go"), note(2000, is_end=True)])
    await bench.apply(PutSession(session_id="s", status="completed", at=2000), cube="app")
    await bench.store.note_sessions([note(1500)])  # an earlier one that comes late changes nothing
    assert await status(bench) == "completed"
    await bench.store.note_sessions([note(2500)])
    session = await bench.store.session("ann", "s")
    assert (session.status, session.ended_at, session.completed_at) == ("active", None, None)


async def test_an_end_that_a_later_hook_has_overtaken_is_not_written(bench) -> None:
    await bench.store.note_sessions([note(1000, prompt="go"), note(2000, is_end=True), note(2500)])
    await bench.apply(PutSession(session_id="s", status="completed", at=2000), cube="app")
    assert await status(bench) == "active"


async def test_sessions_without_hooks_fail_and_only_those(bench) -> None:
    await bench.store.note_sessions(
        [
            note(1000, "old"),
            note(1000, "prompted", prompt="go"),
            note(1000, "ending", is_end=True),
            note(9000, "young"),
        ]
    )
    failed = await bench.store.time_out_sessions(5000, 10_000, 10)
    assert sorted(one.session_id for one in failed) == ["old", "prompted"]
    assert {one.status for one in failed} == {"failed"}
    assert await bench.store.time_out_sessions(5000, 10_000, 10) == []
    assert [one.session_id for one in await bench.store.slow_ends(5000, 10)] == ["ending"]
    await bench.store.note_sessions([note(11_000, "old")])
    assert (await status(bench, "old"), await status(bench, "young")) == ("active", "created")


async def test_a_begin_by_message_alone_makes_a_session(bench) -> None:
    await bench.apply(PutSession(session_id="s", status="created", at=5, agent="own"), cube="app")
    session = await bench.store.session("ann", "s")
    assert (session.status, session.mem_cube_id, session.agent) == ("created", "app", "own")


async def test_sessions_are_listed_in_pages_the_latest_first(bench) -> None:
    await bench.store.note_sessions([note(1000 * n, f"s{n}") for n in range(5)])
    await bench.store.note_sessions([note(9000, "other", mem_cube_id="other", prompt="x")])
    query = SessionQuery(user_id="ann", mem_cube_id="app", limit=2)
    seen, after = [], None
    while True:
        page = await bench.store.sessions(
            SessionQuery(user_id="ann", mem_cube_id="app", after=after, limit=2)
        )
        seen += [one.session_id for one in page.sessions]
        if (after := page.next) is None:
            break
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    active = await bench.store.sessions(SessionQuery(user_id="ann", status="active"))
    assert [one.session_id for one in active.sessions] == ["other"]
    assert (await bench.store.sessions(SessionQuery(user_id="bob"))).sessions == []
    with pytest.raises(InvalidSelectionError):
        await bench.store.sessions(SessionQuery(user_id="ann", after="what", limit=query.limit))


async def test_the_items_of_a_session_come_in_order(bench) -> None:
    for number in range(3):
        await bench.apply(Remember(memory_id=f"m{number}", text=f"text {number}", session_id="s"))
    await bench.apply(Remember(memory_id="other", text="other", session_id="t"))
    assert [item.id for item in await bench.store.session_items("ann", "s", 2)] == ["m1", "m2"]
    assert await bench.store.session_items("bob", "s", 2) == []


async def test_a_session_can_be_forgotten(bench) -> None:
    await bench.store.note_sessions([note()])
    assert not await bench.store.forget_session("bob", "s")
    assert await bench.store.forget_session("ann", "s")
    assert not await bench.store.forget_session("ann", "s")
    assert await status(bench) is None


async def test_keys_that_mean_one_project_share_a_cube(bench) -> None:
    store = bench.store
    cube = await store.project_cube("ann", ["remote:host/app", "folder:/a/app"], "app")
    assert cube.startswith("app-")
    assert await store.project_cube("ann", ["remote:host/app", "folder:/b/app"], "app") == cube  # a clone
    assert await store.project_cube("ann", ["folder:/b/app"], "app") == cube
    assert await store.project_cube("ann", ["reflog:1", "folder:/c/app"], "app") != cube
    assert await store.known_project("ann", ["folder:/x", "folder:/a/app"]) == cube
    assert await store.known_project("ann", ["folder:/x"]) is None
    assert await store.known_project("bob", ["folder:/a/app"]) is None
    assert await store.project_keys("ann", cube) == ["folder:/a/app", "folder:/b/app", "remote:host/app"]


async def test_a_repository_in_the_folder_of_another_one_is_a_project_of_its_own(bench) -> None:
    store = bench.store
    folder = ["common:/app/.git", "folder:/app"]
    plain = await store.project_cube("ann", folder, "app")
    assert await store.project_cube("ann", ["remote:one", "reflog:1", *folder], "app") == plain
    assert await store.project_cube("ann", ["remote:renamed", "reflog:1", *folder], "app") == plain
    assert await store.known_project("ann", ["remote:two", "reflog:2", *folder]) is None
    other = await store.project_cube("ann", ["remote:two", "reflog:2", *folder], "app")
    assert other != plain
    assert await store.known_project("ann", ["remote:two", *folder]) == other


async def test_the_strongest_key_decides(bench) -> None:
    one = await bench.store.project_cube("ann", ["remote:one"], "app")
    two = await bench.store.project_cube("ann", ["remote:two", "folder:/app"], "app")
    assert one != two
    assert await bench.store.project_cube("ann", ["remote:one", "folder:/app"], "app") == one
    assert await bench.store.project_cube("ann", ["folder:/app"], "app") == two


@pytest.mark.parametrize("name", ["_hidden", "…", "", "a/b c", "x" * 300])
async def test_every_name_makes_a_cube_that_may_be_used(bench, name: str) -> None:
    cube = await bench.store.project_cube("ann", [f"folder:/{name}"], name)
    assert cube[0] not in "_-."
    assert len(cube) < 60


async def test_tokens_of_an_hour_are_never_more_than_its_limit(bench) -> None:
    store = bench.store
    assert await store.set_aside("ann", "observation", "2026-05-07T13", 60, 100)
    assert not await store.set_aside("ann", "observation", "2026-05-07T13", 60, 100)
    assert await store.set_aside("ann", "observation", "2026-05-07T13", -30, 100)
    assert await store.set_aside("ann", "observation", "2026-05-07T13", 60, 100)
    assert await store.set_aside("bob", "observation", "2026-05-07T13", 60, 100)
    assert await store.set_aside("ann", "observation", "2026-05-07T14", 100, 100)
    assert not await store.set_aside("ann", "observation", "2026-05-07T14", 1, 100)
    assert not await store.set_aside("ann", "observation", "2026-05-07T15", 101, 100)
