"""Governance: what a caller may not read looks everywhere as if it did not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import AsyncScheduler, Bury, Message
from reverie.access.governance import UNGOVERNED_LABELS, AllowAll
from reverie.effect import Link, Remember, Revise, Supersede
from reverie.errors import (
    AmbiguousIdError,
    BoundKeyError,
    ForeignDataError,
    InvalidSettingError,
    RoleError,
    UnknownMemoryError,
)
from reverie.principal import LOCAL_ADMIN, Principal, Role, current_principal
from reverie.server import create_app
from reverie.settings import load_settings
from support.documented import documented_client
from support.extractor import extract
from support.product import model_settings, serving
from support.scripted_model import scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from reverie.memory.item import MemoryItem

SECRET = "secret"


class ByTeam:
    """Lets only callers of a memory's team read it; the team is its tag."""

    def may_read(self, principal: Principal, item: MemoryItem) -> bool:
        return SECRET not in item.tags or principal.attributes.get("team") == SECRET


@pytest.fixture
async def scheduler(clock) -> AsyncIterator[AsyncScheduler]:
    settings = load_settings(
        queue={"url": "memory://"}, memory={"embedding": "none"}, governance=f"{__name__}:ByTeam"
    )
    scheduler = AsyncScheduler(settings=settings, clock=clock)
    await scheduler.open()
    await fill(scheduler)
    yield scheduler
    await scheduler.stop()


async def fill(scheduler: AsyncScheduler, *, with_hidden: bool = True) -> None:
    """Memories of a conversation, every second one hidden, with links, a successor and a preference."""
    hidden: list[Any] = []
    shown: list[Any] = []
    for number in range(10):
        is_hidden = bool(number % 2)
        fields = {"session_id": "talk", "learned_at": number + 1, "tags": (SECRET,) if is_hidden else ()}
        text = f"the bees of hive {number} {SECRET if is_hidden else ''}".strip()
        (hidden if is_hidden else shown).append(Remember(memory_id=f"m{number}", text=text, **fields))
    hidden += [
        Remember(memory_id="p1", text=f"prefers {SECRET} bees", kind="preference", tags=(SECRET,)),
        Link(source_id="m0", target_id="m1", relation="about"),
        Remember(memory_id="old", text="no bees"),
        Remember(memory_id="new", text=f"{SECRET} bees", tags=(SECRET,)),
        Supersede(memory_id="old", version=1, successor="new"),
    ]
    shown += [Remember(memory_id="p0", text="prefers quiet bees", kind="preference")]
    shown += [Link(source_id="m0", target_id="m2", relation="about")]
    await scheduler.runtime.store.change(("ann", "ann"), shown + (hidden if with_hidden else []))


def as_caller(**attributes: str) -> Principal:
    return Principal(key="k", role=Role.USER, users=frozenset({"ann"}), attributes=attributes)


async def test_a_hidden_memory_looks_like_a_missing_one(scheduler: AsyncScheduler) -> None:
    memory = scheduler.memory
    before = current_principal.set(as_caller())
    try:
        assert await memory.get("m1", user_id="ann") is None
        assert await memory.get("old", user_id="ann") is None  # what it leads to is hidden
        assert await memory.history("m1", user_id="ann") == []
        assert await memory.links("m1", user_id="ann") == []
        assert [link.item.id for link in await memory.links("m0", user_id="ann")] == ["m2"]
        for change in (memory.delete("m1", user_id="ann"), memory.update("m1", user_id="ann", text="x")):
            with pytest.raises(UnknownMemoryError):
                await change
        with pytest.raises(UnknownMemoryError):
            await memory.owner_of("m1")
    finally:
        current_principal.reset(before)
    current_principal.set(as_caller(team=SECRET))
    assert (await memory.get("m1", user_id="ann")).text == f"the bees of hive 1 {SECRET}"
    assert [link.item.id for link in await memory.links("m0", user_id="ann")] == ["m1", "m2"]
    current_principal.set(LOCAL_ADMIN)  # a local caller is asked about, too
    assert await memory.get("m1", user_id="ann") is None


