"""What MemOS's published Python client sends and gets under `/api/openmem/v1`. Unknown fields are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from pydantic import BaseModel, Field, model_validator

from reverie.api.chat_models import ChatRequest
from reverie.api.feedback import FeedbackRequest
from reverie.api.memory_models import PREFERENCE, DeleteRequest, SearchRequest
from reverie.api.memory_shape import type_of
from reverie.api.models import AddRequest, Tags, Text, TurnModel
from reverie.api.routing import Touched
from reverie.effect import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.memory.item import MemoryItem

__all__ = [
    "AddFeedbackRequest",
    "AddMessageRequest",
    "AddedTask",
    "AskRequest",
    "ChangedMemory",
    "DeleteMemoryRequest",
    "DeletedAll",
    "DetailPage",
    "FoundDetails",
    "GetMemoryRequest",
    "GetMessageRequest",
    "MemoryDetail",
    "MessageDetail",
    "Messages",
    "PreferenceDetail",
    "SearchMemoryRequest",
    "Spoken",
    "StatusRequest",
    "TaskState",
    "TaskStatus",
    "UpdateMemoryRequest",
    "detail_of",
    "memory_detail",
    "message_detail",
    "preference_detail",
    "user_of_agent",
]

KEY_LENGTH = 60
"""How many characters `memory_key` of a memory without a title has at most."""
Names = Annotated[list[Text], Field(max_length=100)]
"""Several users, or several agents."""
TaskState = Literal["running", "completed", "failed"]


def user_of_agent(agent_id: str) -> str:
    """The user id under which the memories of an agent that serves no particular user are kept."""
    return f"agent:{agent_id}"


class Whose(BaseModel):
    """The user whose memories are meant; without a user, an agent whose own memories are meant."""

    user_id: Text | None = None
    agent_id: Text | None = Field(None, description="without user_id: the agent's own memories")

    @model_validator(mode="after")
    def check_owner(self) -> Whose:
        """Refuse a request that names neither."""
        if not self.user_id and not self.agent_id:
            raise ValueError("give user_id or agent_id: it is not clear whose memories are meant")
        return self

    @property
    def owner(self) -> str:
        """The id of the user that the request is about."""
        return self.user_id or user_of_agent(self.agent_id or "")

    def touched(self) -> list[Touched]:
        """The user whose memories are meant."""
        return [Touched(self.owner)]


class AddMessageRequest(BaseModel):
    """What was said in a conversation, to be remembered for one or several users."""

    messages: Annotated[list[TurnModel], Field(min_length=1)] | Annotated[str, Field(min_length=1)]
    user_id: Text | Names | None = None
    agent_id: Text | Names | None = Field(
        None, description="beside user_id: one agent, kept with the memories; alone: whose memories these are"
    )
    conversation_id: str | None = None
    info: dict[str, Any] | None = None
    tags: Tags | None = None
    app_id: str | None = None
    source: str | None = None
    async_mode: bool = Field(default=True, description="false: answer when the memories can be found")

    @model_validator(mode="after")
    def check_owners(self) -> AddMessageRequest:
        """Refuse a request that names nobody, or several agents beside a user."""
        if not self.owners:
            raise ValueError("give user_id or agent_id: it is not clear whose memories these are")
        if self.user_id and len(_listed(self.agent_id)) > 1:
            raise ValueError("give one agent_id beside user_id: a memory has one agent")
        return self

    @property
    def owners(self) -> list[str]:
        """The user ids under which the messages are remembered."""
        users = _listed(self.user_id) or [user_of_agent(agent) for agent in _listed(self.agent_id)]
        return list(dict.fromkeys(users))

    def touched(self) -> list[Touched]:
        """The users, and their own cubes."""
        return [Touched(owner, ("",)) for owner in self.owners]

    def add_requests(self, item_id: str) -> list[AddRequest]:
        """The same as one request to `/product/add` for each user, under one item id."""
        agent = next(iter(_listed(self.agent_id)), None)
        more = {"agent_id": agent, "app_id": self.app_id}
        info = {name: value for name, value in more.items() if value} | (self.info or {})
        return [
            AddRequest(
                user_id=owner,
                messages=self.messages,
                session_id=self.conversation_id or None,
                item_id=item_id,
                info=info or None,
                source=self.source,
                custom_tags=self.tags,
                async_mode="async" if self.async_mode else "sync",
            )
            for owner in self.owners
        ]


class SearchMemoryRequest(Whose):
    """What to look for. Knowledge bases, tools and skills are not kept here: their fields have no effect."""

    query: Text
    conversation_id: Text | None = Field(
        None, description="the present conversation: its memories are raised"
    )
    memory_limit_number: int = Field(6, ge=1, le=1000)
    include_preference: bool = True
    preference_limit_number: int = Field(6, ge=0, le=1000)
    relativity: float | None = Field(
        None, ge=0, le=1, description="hits with a lower score are dropped; none: 0.45; 0: drops none"
    )
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}')

    def search_request(self) -> SearchRequest:
        """The same as a request to `/product/search`."""
        given = {} if self.relativity is None else {"relativity": self.relativity}
        return SearchRequest(
            query=self.query,
            user_id=self.owner,
            session_id=self.conversation_id,
            top_k=self.memory_limit_number,
            include_preference=self.include_preference,
            pref_top_k=self.preference_limit_number,
            filter=self.filter,
            agent_id=self.agent_id if self.user_id else None,
            **given,
        )


class GetMemoryRequest(Whose):
    """Which page of the memories of a user to read."""

    include_preference: bool = True
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}, as in a search')
    page: int = Field(1, ge=1, le=1_000_000, description="from 1")
    size: int = Field(10, ge=1, le=1000, description="memories, and preferences, on one page")


class GetMessageRequest(Whose):
    """Which messages of a user to read: the last ones of a conversation."""

    conversation_id: Text | None = Field(None, description="none: the last messages of all conversations")
    message_limit_number: int | None = Field(None, ge=1, le=1000, description="none: 6")


class AddFeedbackRequest(Whose):
    """What a user says about an answer."""

    feedback_content: Text
    conversation_id: Text | None = None
    feedback_time: Text | None = Field(None, description="when it was given, in words or as a date")
    app_id: Text | None = None

    @model_validator(mode="after")
    def check_words(self) -> AddFeedbackRequest:
        """Refuse feedback without words."""
        if not self.feedback_content.strip():
            raise ValueError("feedback_content must have words")
        return self

    def touched(self) -> list[Touched]:
        """The user, and the user's own cube."""
        return [Touched(self.owner, ("",))]

    def feedback_request(self, item_id: str) -> FeedbackRequest:
        """The same as a request to `/product/feedback`."""
        info = {name: value for name in ("agent_id", "app_id") if (value := getattr(self, name))}
        return FeedbackRequest(
            user_id=self.owner,
            history=None,
            feedback_content=self.feedback_content,
            session_id=self.conversation_id,
            feedback_time=self.feedback_time,
            item_id=item_id,
            info=info or None,
        )


