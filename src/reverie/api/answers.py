"""What a client gets: types of answers that are not values of another room. Those of tasks are beside."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from reverie.access.keys import ApiKey
from reverie.backends.records import AuditEntry
from reverie.effect import Relation
from reverie.memory.item import Revision
from reverie.models.budgets import SpentBudget
from reverie.models.usage import Usage

__all__ = [
    "Added",
    "AddedText",
    "AllInCube",
    "AuditPage",
    "ChatAnswer",
    "ChatFrame",
    "CreatedCube",
    "CubePage",
    "DeletedMemories",
    "Feedback",
    "FeedbackRecord",
    "Forest",
    "Found",
    "FoundInCube",
    "FoundMemory",
    "History",
    "KeyPage",
    "LinkPage",
    "LinkedMemory",
    "Listed",
    "ListedCube",
    "ListedMemories",
    "MadeKey",
    "Memories",
    "Metadata",
    "RelatedMemory",
    "Suggestions",
    "UpdatedText",
    "UsageAndBudgets",
]


class Added(TypedDict):
    """A memory that will be written."""

    memory: str
    memory_id: str
    memory_type: str
    cube_id: str
    item_id: str
    status: str
    """accepted, duplicate, spooled; after waiting activated, failed, cancelled, deleted (the request was sent
    before, and a person has deleted the memory since), or resolving: not settled."""


class AddedText(TypedDict):
    """A memory that feedback has added."""

    id: str
    text: str


class UpdatedText(TypedDict):
    """A memory that has taken the place of a wrong one."""

    id: str
    text: str
    archived_id: str
    """The id of the wrong one, which stays in history."""
    origin_memory: str
    """What the wrong one says."""


class FeedbackRecord(TypedDict):
    """What feedback has written. Changes of importance are not in it."""

    add: list[AddedText]
    update: list[UpdatedText]


class Feedback(TypedDict):
    """What feedback has changed in one cube."""

    record: FeedbackRecord


class RelatedMemory(TypedDict):
    """A memory that belongs to one that was found."""

    id: str
    memory: str


class Metadata(TypedDict):
    """What is known of a memory besides its text. Times are ISO 8601 text."""

    memory_type: str
    kind: str
    tier: str
    status: Literal["activated", "resolving", "archived"]
    """resolving: accepted, and not written yet; archived: in the archive, or superseded."""
    superseded_by: str | None
    """The id of the memory that has replaced this one."""
    user_id: str
    session_id: str | None
    device_id: str | None
    agent_id: str | None
    tags: list[str]
    info: dict[str, Any] | None
    sources: list[dict[str, Any]]
    importance: float
    version: int
    created_at: str
    updated_at: str
    valid_from: str | None
    valid_to: str | None
    usage: list[Any]
    """Empty: clients expect the field."""
    embedding: list[float]
    """Empty: clients expect the field."""
    background: str
    """Empty: clients expect the field."""
    relativity: NotRequired[float]
    """In a search: how well the memory fits, 0 to 1, comparable between searches."""
    signals: NotRequired[dict[str, float]]
    """With `explain`: what each signal added to the score."""
    neighbours: NotRequired[list[RelatedMemory]]
    """With `neighbor_discovery`: the memories before and after it in its conversation."""
    linked: NotRequired[list[RelatedMemory]]
    """With `neighbor_discovery`: the memories that links lead to."""


class FoundMemory(TypedDict):
    """A memory."""

    id: str
    memory: str
    ref_id: str
    """The first part of the id, in brackets, for a text that cites the memory."""
    metadata: Metadata


class FoundInCube(TypedDict):
    """The memories of one cube that fit a query, best first."""

    cube_id: str
    memories: list[FoundMemory]
    total_nodes: int
    """How many memories these are."""


class Found(TypedDict):
    """The memories that fit a query."""

    text_mem: list[FoundInCube]
    pref_mem: list[FoundInCube]
    """Preferences; `text_mem` has none."""
    act_mem: list[FoundInCube]
    para_mem: list[FoundInCube]
    tool_mem: list[FoundInCube]
    skill_mem: list[FoundInCube]
    pref_string: str
    """The texts of the preferences, one on each line."""
    pref_note: str
    """How a model should read `pref_string`."""
    dropped: int
    """How many hits were below the threshold."""
    cut: int
    """How many hits and preferences were left out because of `max_tokens`."""
    words_left_out: int
    """How many words of a long query were not searched for; the rarest were."""
    degraded: list[str]
    """Why the search is not as good as it could be, one sentence each."""
    timings_ms: NotRequired[dict[str, float]]
    """With `explain`: how long each stage took."""
    explanation: NotRequired[dict[str, Any]]
    """With `explain`: the words, names and times that were understood in the query."""


class Forest(TypedDict):
    """The memories of a cube, once as a list and once by their types."""

    nodes: list[FoundMemory]
    tree_structure: dict[str, Any]
    """`{id, node_name, children}`: below the root one child for each `memory_type`, below that the ids."""


class AllInCube(TypedDict):
    """All memories of a cube."""

    cube_id: str
    memories: list[Forest]
    """One entry."""
    memory_statistics: dict[str, int]
    """How many memories there are of each `memory_type`."""


class Listed(TypedDict):
    """A page of the memories of a cube. `total_nodes` counts those of all pages."""

    text_mem: list[FoundInCube]
    pref_mem: list[FoundInCube]
    tool_mem: list[FoundInCube]
    skill_mem: list[FoundInCube]


class Memories(TypedDict):
    """The memories that were asked for by their ids; those that there are not are left out."""

    memories: list[FoundMemory]


class DeletedMemories(TypedDict):
    """Whether all memories that were named are deleted."""

    status: Literal["success", "failure"]
    """failure: one of the ids is unknown. The others are deleted all the same."""


class ChatAnswer(TypedDict):
    """An answer of the language model."""

    response: str
    reasoning: str | None
    """What the model thought before it answered, if it says that."""


class ChatFrame(TypedDict):
    """One event of an answer that comes part by part."""

    type: Literal["reasoning", "text", "error"]
    data: NotRequired[str]
    content: NotRequired[str]
    """Of an error: why the answer has broken off."""


class Suggestions(TypedDict):
    """Questions that a user may want to ask next."""

    query: list[str]


class CreatedCube(TypedDict):
    """A cube that was created or made known."""

    cube_id: str
    cube_name: str
    owner_id: str


class ListedCube(TypedDict):
    """A cube of a user."""

    cube_id: str
    cube_name: str
    """The id, if the cube was never created by name."""


class CubePage(TypedDict):
    """A page of the cubes of a user, by id."""

    cubes: list[ListedCube]
    next: str | None
    """What `cursor` must be for the next page; None on the last one."""


class UsageAndBudgets(TypedDict):
    """What the language model has cost, and the budgets that are spent today."""

    usage: list[Usage]
    """Sums by tenant, label and day (UTC), the newest day first. `micros` are millionths of the currency."""
    budgets_spent: list[SpentBudget]
    next: str | None
    """The `cursor` of the next page of `usage`; None on the last one."""


class ListedMemories(TypedDict):
    """Memories of a user, in the order in which they were learned."""

    memories: list[FoundMemory]
    next: str | None


class History(TypedDict):
    """A memory as it was before its changes, oldest first. Times are milliseconds since 1970."""

    revisions: list[Revision]
    next: str | None


class LinkedMemory(TypedDict):
    """A link of a memory, and the memory at its other end."""

    relation: Relation
    outgoing: bool
    """Whether the link leads to this memory; else it comes from it."""
    memory: FoundMemory


class LinkPage(TypedDict):
    """The links of a memory, by the id of the memory at the other end."""

    links: list[LinkedMemory]
    next: str | None


class MadeKey(TypedDict):
    """An API key that was made or rotated."""

    key: ApiKey
    token: str
    """What the owner of the key sends. It is shown only once."""


class KeyPage(TypedDict):
    """API keys by their ids, without their secrets."""

    keys: list[ApiKey]
    next: str | None


class AuditPage(TypedDict):
    """Who changed what, newest first."""

    entries: list[AuditEntry]
    next: str | None