async def test_a_memory_that_waits_to_be_written_has_its_tags_already(scheduler: AsyncScheduler) -> None:
    info = {"custom_tags": [SECRET], "device_id": "phone", "agent_id": "bee", "domain": "garden"}
    await scheduler.memory.add("bees", user_id="ann", item_id="new", info=info)
    current_principal.set(as_caller())
    assert await scheduler.memory.get("new.0", user_id="ann") is None
    with pytest.raises(UnknownMemoryError):
        await scheduler.memory.delete("new.0", user_id="ann")
    current_principal.set(as_caller(team=SECRET))
    waiting = await scheduler.memory.get("new.0", user_id="ann")
    await scheduler.runtime.worker.drain()
    written = await scheduler.memory.get("new.0", user_id="ann")
    assert waiting is not None
    assert written is not None
    assert (waiting.status, written.status) == ("resolving", "activated")
    names = ("text", "kind", "tier", "tags", "device_id", "agent_id", "domain", "info", "sources")
    assert [getattr(waiting, name) for name in names] == [getattr(written, name) for name in names]


async def test_pages_are_filled_with_what_may_be_read(scheduler: AsyncScheduler) -> None:
    current_principal.set(as_caller())
    seen, after = [], None
    while True:
        page = await scheduler.memory.page(user_id="ann", kinds=["turn", "fact"], after=after, limit=2)
        seen.append([item.id for item in page.items])
        after = page.next
        if after is None:
            break
    assert seen == [["m0", "m2"], ["m4", "m6"], ["m8"]]


async def test_a_search_neither_finds_nor_counts_what_is_hidden(scheduler: AsyncScheduler) -> None:
    current_principal.set(as_caller())
    search = scheduler.memory.search
    found = await search("bees", user_id="ann", limit=4, preferences=5, neighbours=2, hops=1, diversity="no")
    assert len(found.hits) == 4
    texts = [item.text for hit in found.hits for item in (hit.item, *hit.neighbours, *hit.linked)]
    assert any(hit.neighbours for hit in found.hits)
    assert not any(SECRET in text for text in texts)
    assert [hit.item.id for hit in found.preferences] == ["p0"]
    strict = await search(SECRET, user_id="ann", threshold=0.99, max_tokens=1)
    assert (strict.hits, strict.dropped <= 6, strict.cut) == ([], True, 0)
    current_principal.set(as_caller(team=SECRET))
    assert any(SECRET in hit.text for hit in await search(SECRET, user_id="ann"))


async def test_a_search_looks_further_when_much_is_hidden(scheduler: AsyncScheduler) -> None:
    many = [
        Remember(memory_id=f"h{number}", text=f"wasps wasps {number}", tags=(SECRET,)) for number in range(60)
    ]
    few = [
        Remember(memory_id=f"s{number}", text=f"wasps and a very long story {number}") for number in (1, 2)
    ]
    await scheduler.runtime.store.change(("ann", "ann"), [*many, *few])
    current_principal.set(as_caller())
    found = await scheduler.memory.search("wasps", user_id="ann", limit=2, diversity="no")
    assert {hit.item.id for hit in found} == {"s1", "s2"}


async def asked(client: httpx.AsyncClient) -> list[tuple[int, str]]:
    """The answers of all routes that read memories."""
    user = {"user_id": "ann"}
    answers = [
        await client.get("/product/get_memory/m1", params=user),
        await client.post("/product/get_memory_by_ids", params=user, json=["m0", "m1", "p1"]),
        await client.get("/product/memories", params=user | {"limit": 3, "newest_first": True}),
        await client.get("/product/memories/m1/history", params=user),
        await client.get("/product/memories/m0/links", params=user),
        await client.get("/product/memories/m1/links"),
        await client.patch("/product/memories/m1", json={"text": "x"}),
        await client.post("/product/delete_memory", json=user | {"memory_ids": ["m1"]}),
    ]
    return [(answer.status_code, answer.text.replace(SECRET, "?")) for answer in answers]


