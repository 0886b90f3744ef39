"""One case for each thing that a built-in handler can be asked, and what the file says afterwards."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from reverie import Message
from reverie.effect import Remember
from reverie.message import derived_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CASES", "MORE", "Case", "State", "memory_rows", "state_of"]

STATEMENTS = {
    "items": "SELECT id, kind, text, tier, version, access_count, sources, extracted_at_epoch IS NOT NULL, "
    "superseded_by FROM memory_items ORDER BY id",
    "links": "SELECT source_id, relation, target_id FROM memory_links ORDER BY 1, 2, 3",
    "rows": "SELECT buffer_id, status FROM buffer_zone ORDER BY place",
    "queries": "SELECT id, query, found, answer, used FROM memory_queries ORDER BY id",
    "searches": "SELECT hits FROM memory_searches ORDER BY 1",
    "statistics": "SELECT counts FROM memory_statistics",
    "sessions": "SELECT memory_session_id, status, agent FROM server_sessions ORDER BY 1",
    "upkeep": "SELECT 'judged', key, NULL, NULL FROM memory_judged "
    "UNION ALL SELECT 'changed', c.change, c.id, c.other FROM memory_pass_changes AS c "
    "UNION ALL SELECT 'pass', id, label, NULL FROM memory_passes ORDER BY 1, 2, 3, 4",
}
"""All that handlers write to memory, without times and random tokens."""
AT_ONCE_DAYS = 1e-8
"""One millisecond."""
TABLES = """
SELECT name FROM sqlite_schema
WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' AND name NOT LIKE 'llm!_%' ESCAPE '!'
  AND name <> 'inbox'
"""


@dataclass(frozen=True)
class State:
    """What handlers have written to memory."""

    items: list[tuple]
    links: list[tuple]
    rows: list[tuple]
    queries: list[tuple]
    searches: list[tuple]
    statistics: list[tuple]
    sessions: list[tuple]
    upkeep: list[tuple]
    """Groups that were decided upon, and what passes have changed."""

    @property
    def kept(self) -> list[str]:
        """The memories that the only kept search has found, best first."""
        ((hits,),) = self.searches
        return [memory_id for memory_id, _ in json.loads(hits)]

    @property
    def living(self) -> list[str]:
        """The texts of the memories that are not superseded, in order."""
        return sorted(item[2] for item in self.items if item[8] is None)

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts of the memories, in order, by kind."""
        found: dict[str, list[str]] = {}
        for _, kind, text, *_ in self.items:
            found.setdefault(kind, []).append(text)
        return {kind: sorted(texts) for kind, texts in found.items()}

    def of(self, memory_id: str) -> tuple[str, int]:
        """The tier of a memory, and how often it was read."""
        ((tier, count),) = [(item[3], item[5]) for item in self.items if item[0] == memory_id]
        return tier, count

    @property
    def sources(self) -> set[str]:
        """The turns that are sources of a fact."""
        return {target for _, relation, target in self.links if relation == "derived_from"}

    @property
    def read(self) -> set[str]:
        """The memories that are marked as read for facts."""
        return {item[0] for item in self.items if item[7]}


def state_of(path: Path) -> State:
    """What a connection of its own finds in the file: only what is committed."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(10_000)
        return State(**{name: connection.execute(one).fetchall() for name, one in STATEMENTS.items()})


def memory_rows(path: Path) -> dict[str, list[tuple]]:
    """All rows of all tables of a file, except of the inbox and of the ledger."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(10_000)
        names = [name for (name,) in connection.execute(TABLES)]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


@dataclass(frozen=True)
class Case:
    """A message, what must have run before it, and what must be so in the end."""

    label: str
    content: Any
    check: Callable[[State], None]
    """Look at memory when the message and all that follows from it have run."""
    check_without_model: Callable[[State], None]
    before: tuple[Message, ...] = ()
    asks_model: bool = False
    changes_items: bool = False
    """Whether the message, or one that follows from it, changes items that are there."""
    reads: bool = False
    """Whether the buffer is read before the message comes."""
    archive_after_days: float = 180
    kept: tuple[Remember, ...] = ()
    """Memories that are there."""
    asks: bool = True
    """Whether the handler asks its worker for anything."""

    @property
    def message(self) -> Message:
        return new_message("the-one", self.label, self.content)


def new_message(item_id: str, label: str, content: Any) -> Message:
    text = content if isinstance(content, str) else json.dumps(content)
    session_id = content.get("memorySessionId") if isinstance(content, dict) else None
    return Message(user_id="ann", label=label, content=text, item_id=item_id, session_id=session_id)


def chat(item_id: str, *texts: str, **fields: str) -> Message:
    turns = [{"role": "user", "name": "Ann", "content": text, **fields} for text in texts]
    return new_message(item_id, "add", turns)