class AskRequest(SearchMemoryRequest):
    """A question that the language model answers with what is remembered, within a conversation."""

    query: Text = Field(min_length=1)
    system_prompt: Text | None = None
    model_name: Text | None = Field(None, description="the model of the settings, or nothing")
    max_tokens: int | None = Field(None, ge=1, description="tokens of the answer, at most")
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    add_message_on_answer: bool = Field(
        default=True, description="whether question and answer are remembered"
    )
    stream: bool = Field(default=False, description="whether the answer comes part by part, as events")

    def touched(self) -> list[Touched]:
        """The user, and the user's own cube if question and answer are remembered."""
        return [Touched(self.owner, ("",) if self.add_message_on_answer else ())]

    def chat_request(self, said: Iterable[MessageDetail]) -> ChatRequest:
        """The same as a request to `/product/chat/complete`, after what was said in the conversation."""
        given = {} if self.relativity is None else {"relativity": self.relativity}
        return ChatRequest(
            user_id=self.owner,
            query=self.query,
            history=[TurnModel(role=message["role"], content=message["content"]) for message in said],
            system_prompt=self.system_prompt,
            top_k=self.memory_limit_number,
            session_id=self.conversation_id,
            include_preference=self.include_preference,
            pref_top_k=self.preference_limit_number,
            model_name_or_path=self.model_name,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            add_message_on_answer=self.add_message_on_answer,
            filter=self.filter,
            **given,
        )


class StatusRequest(BaseModel):
    """Which task to look at."""

    task_id: Text = Field(description="as `add/message` or `add/feedback` has answered it")


class UpdateMemoryRequest(BaseModel):
    """How to change a memory. Fields that are left out stay as they are."""

    memory_id: Text
    user_id: Text | None = Field(None, description="whose memory it is, if several users have this id")
    content: Text | None = None
    title: Text | None = None
    status: Literal["activated", "archived", "deleted"] | None = None

    @model_validator(mode="after")
    def check_change(self) -> UpdateMemoryRequest:
        """Refuse a request that changes nothing."""
        if not self.content and not self.title and not self.status:
            raise ValueError("give content, title or status: there is nothing to change")
        return self


class DeleteMemoryRequest(BaseModel):
    """Which memories to delete: `memory_ids`; or all of a user or an agent, or those that pass a filter."""

    memory_ids: list[Text] | None = Field(None, max_length=1000)
    user_id: Text | None = Field(None, description="whose memories; alone: all memories of the user")
    agent_id: Text | None = Field(None, description="instead of user_id: the agent's own memories")
    filter: dict[str, Any] | None = Field(None, description='{"and" | "or": [conditions]}, as in a search')
    memory_type: Text | None = Field(None, description="only memories of this type; not with memory_ids")

    @model_validator(mode="after")
    def check_owner(self) -> DeleteMemoryRequest:
        """Refuse a request that means two owners."""
        if self.user_id and self.agent_id:
            raise ValueError("give either user_id or agent_id: it is not clear whose memories are meant")
        return self

    def delete_request(self) -> DeleteRequest:
        """The same as a request to `/product/delete_memory`."""
        conditions = dict(self.filter or {})
        both = conditions.get("and", [])
        if self.memory_type and isinstance(both, list):
            conditions["and"] = [*both, {"memory_type": self.memory_type}]
        owner = self.user_id or (user_of_agent(self.agent_id) if self.agent_id else None)
        return DeleteRequest(user_id=owner, memory_ids=self.memory_ids, filter=conditions or None)


