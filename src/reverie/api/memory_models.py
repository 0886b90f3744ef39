"""What a client may ask about memories. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from reverie.api.memory_filters import all_of, epoch_of, filters_of_types, read_filter
from reverie.api.models import Cubes, Text, TurnModel
from reverie.api.routing import Touched
from reverie.errors import InvalidMessageError, InvalidSelectionError, NotSupportedError
from reverie.memory.query import Filters

__all__ = ["AllRequest", "DeleteRequest", "IdsRequest", "ListRequest", "Moment", "SearchRequest"]

PREFERENCE = "preference"

Moment = Annotated[
    int | None,
    BeforeValidator(
        lambda value: None if value is None else epoch_of(value), json_schema_input_type=str | float | None
    ),
]
"""A time as ISO 8601 text, or in seconds or milliseconds since 1970."""


class SearchRequest(BaseModel):
    """What to look for."""

    query: Text
    user_id: Text
    mode: Literal["fast", "fine", "mixture"] = Field(
        "fast", description="fine: the language model words the query in other ways, and judges the hits"
    )
    chat_history: list[TurnModel] | None = Field(
        None, description="what was said before: with fine, it helps to understand the query"
    )
    internet_search: bool = Field(default=False, description="is not done, and degraded says so")
    mem_cube_id: Text | None = None
    readable_cube_ids: Cubes | None = None
    session_id: Text | None = Field(None, description="the present conversation: its memories are raised")
    top_k: int = Field(10, ge=1, le=1000)
    relativity: float = Field(0.45, ge=0, le=1, description="hits with a lower score are dropped; 0: none")
    threshold: float | None = Field(None, ge=0, le=1, description="if it is given, counts before relativity")
    dedup: Literal["no", "sim", "mmr"] | None = None
    rerank: bool = True
    include_preference: bool = Field(default=True, description="whether pref_mem has preferences that fit")
    pref_top_k: int = Field(6, ge=0, le=1000)
    search_memory_type: str = Field("All", description="All, or the memory_type that text_mem may have")
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}')
    reference_time: Moment = Field(None, description="what 'yesterday' in the query refers to")
    neighbor_discovery: bool = Field(default=False, description="show what is around and linked to each hit")
    kinds: list[Text] = []
    tags: list[Text] = Field([], description="a memory must have one of these")
    device_id: Text | None = None
    agent_id: Text | None = None
    since: Moment = Field(None, description="only what began to hold at this time or later")
    until: Moment = Field(None, description="only what began to hold before this time")
    as_of: Moment = Field(None, description="what held at this time")
    max_tokens: int | None = Field(
        None, ge=1, description="how many tokens all texts of the answer may have together, about"
    )
    explain: bool = False

    def touched(self) -> list[Touched]:
        """The user and the cubes that are searched."""
        return [Touched(self.user_id, tuple(self.cubes))]

    @property
    def cubes(self) -> list[str]:
        """The cubes to search; none: all cubes of the user."""
        return self.readable_cube_ids or ([self.mem_cube_id] if self.mem_cube_id else [])

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `AsyncMemory.search`."""
        strict = all_of([read_filter(self.filter or {}), self._own_filters()])
        preferences = self.pref_top_k if self.include_preference else 0
        if strict.kinds and PREFERENCE not in strict.kinds:
            preferences = 0
        filters = all_of([strict, self._type_filters()])
        without = {*filters.without_kinds, PREFERENCE} - ({PREFERENCE} if preferences else set())
        return {
            "user_id": self.user_id,
            "mem_cube_ids": self.cubes,
            "limit": self.top_k,
            "session_id": self.session_id or None,
            "reference_time": self.reference_time,
            "threshold": self.relativity if self.threshold is None else self.threshold,
            "max_tokens": self.max_tokens,
            "diversity": self.dedup or "mmr",
            "rerank": self.rerank,
            "preferences": preferences,
            "neighbours": int(self.neighbor_discovery),
            "hops": int(self.neighbor_discovery),
            "explain": self.explain,
            **{name: getattr(filters, name) for name in Filters.__struct_fields__},
            "without_kinds": sorted(without),
        }

    def _own_filters(self) -> Filters:
        return Filters(
            kinds=tuple(self.kinds),
            tags=tuple(self.tags),
            device_id=self.device_id,
            agent_id=self.agent_id,
            since=self.since,
            until=self.until,
            as_of=self.as_of,
        )

    def _type_filters(self) -> Filters:
        if self.search_memory_type == "All":
            return Filters()
        try:
            return filters_of_types([self.search_memory_type])
        except InvalidMessageError as error:
            reason = f"must be All, or {error.reason.removeprefix('must be ')}"
            raise InvalidMessageError("search_memory_type", self.search_memory_type, reason) from error


class DeleteRequest(BaseModel):
    """Which memories to delete: `memory_ids`; or all of a user, of a conversation, or that pass a filter."""

    user_id: Text | None = Field(None, description="whose memories; alone: all memories of the user")
    memory_ids: list[Text] | None = Field(None, max_length=1000)
    session_id: Text | None = None
    conversation_id: Text | None = Field(None, description="the same as session_id")
    writable_cube_ids: Cubes | None = Field(None, description="memories of other cubes count as unknown")
    mem_cube_id: Text | None = None
    file_ids: list[Any] | None = None
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}, as in a search')

    def check(self) -> None:
        """Refuse a request that does not say which memories it means in exactly one way."""
        if self.file_ids:
            raise NotSupportedError("file_ids", "memories have no files: give memory_ids")
        if self.memory_ids is None:
            if self.user_id is None and self.session is None and not self.filter:
                raise InvalidSelectionError("give memory_ids, user_id, session_id or filter")
        elif not self.memory_ids or self.session is not None or self.filter:
            raise InvalidSelectionError(
                "give either memory_ids (at least one), or a session_id or a filter, whose memories are all "
                "deleted"
            )

    @property
    def session(self) -> str | None:
        """The conversation whose memories are deleted."""
        return self.session_id or self.conversation_id

    @property
    def cubes(self) -> list[str]:
        """The cubes in which to delete; none: all cubes of the user."""
        return self.writable_cube_ids or ([self.mem_cube_id] if self.mem_cube_id else [])


class AllRequest(BaseModel):
    """Which memories to list all of."""

    user_id: Text
    memory_type: Literal["text_mem", "act_mem", "param_mem", "para_mem"]
    mem_cube_ids: Cubes | None = Field(None, description="default: all cubes of the user")
    search_query: Text | None = Field(None, description="only memories that fit this")
    search_type: Text | None = None

    def touched(self) -> list[Touched]:
        """The user and the cubes that are read."""
        return [Touched(self.user_id, tuple(self.mem_cube_ids or ()))]


class ListRequest(BaseModel):
    """Which memories of a cube to list."""

    mem_cube_id: Text
    user_id: Text | None = Field(
        None, description="whose cube; may be left out if one user of the key has it"
    )
    include_preference: bool = True
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}, as in a search')
    page: int | None = Field(None, ge=1, le=1_000_000, description="from 1")
    page_size: int | None = Field(None, ge=1, le=10_000, description="memories on a page; default: all")


class IdsRequest(BaseModel):
    """Ids of memories."""

    memory_ids: list[Text] = Field(max_length=100)