async def test_cubes_of_which_everything_is_hidden_are_not_named(scheduler: AsyncScheduler) -> None:
    hidden = [Remember(memory_id="h", text="wasps", tags=(SECRET,))]
    for cube in ("a", "b", "c", "d"):
        shown = [Remember(memory_id=f"s-{cube}", text="bees")] if cube in "bd" else []
        await scheduler.runtime.store.change(("ann", cube), hidden + shown)
        hidden = [Remember(memory_id=f"h-{cube}", text="wasps", tags=(SECRET,))]
    told = []
    for caller in (as_caller(), as_caller(team=SECRET)):
        cursor: str | None = ""
        async with documented_client(create_app(scheduler, run_worker=False, caller=caller)) as client:
            while cursor is not None:
                query = {"user_id": "ann", "limit": 1, "cursor": cursor}
                page = (await client.get("/product/cubes", params=query)).json()["data"]
                told += [cube["cube_id"] for cube in page["cubes"]]
                cursor = page["next"]
    assert told == ["ann", "b", "d", "a", "ann", "b", "c", "d"]


async def test_in_python_nothing_is_told_of_other_tenants_or_of_hidden_memories(scheduler) -> None:
    for text, tags in (("bees are busy", []), (f"{SECRET} bees are busy", [SECRET])):
        item_id = await scheduler.buffers.insert("ann", text)
        item = await scheduler.memory.get(item_id, user_id="ann")
        effect = Revise(memory_id=item_id, version=item.version, tags=tuple(tags))
        await scheduler.runtime.store.change(("ann", "ann"), [effect])
    current_principal.set(as_caller())
    assert [row.content for row in await scheduler.buffers.rows("ann")] == ["bees are busy"]
    with pytest.raises(RoleError, match="upkeep under governance needs the role admin"):
        await scheduler.upkeep.plan(user_id="ann")
    with pytest.raises(RoleError, match="extraction under governance needs the role admin"):
        await scheduler.extraction.plan(user_id="ann")
    with pytest.raises(BoundKeyError):
        await scheduler.observe.statistics(user_id="ann")
    current_principal.set(Principal(key="k", role=Role.SERVICE))
    with pytest.raises(RoleError, match="reading statistics under governance needs the role admin"):
        await scheduler.observe.statistics()
    for principal in (as_caller(team=SECRET), LOCAL_ADMIN):
        current_principal.set(principal)
        assert len(await scheduler.buffers.rows("ann")) == (1 if principal is LOCAL_ADMIN else 2)
    await scheduler.upkeep.plan(user_id="ann")
    await scheduler.observe.statistics()


@pytest.mark.parametrize("what", ["rows", "plan", "run", "undo", "extraction"])
async def test_in_python_a_key_keeps_to_its_users_and_cubes(what: str) -> None:
    scheduler = AsyncScheduler(
        settings=load_settings(queue={"url": "memory://"}, memory={"embedding": "none"})
    )
    for cube in ("ann", "work"):
        twice = [Remember(memory_id=f"{cube}-{name}", text="busy bees") for name in "ab"]
        await scheduler.open()
        await scheduler.runtime.store.change(("ann", cube), twice)
    own = frozenset({"ann"})
    current_principal.set(Principal(key="k", role=Role.USER, users=own, cubes=own))
    calls = {"rows": scheduler.buffers.rows, "extraction": scheduler.extraction.plan}
    call = calls.get(what) or getattr(scheduler.upkeep, what)
    for whose in ({"user_id": "bob"}, {"user_id": "ann", "mem_cube_id": "work"}):
        with pytest.raises(ForeignDataError):
            await call(**whose)
    groups = (await scheduler.upkeep.plan(user_id="ann")).merged
    assert {group.mem_cube_id for group in groups} == {"ann"}
    await scheduler.stop()