class AddedTask(TypedDict):
    """What was taken in, as a task whose status can be read."""

    success: bool
    task_id: str
    status: TaskState


class TaskStatus(TypedDict):
    """The status of a task."""

    task_id: str
    status: TaskState


class Detail(TypedDict):
    """What memories and preferences have in common. Times are epoch milliseconds."""

    id: str
    create_time: int
    update_time: int
    conversation_id: str | None
    status: str
    info: dict[str, Any] | None
    sources: list[dict[str, Any]]
    relativity: NotRequired[float]
    """In a search: how well it fits, 0 to 1."""


class MemoryDetail(Detail):
    """A memory."""

    memory_key: str
    """The title, or the beginning of the text."""
    memory_value: str
    memory_type: str
    confidence: float
    """Always 1: clients expect the field."""
    tags: list[str]


class PreferenceDetail(Detail):
    """A preference of the user."""

    preference_type: Literal["explicit_preference"]
    preference: str
    reasoning: str


class FoundDetails(TypedDict):
    """The memories that fit a query, best first. The lists of kinds that are not kept here are empty."""

    memory_detail_list: list[MemoryDetail]
    preference_detail_list: list[PreferenceDetail]
    message_detail_list: list[Any]
    tool_memory_detail_list: list[Any]
    skill_detail_list: list[Any]
    profile_detail_list: list[Any]
    event_detail_list: list[Any]
    preference_note: str
    """How a model should read the preferences."""


class DetailPage(TypedDict):
    """A page of memories, in the order in which they were learned, and a page of preferences."""

    memory_detail_list: list[MemoryDetail]
    preference_detail_list: list[PreferenceDetail]
    tool_memory_detail_list: list[Any]
    skill_detail_list: list[Any]
    profile_detail_list: list[Any]
    event_detail_list: list[Any]
    total: int
    """How many memories, or preferences if these are more, there are on all pages."""
    size: int
    current: int
    pages: int


class MessageDetail(TypedDict):
    """A message of a conversation. Times are epoch milliseconds."""

    message_id: str
    """The client's own id of the message, or the id of the memory that it became."""
    role: str
    content: str
    chat_time: str | None
    conversation_id: str | None
    create_time: int
    update_time: int


class Messages(TypedDict):
    """The last messages of a conversation, oldest first."""

    message_detail_list: list[MessageDetail]


class Spoken(TypedDict):
    """What the language model answers."""

    response: str


class ChangedMemory(TypedDict):
    """A memory that was changed."""

    success: bool
    memory_id: str


class DeletedAll(TypedDict):
    """Whether all memories that were meant are deleted."""

    success: bool


def detail_of(item: MemoryItem) -> MemoryDetail | PreferenceDetail:
    """A memory, or a preference, in the shape that the client reads."""
    return preference_detail(item) if item.kind == PREFERENCE else memory_detail(item)


def memory_detail(item: MemoryItem, score: float | None = None) -> MemoryDetail:
    """A memory in the shape that the client reads; `score` is that of a search."""
    return {
        **_detail(item, score),
        "memory_key": item.title or _beginning(item.text),
        "memory_value": item.text,
        "memory_type": type_of(item),
        "confidence": 1.0,
        "tags": list(item.tags),
    }


def preference_detail(item: MemoryItem, score: float | None = None) -> PreferenceDetail:
    """A preference in the shape that the client reads; `score` is that of a search."""
    return {
        **_detail(item, score),
        "preference_type": "explicit_preference",
        "preference": item.text,
        "reasoning": item.narrative or "",
    }


def _detail(item: MemoryItem, score: float | None) -> Detail:
    detail: Detail = {
        "id": item.id,
        "create_time": item.created_at,
        "update_time": item.updated_at,
        "conversation_id": item.session_id,
        "status": item.status,
        "info": item.info,
        "sources": [msgspec.structs.asdict(source) for source in item.sources],
    }
    if score is not None:
        detail["relativity"] = score
    return detail


def message_detail(item: MemoryItem) -> MessageDetail:
    """A turn of a conversation in the shape that the client reads."""
    source = item.sources[0] if item.sources else Source(item_id=item.id)
    return {
        "message_id": source.message_id or item.id,
        "role": source.role or "user",
        "content": item.text,
        "chat_time": source.chat_time,
        "conversation_id": item.session_id,
        "create_time": item.created_at,
        "update_time": item.updated_at,
    }


def _beginning(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= KEY_LENGTH else f"{line[: KEY_LENGTH - 1]}…"


def _listed(given: str | list[str] | None) -> list[str]:
    """One name or several, as a list."""
    return [name for name in ([given] if isinstance(given, str) else given or []) if name]