SAID = chat("said", "I moved to Lisbon", "I like tea", "Hello there")
SAID_IN_SESSION = msgspec.structs.replace(SAID, session_id="s")
MORE = chat("more", "Green tea is the best tea")
ASKED = new_message("asked", "query", {"query": "tea", "found": ["said.1"]})
LIKED = new_message("liked", "pref_add", {"memory_ids": ["said.1"]})
TAKEN_BACK = chat("taken-back", "I don't like tea")
TURNS = ["Hello there", "I like tea", "I moved to Lisbon"]
EXTRACTED = {"turn": TURNS, "fact": ["Ann lives in Lisbon"], "preference": ["Ann likes tea"]}


def check_chat(item_id: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        assert state.texts == EXTRACTED
        assert state.sources == {f"{item_id}.0", f"{item_id}.1"}
        assert state.read == {f"{item_id}.{index}" for index in range(3)}
        assert state.rows == [(f"{item_id}.{index}", "done") for index in range(3)]

    return check


def check_turns_alone(state: State) -> None:
    """The turns are kept, and nothing else has happened to them."""
    assert state.texts == {"turn": TURNS}
    assert (state.links, state.rows, state.read) == ([], [], set())


def check_text(state: State) -> None:
    assert state.texts == {"turn": ["I like tea"], "preference": ["text likes tea"]}
    assert state.sources == state.read == {"the-one.0"}


def check_text_alone(state: State) -> None:
    assert state.texts == {"turn": ["I like tea"]}
    assert state.read == set()


def check_query(state: State) -> None:
    assert [query[:3] for query in state.queries] == [("the-one", "tea", '["said.1"]')]
    assert state.of("said.1") == ("working", 1)


def check_answer(state: State) -> None:
    assert state.queries == [("asked", "tea", '["said.1"]', "A cup.", '["said.1"]')]
    assert state.of("said.1") == ("working", 2)


def check_update(state: State) -> None:
    assert len(state.queries) == 1
    assert state.of("said.1") == ("working", 1)
    assert state.of("more.0") == ("working", 0)


def check_feedback(state: State) -> None:
    texts = {memory_id: text for memory_id, _, text, *_ in state.items}
    assert texts["the-one.0"] == "No, I like coffee"
    assert ("the-one.0", "supersedes", "said.1") in state.links


def check_preference(old: str, new: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        items = {item[2]: item for item in state.items if item[1] == "preference"}
        assert items.keys() == {old, new}
        assert (items[old][8], items[new][8]) == (items[new][0], None)
        found = {(source, target) for source, relation, target in state.links if relation == "derived_from"}
        assert found >= {(items[old][0], "said.1"), (items[new][0], "taken-back.0")}

    return check


def check_mixed(*memory_ids: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        assert state.kept == list(memory_ids)

    return check


TWICE = (chat("one", "I like tea"), chat("two", "I like TEA."))
GREETINGS = (chat("one", "Hello there", "Hello again"),)
HOMES = (
    chat("porto", "I moved to Porto", chat_time="2026-01-05"),
    chat("lisbon", "I moved to Lisbon", chat_time="2026-03-05"),
)
CARS = (chat("red", "I drive a red car to work"), chat("blue", "I drive a blue car to work"))


def fact_id(text: str) -> str:
    """The id that `mem_read` gives a fact."""
    return derived_id("ann", "ann", "fact", text.casefold())


def check_one_of_two(state: State) -> None:
    """Two equal turns are one, which has both sources."""
    (merged,) = [item for item in state.items if item[2] in {"I like tea", "I like TEA."} and item[8] is None]
    assert sorted(source["item_id"] for source in json.loads(merged[6])) == ["one", "two"]
    assert {item[8] for item in state.items if item[0] in {"one.0", "two.0"}} == {merged[0]}


def check_home(state: State) -> None:
    """The later home has replaced the earlier one."""
    homes = {item[2]: item[8] for item in state.items if " lives in " in item[2]}
    new = fact_id("Ann lives in Lisbon")
    assert homes == {"Ann lives in Porto": new, "Ann lives in Lisbon": None}
    assert (new, "supersedes", fact_id("Ann lives in Porto")) in state.links


def check_organized(state: State) -> None:
    check_one_of_two(state)
    check_home(state)


def check_compressed(state: State) -> None:
    """Two turns, which were read, are one summary."""
    (summary,) = [item for item in state.items if item[1] == "summary"]
    assert summary[2] == "I drive a blue car to work; I drive a red car to work"
    assert {item[8] for item in state.items if item[1] == "turn"} == {summary[0]}


def check_as_it_was(state: State) -> None:
    assert (len(state.living), state.links, state.upkeep) == (2, [], [])


def check_archived(state: State) -> None:
    assert {item[3] for item in state.items} == {"archive"}


KEPT = (
    Remember(memory_id="over", text="It was so", expires_at=1),
    Remember(memory_id="now", text="It is so"),
)


def check_observed(title: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        assert [(item[0], item[1], item[2]) for item in state.items] == [("the-one.0", "observation", title)]

    return check


def check_summary(*parts: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        (text,) = state.texts["summary"]
        for part in parts:
            assert part in text

    return check


def check_session(status: str) -> Callable[[State], None]:
    def check(state: State) -> None:
        assert state.sessions == [("s", status, "codex")]

    return check


def check_cleaned(state: State) -> None:
    assert [item[0] for item in state.items] == ["now"]


def check_kept(state: State) -> None:
    assert [item[0] for item in state.items] == ["now", "over"]


def check_counted(state: State) -> None:
    assert state.statistics == [('[["fact","long_term",2]]',)]


CASES = {
    "add": Case(
        "add",
        json.loads(SAID.content),
        check_chat("the-one"),
        check_turns_alone,
    ),
    "mem_read of a buffer": Case(
        "mem_read", {"blob_type": "chat"}, check_chat("said"), check_turns_alone, (SAID,), asks_model=True
    ),
    "mem_read of memories": Case(
        "mem_read",
        {"memory_ids": ["said.0", "said.1", "said.2"]},
        check_chat("said"),
        check_turns_alone,
        (SAID,),
        asks_model=True,
        changes_items=True,
    ),
    "mem_read of a text": Case(
        "mem_read", {"text": "I like tea"}, check_text, check_text_alone, asks_model=True
    ),
    "query": Case(
        "query",
        {"query": "tea", "found": ["said.1"]},
        check_query,
        check_query,
        (SAID,),
        changes_items=True,
        asks=False,
    ),
    "answer": Case(
        "answer",
        {"answer": "A cup.", "query_item_id": "asked", "used": ["said.1"]},
        check_answer,
        check_answer,
        (SAID, ASKED),
        asks=False,
    ),
    "mem_update": Case(
        "mem_update",
        {"memory_ids": ["more.0"]},
        check_update,
        check_update,
        (SAID, ASKED, MORE),
        changes_items=True,
    ),
    "mem_feedback": Case(
        "mem_feedback",
        {"feedback_content": "No, I like coffee", "retrieved_memory_ids": ["said.1"]},
        check_feedback,
        check_feedback,
        (SAID,),
        asks_model=True,
        changes_items=True,
    ),
    "pref_add": Case(
        "pref_add",
        {"memory_ids": ["taken-back.0"]},
        check_preference("Ann likes tea", "Ann does not like tea"),
        check_preference("I like tea", "I don't like tea"),
        (SAID, LIKED, TAKEN_BACK),
        asks_model=True,
        changes_items=True,
    ),
    "api_mix_search": Case(
        "api_mix_search",
        {"query": "tea"},
        check_mixed("said.0", "said.1"),
        check_mixed("said.1"),
        (SAID,),
        asks_model=True,
    ),
    "mem_organize": Case(
        "mem_organize", "", check_organized, check_one_of_two, TWICE + HOMES, reads=True, changes_items=True
    ),
    "mem_organize of a group": Case(
        "mem_organize",
        {"group": [fact_id("Ann lives in Porto"), fact_id("Ann lives in Lisbon")]},
        check_home,
        check_as_it_was,
        HOMES,
        reads=True,
        asks_model=True,
        changes_items=True,
    ),
    "memory_compression": Case(
        "memory_compression", "", check_one_of_two, check_one_of_two, TWICE, reads=True, changes_items=True
    ),
    "memory_compression of a group": Case(
        "memory_compression",
        {"group": ["blue.0", "red.0"]},
        check_compressed,
        check_as_it_was,
        CARS,
        reads=True,
        asks_model=True,
        changes_items=True,
    ),
    "mem_archive": Case(
        "mem_archive",
        "",
        check_archived,
        check_archived,
        GREETINGS,
        reads=True,
        archive_after_days=AT_ONCE_DAYS,
        changes_items=True,
    ),
    "observation": Case(
        "observation",
        {"memorySessionId": "s", "type": "Edit", "tool": {"name": "Edit", "input": {"file_path": "/a.py"}}},
        check_observed("The model saw Edit"),
        check_observed("Edited /a.py"),
        asks_model=True,
    ),
    "summary": Case(
        "summary",
        {"memorySessionId": "s"},
        check_summary("Learned: the model read 3 lines"),
        check_summary("Request: "),
        (SAID_IN_SESSION,),
        asks_model=True,
    ),
    "summary of an agent": Case(
        "summary",
        {"memorySessionId": "s", "type": "compact", "text": "We fixed the build"},
        check_summary("We fixed the build"),
        check_summary("We fixed the build"),
        asks=False,
    ),
    "session_init": Case(
        "session_init",
        {"memorySessionId": "s", "at": 5, "agent": "codex"},
        check_session("created"),
        check_session("created"),
        asks=False,
    ),
    "session_complete": Case(
        "session_complete",
        {"memorySessionId": "s", "at": 9, "agent": "codex"},
        check_session("completed"),
        check_session("completed"),
        asks=False,
    ),
    "data_cleanup": Case("data_cleanup", "", check_cleaned, check_cleaned, kept=KEPT, changes_items=True),
    "embedding_refresh": Case("embedding_refresh", "", check_kept, check_kept, kept=KEPT),
    "statistics_update": Case("statistics_update", "", check_counted, check_counted, kept=KEPT),
}