async def test_over_http_the_answers_are_those_of_a_store_without_the_hidden_ones(scheduler, clock) -> None:
    without = AsyncScheduler(
        settings=load_settings(queue={"url": "memory://"}, memory={"embedding": "none"}), clock=clock
    )
    await without.open()
    await fill(without, with_hidden=False)
    told = []
    for one in (scheduler, without):
        async with documented_client(create_app(one, run_worker=False, caller=as_caller())) as client:
            told.append([(status, text.partition('"next"')[0]) for status, text in await asked(client)])
    await without.stop()
    assert told[0] == told[1]


@pytest.mark.parametrize("label", sorted(UNGOVERNED_LABELS))
async def test_only_admins_submit_labels_that_go_through_hidden_memories(label: str) -> None:
    given: dict[str, Any] = {"queue": {"url": "memory://"}, "memory": {"embedding": "none"}}
    governed = given | {"governance": f"{__name__}:ByTeam"}
    told = []
    for settings in (given, governed, governed | {"labels": {label: {"role": "user"}}}):
        scheduler = AsyncScheduler(settings=load_settings(**settings))
        for role in (Role.USER, Role.SERVICE, Role.ADMIN):
            app = create_app(scheduler, run_worker=False, caller=Principal(key="k", role=role))
            async with documented_client(app) as client:
                body = {"messages": [{"user_id": "ann", "label": label, "content": "{}"}]}
                told.append((await client.post("/product/scheduler/submit", json=body)).status_code)
        await scheduler.stop()
    assert told == [200, 200, 200, 403, 403, 200, 200, 200, 200]


async def test_what_the_server_submits_for_a_caller_needs_no_further_role() -> None:
    with scripted() as model:
        model.answers = extract
        settings = {**model_settings(model.url), "governance": f"{__name__}:ByTeam"}
        async with serving(caller=as_caller(), **settings) as product:
            answer = await product.ask(
                "add", {"user_id": "ann", "messages": "I keep bees", "async_mode": "sync", "mode": "fine"}
            )
            assert (answer.code, answer.message) == (200, "ok")
            assert model.calls == 1


async def test_the_content_of_a_dead_letter_is_shown_to_all_who_may_touch_its_cube(scheduler) -> None:
    @scheduler.handler("export")
    def export(message: Message) -> Bury:
        return Bury("never")

    info = {"custom_tags": [SECRET]}
    await scheduler.submit("export", user_id="ann", content="bees", item_id="e", info=info)
    await scheduler.runtime.worker.drain()
    for cubes, status in ((None, 200), (frozenset({"ann"}), 200), (frozenset({"work"}), 404)):
        caller = Principal(key="k", role=Role.USER, users=frozenset({"ann"}), cubes=cubes)
        async with documented_client(create_app(scheduler, run_worker=False, caller=caller)) as client:
            shown = await client.get("/product/scheduler/dead_letters/e", params={"user_id": "ann"})
            assert (shown.status_code, "bees" in shown.text) == (status, status == 200)


async def test_an_id_without_a_user_is_looked_for_among_the_caller_s_users(scheduler: AsyncScheduler) -> None:
    for user_id in ("bob", "eve"):
        await scheduler.runtime.store.change((user_id, user_id), [Remember(memory_id="both", text="tea")])
    owner_of = scheduler.memory.owner_of
    assert await owner_of("m0") == "ann"
    with pytest.raises(AmbiguousIdError):
        await owner_of("both")
    current_principal.set(Principal(key="k", role=Role.USER, users=frozenset({"ann", "bob"})))
    assert await owner_of("both") == "bob"
    async with documented_client(create_app(scheduler, run_worker=False)) as client:
        refused = await client.get("/product/memories/both/history")
        assert (refused.status_code, "user_id" in refused.json()["message"]) == (409, True)
        found = await client.get("/product/memories/both/history", params={"user_id": "eve"})
        assert found.status_code == 200


def test_a_setting_that_names_nothing_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="governance"):
        AsyncScheduler(settings=load_settings(queue={"url": "memory://"}, governance="no.such:thing"))


def test_by_default_everything_may_be_read() -> None:
    assert AllowAll().may_read(as_caller(), None)
