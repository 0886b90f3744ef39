"""Memories under `/product` by id, by page and by filter; ids without a user; cubes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import Done, Message, Remember
from reverie.access import cubes as cube_records
from reverie.api import memory_lists
from reverie.memory.item import MemoryItem
from reverie.memory.query import Filters
from reverie.principal import Principal, Role
from support.product import Product, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def key(*users: str, role: Role = Role.USER, cubes: frozenset[str] | None = None) -> Principal:
    return Principal(key="-".join(users), role=role, users=frozenset(users), cubes=cubes)


@pytest.fixture
async def product() -> AsyncIterator[Product]:
    async with serving() as product:
        yield product


async def write(product: Product, *effects: Remember, user_id: str = "ann", cube: str = "") -> None:
    """Let a handler remember this."""

    @product.scheduler.handler("write")
    async def write(message: Message) -> Done:
        return Done(effects=list(effects))

    receipt = await product.scheduler.submit("write", user_id=user_id, mem_cube_id=cube)
    await product.scheduler.wait(receipt.item_id, user_id=user_id)


# -- ids that were just given ----------------------------------------------------------------------------


async def test_an_id_of_a_new_user_can_be_read_at_once_without_the_user() -> None:
    async with serving(works=False) as product:
        for user in ("new", "other"):
            body = {
                "user_id": user,
                "item_id": user,
                "messages": [{"role": "user", "content": f"I am {user}"}],
            }
            (added,) = await product.done("add", body)
            found = await product.done(f"get_memory/{added['memory_id']}")
            assert (found["memory"], found["metadata"]["status"]) == (f"I am {user}", "resolving")
        found = (await product.done("get_memory_by_ids", ["new.0", "other.0", "none.0"]))["memories"]
        assert [memory["memory"] for memory in found] == ["I am new", "I am other"]
        body = {"user_id": "other", "item_id": "new", "messages": [{"role": "user", "content": "I am other"}]}
        await product.done("add", body)
        assert (await product.ask("get_memory/new.0")).code == 409  # now two users have it


# -- ids without a user ----------------------------------------------------------------------------------


async def test_ids_without_a_user_are_those_of_the_users_of_the_key(product: Product) -> None:
    await product.add("tea of ann", item_id="one")
    await product.add("tea of bob", item_id="one", user_id="bob")
    await product.add("tea of bob", item_id="two", user_id="bob")
    await product.done("delete_memory", {"memory_ids": ["two.0"]})
    for path, body in (("get_memory/one.0", None), ("get_memory_by_ids", ["one.0"])):
        assert (await product.ask(path, body)).code == 409  # a caller of all users
    asked = {"memory_ids": ["one.0", "two.0", "none.0"]}
    async with product.asked_by(key("ann")) as ann:
        assert (await ann.done("get_memory/one.0"))["memory"] == "tea of ann"
        foreign, missing = await ann.ask("get_memory/two.0"), await ann.ask("get_memory/none.0")
        assert foreign == (200, "there is no memory 'two.0' of this user", None)
        assert missing == (200, "there is no memory 'none.0' of this user", None)
        assert len((await ann.done("get_memory_by_ids", ["one.0", "two.0", "none"]))["memories"]) == 1
        names = await ann.done("get_user_names_by_memory_ids", asked)
        assert names == {"one.0": "ann", "two.0": None, "none.0": None}
        for body, query in ((None, {"user_id": "bob"}), (["one.0"], {"user_id": "bob"})):
            path = "get_memory/one.0" if body is None else "get_memory_by_ids"
            assert await ann.ask(path, body, **query) == (403, "this key may not touch the user 'bob'", None)
        assert await ann.done("delete_memory", {"memory_ids": ["two.0"]}) == {"status": "failure"}
    async with product.asked_by(key("ann", "bob")) as both:
        words = "several users have a memory 'one.0': say whose, with user_id"
        assert await both.ask("get_memory/one.0") == (409, words, None)
        assert (await both.ask("get_memory_by_ids", ["one.0"])).code == 409
        await both.add("milk of ann", item_id="three")
        refused = await both.ask("delete_memory", {"memory_ids": ["three.0", "one.0"]})
        assert refused == (409, words, None)
        assert (await both.done("get_memory/three.0"))["memory"] == "milk of ann"
        assert (await both.ask("get_user_names_by_memory_ids", asked)).code == 409
        assert (await both.done("get_memory/one.0", user_id="bob"))["memory"] == "tea of bob"
        assert await both.ask("get_memory/two.0") == (410, "the memory 'two.0' was deleted", None)
        assert await both.done("delete_memory", {"memory_ids": ["one.0"], "user_id": "bob"}) == {
            "status": "success"
        }
        assert await product.texts("tea of ann") == ["milk of ann", "tea of ann"]


async def test_a_key_for_a_cube_reads_and_deletes_nothing_in_the_others(product: Product) -> None:
    await product.add("at home", item_id="one", mem_cube_id="home")
    await product.add("at work", item_id="two", mem_cube_id="work")
    async with product.asked_by(key("ann", cubes=frozenset({"home"}))) as home:
        assert (await home.done("get_memory/two.0")) is None
        assert (await home.done("get_memory/one.0"))["memory"] == "at home"
        assert await home.done("delete_memory", {"memory_ids": ["two.0"]}) == {"status": "failure"}
        (only,) = await home.done("get_all", {"user_id": "ann", "memory_type": "text_mem"})
        assert only["cube_id"] == "home"
        assert (await home.ask("get_memory", {"mem_cube_id": "work", "user_id": "ann"})).code == 403
        hidden = await home.done("get_memory", {"mem_cube_id": "work"})
        assert hidden["text_mem"][0]["total_nodes"] == 0
        assert await home.done("exist_mem_cube_id", {"mem_cube_id": "work"}) == {"work": False}
        page = await home.done("cubes", user_id="ann", limit=1)
        assert page == {"cubes": [{"cube_id": "home", "cube_name": "home"}], "next": None}
        assert (await home.ask("delete_memory", {"user_id": "ann"})).message == "deleted memories: 1"
    assert await product.texts("home work") == ["at work"]


# -- lists -----------------------------------------------------------------------------------------------


async def test_all_memories_of_a_user(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_lists, "PAGE", 2)
    await product.add("one", "two", "three", item_id="a", mem_cube_id="home")
    await write(
        product,
        Remember(memory_id="p", text="prefers tea", kind="preference"),
        Remember(memory_id="w", text="now", tier="working"),
        Remember(memory_id="k", text="block", tier="activation"),
        Remember(memory_id="r", text="rule", tier="parameter"),
        cube="work",
    )
    body = {"user_id": "ann", "memory_type": "text_mem"}
    by_cube = {cube["cube_id"]: cube for cube in await product.done("get_all", body)}
    assert set(by_cube) == {"home", "work"}
    (home,) = by_cube["home"]["memories"]
    assert [node["memory"] for node in home["nodes"]] == ["one", "two", "three"]
    (branch,) = home["tree_structure"]["children"]
    assert (branch["id"], [leaf["id"] for leaf in branch["children"]]) == (
        "LongTermMemory",
        ["a.0", "a.1", "a.2"],
    )
    assert by_cube["home"]["memory_statistics"] == {"LongTermMemory": 3}
    assert by_cube["work"]["memory_statistics"] == {"PreferenceMemory": 1, "WorkingMemory": 1}
    for kind, texts in (("act_mem", ["block"]), ("param_mem", ["rule"]), ("para_mem", ["rule"])):
        (cube,) = await product.done("get_all", body | {"memory_type": kind})
        assert [node["memory"] for node in cube["memories"][0]["nodes"]] == texts
    (cube,) = await product.done("get_all", body | {"mem_cube_ids": ["home"], "search_query": "two"})
    assert cube["memories"][0]["nodes"][0]["memory"] == "two"
    assert await product.done("get_all", body | {"user_id": "bob"}) == []
    monkeypatch.setattr(memory_lists, "MOST_LISTED", 2)
    code, message, data = await product.ask("get_all", body | {"mem_cube_ids": ["home"]})
    assert (code, data[0]["memory_statistics"]) == (200, {"LongTermMemory": 2})
    assert message == "these are the first 2 memories: get_memory lists all, page by page"
    code, message, data = await product.ask("get_memory", {"mem_cube_id": "home", "user_id": "ann"})
    assert (len(data["text_mem"][0]["memories"]), data["text_mem"][0]["total_nodes"]) == (2, 3)
    assert message == "a page has at most 2 memories: ask for pages"


async def test_the_memories_of_a_cube_page_by_page(product: Product) -> None:
    await product.add(*"abcde", item_id="one", mem_cube_id="home", custom_tags=["x"])
    await write(product, Remember(memory_id="p", text="tea", kind="preference"), cube="home")
    await write(product, Remember(memory_id="q", text="milk"), cube="home")

    async def page(**fields: Any) -> tuple[list[str], int]:
        data = await product.done("get_memory", {"mem_cube_id": "home", "user_id": "ann", **fields})
        assert (data["tool_mem"], data["skill_mem"]) == ([], [])
        (found,) = data["text_mem"]
        assert found["cube_id"] == "home"
        return [memory["memory"] for memory in found["memories"]], found["total_nodes"]

    assert await page() == ([*"abcde", "milk"], 6)
    assert await page(page=1, page_size=4) == ([*"abcd"], 6)
    assert await page(page=2, page_size=4) == (["e", "milk"], 6)
    assert await page(page=3, page_size=4) == ([], 6)
    assert await page(filter={"tags": "x"}, page=2, page_size=3) == (["d", "e"], 5)
    body = {"mem_cube_id": "home", "user_id": "ann"}
    preferences = (await product.done("get_memory", body))["pref_mem"]
    assert [memory["memory"] for memory in preferences[0]["memories"]] == ["tea"]
    assert (await product.done("get_memory", body | {"include_preference": False}))["pref_mem"] == []
    for fields, code, words in (
        ({"page": 0}, 422, "body.page"),
        ({"filter": {"mood": 1}}, 400, "filter='mood'"),
        ({"mem_cube_id": ""}, 400, "mem_cube_id='': must not be empty"),
    ):
        answer = await product.ask("get_memory", body | fields)
        assert (answer.code, answer.message[: len(words)]) == (code, words)


async def test_a_cube_without_a_user_is_one_of_a_user_of_the_key(product: Product) -> None:
    await product.add("tea", mem_cube_id="home")
    await product.add("own tea")
    await product.add("milk", mem_cube_id="home", user_id="bob")
    async with product.asked_by(key("bob")) as bob:
        found = await bob.done("get_memory", {"mem_cube_id": "home"})
        assert [memory["memory"] for memory in found["text_mem"][0]["memories"]] == ["milk"]
        assert (await bob.done("get_memory", {"mem_cube_id": "ann"}))["text_mem"][0]["total_nodes"] == 0
    async with product.asked_by(key("ann", "bob")) as both:
        words = "several users have a cube 'home': say whose, with user_id"
        assert await both.ask("get_memory", {"mem_cube_id": "home"}) == (409, words, None)
    own = await product.done("get_memory", {"mem_cube_id": "ann"})
    assert own["text_mem"][0]["total_nodes"] == 1


async def test_a_caller_of_all_users_finds_a_cube_that_nobody_has_created(product: Product) -> None:
    await product.add("tea", mem_cube_id="home")
    await product.add("soon gone", mem_cube_id="attic", item_id="one")
    await product.done("delete_memory", {"user_id": "ann", "memory_ids": ["one.0"]})
    assert await product.done("exist_mem_cube_id", {"mem_cube_id": "home"}) == {"home": True}
    assert await product.done("exist_mem_cube_id", {"mem_cube_id": "attic"}) == {"attic": False}
    found = await product.done("get_memory", {"mem_cube_id": "home"})
    assert [memory["memory"] for memory in found["text_mem"][0]["memories"]] == ["tea"]
    await product.add("milk", mem_cube_id="home", user_id="bob")
    words = "several users have a cube 'home': say whose, with user_id"
    assert await product.ask("get_memory", {"mem_cube_id": "home"}) == (409, words, None)
    assert await product.done("exist_mem_cube_id", {"mem_cube_id": "home"}) == {"home": True}


# -- delete ----------------------------------------------------------------------------------------------


async def test_memories_are_deleted_by_filter_and_all_of_a_user(product: Product) -> None:
    await product.add("apple", "berry", custom_tags=["old"])
    await product.add("cherry", mem_cube_id="work", custom_tags=["old"])
    await product.add("date")
    await product.add("elder", user_id="bob")
    body = {"user_id": "ann", "filter": {"and": [{"tags": {"contains": "old"}}]}}
    some = await product.ask("delete_memory", body | {"writable_cube_ids": ["work"]})
    assert some == (200, "deleted memories: 1", {"status": "success"})
    async with product.asked_by(key("ann")) as ann:
        assert (await ann.ask("delete_memory", {"filter": body["filter"]})).message == "deleted memories: 2"
        assert await product.texts("apple berry cherry date") == ["date"]
        assert (await ann.ask("delete_memory", {"user_id": "bob"})).code == 403
    assert (await product.ask("delete_memory", {"user_id": "ann"})).message == "deleted memories: 1"
    assert await product.texts("apple berry cherry date") == []
    assert await product.texts("elder", user_id="bob") == ["elder"]
    assert (await product.ask("delete_memory", {"user_id": "ann"})).message == "deleted memories: 0"


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        (Filters(), True),
        (Filters(kinds=("fact",)), True),
        (Filters(kinds=("event",)), False),
        (Filters(without_kinds=("fact",)), False),
        (Filters(tags=("a", "c")), True),
        (Filters(tags=("c",)), False),
        (Filters(tiers=("archive",)), True),
        (Filters(tiers=("working",)), False),
        (Filters(device_id="phone"), True),
        (Filters(device_id="clock"), False),
        (Filters(agent_id="x"), False),
        (Filters(since=10), True),
        (Filters(since=11), False),
        (Filters(until=11), True),
        (Filters(until=10), False),
        (Filters(as_of=10), True),
        (Filters(as_of=9), False),
        (Filters(as_of=20), False),
    ],
)
def test_filters_let_items_pass(filters: Filters, passes: bool) -> None:
    item = MemoryItem(
        id="1", user_id="ann", mem_cube_id="ann", text="x", kind="fact", tier="archive", tags=("a", "b"),
        device_id="phone", valid_from=10, valid_to=20,
    )  # fmt: skip
    assert filters.allow(item) is passes


# -- cubes -----------------------------------------------------------------------------------------------


async def test_cubes_are_created_found_and_listed(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"cube_id": "home", "cube_name": "At home", "owner_id": "ann"}
    assert await product.done("create_cube", home | {"cube_path": "/etc"}) == home
    assert await product.done("create_cube", home) == home
    other = await product.done("create_cube", {"cube_name": "No id", "owner_id": "ann"})
    assert await product.done("create_cube", other | {"cube_id": None}) == other
    again = {"mem_cube_name_or_path": "Another", "mem_cube_id": "home", "user_id": "ann"}
    assert await product.done("register_cube", again) == home
    new = await product.done("register_cube", {"mem_cube_name_or_path": "a/b c", "user_id": "bob"})
    assert new == {"cube_id": "a/b c", "cube_name": "a/b c", "owner_id": "bob"}
    await product.add("tea", mem_cube_id="work")
    for cube, exists in (("home", True), ("a/b c", True), ("a", False), ("none", False), ("_system", False)):
        answer = await product.ask("exist_mem_cube_id", {"mem_cube_id": cube})
        assert answer.data == {cube: exists} or answer.code == 400
    listed = await product.done("cubes", user_id="ann", limit=2)
    rest = await product.done("cubes", user_id="ann", limit=2, cursor=listed["next"])
    names = [cube["cube_name"] for cube in (*listed["cubes"], *rest["cubes"])]
    assert sorted(names) == ["At home", "No id", "work"]
    assert rest["next"] is None
    async with product.asked_by(key("bob")) as bob:
        assert await bob.done("exist_mem_cube_id", {"mem_cube_id": "home"}) == {"home": False}
        assert (await bob.ask("create_cube", home)).code == 403
        assert (await bob.done("register_cube", {"mem_cube_name_or_path": "mine"}))["owner_id"] == "bob"
        assert (await bob.ask("cubes", user_id="ann")).code == 403
    audited = await product.scheduler.audit.page()
    assert {(entry.action, entry.user_id) for entry in audited} == {
        ("cube.create", "ann"),
        ("cube.create", "bob"),
    }
    monkeypatch.setattr("reverie.backends.memory.records.MOST_RECORDS", 3)
    monkeypatch.setattr(cube_records, "MOST_OWNERS", 3)
    for number in range(5):  # the cubes of some users leave room for those of others
        await product.done("create_cube", {"cube_name": "x", "owner_id": f"user{number}", "cube_id": "same"})
    assert await product.done("exist_mem_cube_id", {"mem_cube_id": "same"}) == {"same": True}
    assert (await product.ask("get_memory", {"mem_cube_id": "same"})).code == 409
    monkeypatch.setattr(cube_records, "MOST_CUBES", 2)
    code, message, _ = await product.ask("create_cube", {"cube_name": "x", "owner_id": "ann"})
    assert (code, message) == (400, "the user 'ann' has 2 cubes: use one of these")
    for path, body in (
        ("create_cube", {"cube_name": "", "owner_id": "ann"}),
        ("create_cube", {"cube_name": "x", "owner_id": "_system"}),
        ("register_cube", {"mem_cube_name_or_path": "x"}),
    ):
        assert (await product.ask(path, body)).code in {400, 422}
