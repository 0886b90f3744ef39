"""What a client may send. Unknown fields are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from reverie.api.routing import Touched
from reverie.errors import NotSupportedError, shown
from reverie.message import Message, MessageLimits, UniquePolicy, content_text, new_item_id
from reverie.turn import Turn

__all__ = [
    "DEFAULT_USER",
    "AddRequest",
    "Cubes",
    "Cursor",
    "PageLimit",
    "PushRequest",
    "SubmitRequest",
    "Tags",
    "Text",
    "TurnModel",
    "Whose",
]


def _check_text(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can express and no storage can keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("text", "is not valid Unicode text") from error
    return text


Text = Annotated[str, AfterValidator(_check_text)]
"""Text that is checked here. The fields of a message are checked later, with the message."""
Cubes = Annotated[list[Text], Field(max_length=100)]
"""The cubes that one request names. Each of them costs the server a search or a message."""
Tag = Annotated[str, Field(max_length=200), AfterValidator(_check_text)]
Tags = Annotated[list[Tag], Field(max_length=100)]
"""The tags of one memory."""
Cursor = Annotated[str | None, Query(description="the `next` of the page before")]
PageLimit = Annotated[int, Query(ge=1, le=1000, description="entries of one page")]


class TurnModel(BaseModel):
    """What one speaker said; `{"type": "text", "text": …}` is content without a speaker."""

    role: str = "user"
    content: str
    name: str | None = Field(None, description="the name of the speaker, which a search may mention")
    chat_time: str | None = Field(None, description="when it was said, in words or as a date")
    message_id: str | None = Field(None, description="the id of the message in the client's own system")
    tool_call_id: str | None = Field(None, description="of a tool's answer: its id, if message_id is missing")

    @model_validator(mode="before")
    @classmethod
    def read_raw_item(cls, given: Any) -> Any:
        """Take the text of a raw item for its content; the calls of tools may have no content."""
        if not isinstance(given, dict) or "content" in given:
            return given
        if "tool_calls" in given:
            return given | {"content": ""}
        if "type" in given:
            return given | {"content": _text_of_part(given)}
        return given | {"content": given["text"]} if "text" in given else given

    @field_validator("content", mode="before", json_schema_input_type=str | list[str | dict[str, Any]] | None)
    @classmethod
    def join_parts(cls, content: Any) -> Any:
        """Turn content in parts into the text of its parts; a call of a tool may have no content."""
        if content is None:
            return ""
        if isinstance(content, list):
            return _text_of_parts(content)
        return content

    def turn(self) -> Turn:
        """The turn that is remembered."""
        return Turn(
            content=self.content,
            role=self.role,
            name=self.name,
            chat_time=self.chat_time,
            message_id=self.message_id or self.tool_call_id,
        )


FILE = "file"
"""The type of parts that are files."""


def _text_of_parts(parts: list[Any]) -> str:
    """The text of the parts of a message; pictures and sounds beside a text are left out."""
    with_text = [part for part in parts if not isinstance(part, dict) or "text" in part]
    files = [part for part in parts if isinstance(part, dict) and part.get("type") == FILE]
    return "\n".join(_text_of_part(part) for part in files + with_text or parts)


def _text_of_part(part: Any) -> str:
    """The text of a part of a message; `NotSupportedError` for files, pictures and sounds."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise PydanticCustomError("part", "a part of a message must be an object with a text")
    kind, text = part.get("type"), part.get("text")
    if isinstance(text, str) and kind != FILE:
        return text
    if kind == "text" or not isinstance(kind, str):
        raise PydanticCustomError("part", "a part of the type text must have a text")
    raise NotSupportedError(f"a message with a part of the type {shown(kind)}", "only text can be remembered")


class AddRequest(BaseModel):
    """Something to remember: `messages`, `memory_content`, the file `doc_path`, or several of them."""

    user_id: str
    mem_cube_id: str | None = None
    writable_cube_ids: Cubes | None = None
    messages: list[TurnModel] | str | None = None
    memory_content: str | None = Field(None, description="a text; beside messages, one more turn of the user")
    doc_path: str | None = Field(None, description="a text file below the setting documents_folder")
    chat_history: list[TurnModel] | None = Field(
        None, description="what was said before: with is_feedback, what the feedback is about; never kept"
    )
    session_id: str | None = Field(None, description="the conversation; default: default_session")
    task_id: str | None = None
    async_mode: Literal["async", "sync"] = Field(
        "async", description="sync: answer when a search finds what was added"
    )
    mode: Literal["fast", "fine"] | None = Field(
        None, description="with sync; fine, the default: also wait for the facts that are extracted"
    )
    is_feedback: bool = Field(
        default=False, description="the last message of the user is feedback to chat_history and messages"
    )
    is_upload_skill: bool = False
    item_id: str | None = Field(None, description="repeat a request with the same id and it is kept once")
    info: dict[str, Any] | None = Field(
        None, description="kept with each memory; device_id, agent_id and domain can be searched by"
    )
    custom_tags: Tags | None = Field(None, description="become the tags of each memory")
    manager_user_id: str | None = Field(None, description="kept in info, as project_id and source are")
    project_id: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def check_content(self) -> AddRequest:
        """Refuse a request that has nothing to remember, or an id for more than one cube."""
        if not self.messages and not self.memory_content and not self.doc_path:
            raise ValueError("give messages, memory_content or doc_path: there is nothing to remember")
        if self.item_id and len(self.cubes) > 1:
            raise ValueError("item_id can be given for one cube only")
        if self.is_upload_skill:
            raise NotSupportedError("is_upload_skill", "there are no memories of skills")
        return self

    def touched(self) -> list[Touched]:
        """The user and the cubes that are written."""
        return [Touched(self.user_id, tuple(self.cubes))]

    @property
    def cubes(self) -> list[str]:
        """The cubes to write into, each once; an empty name means the user's own cube."""
        return list(dict.fromkeys(self.writable_cube_ids or [self.mem_cube_id or ""]))

    @property
    def waits(self) -> bool:
        """Whether the answer waits until the memories are written."""
        return self.async_mode == "sync"

    @property
    def waits_for_facts(self) -> bool:
        """Whether the answer also waits for the facts that a language model extracts."""
        return self.waits and self.mode != "fast"

    @property
    def turns(self) -> list[Turn]:
        """The turns of the request, in order; those of a document come after them."""
        given = self.messages or []
        turns = [Turn(content=given)] if isinstance(given, str) else [model.turn() for model in given]
        return [*turns, Turn(content=self.memory_content)] if self.memory_content else turns

    @property
    def full_info(self) -> dict[str, Any] | None:
        """`info` with `custom_tags` added to those that it has, and with further fields of the request."""
        others = {"manager_user_id": self.manager_user_id, "project_id": self.project_id}
        others |= {"source": self.source, "doc_path": self.doc_path}
        info = {name: value for name, value in others.items() if value} | (self.info or {})
        if self.custom_tags:
            before = info.get("custom_tags")
            tags = before if isinstance(before, list) else []
            new = [tag for tag in dict.fromkeys(self.custom_tags) if tag not in tags]
            info["custom_tags"] = [*tags, *new]
        return info or self.info


class Whose(BaseModel):
    """The user, device and agent of a timed task; without any of them, the task that belongs to no user."""

    user_id: Text | None = None
    device_id: Text | None = None
    agent_id: Text | None = None

    def touched(self) -> list[Touched]:
        """The user with all cubes; none: the task that belongs to no user."""
        return [Touched(self.user_id, whole=True)]


DEFAULT_USER = "default"
"""The user of a pushed message that names none."""


class PushRequest(Whose):
    """What was said in a chat: `messages`, or `content` and its `role`."""

    session_id: str | None = None
    mem_cube_id: str | None = None
    messages: list[TurnModel] | str | None = None
    content: str | None = None
    role: str = "user"
    item_id: str | None = Field(None, description="repeat a request with the same id and it is kept once")

    @model_validator(mode="after")
    def check_content(self) -> PushRequest:
        """Refuse a request that says nothing, or says it twice."""
        if not self.messages and not self.content:
            raise ValueError("give messages, or content: nothing was said")
        if self.messages and self.content:
            raise ValueError("give either messages or content, not both")
        return self

    def touched(self) -> list[Touched]:
        """The user and the cube that are written."""
        return [Touched(self.user_id or DEFAULT_USER, (self.mem_cube_id or "",))]

    @property
    def turns(self) -> list[Turn]:
        """The turns of the request, in order."""
        if isinstance(self.messages, list):
            return [model.turn() for model in self.messages]
        return [Turn(content=self.messages or self.content or "", role=self.role)]


class MessageModel(BaseModel):
    """One message, as clients of the scheduler send it."""

    user_id: str
    label: str
    content: Any = Field("", description="text, or any other JSON value, which is kept as JSON text")
    item_id: str = Field(default_factory=new_item_id)
    mem_cube_id: str = ""
    session_id: str | None = None
    task_id: str | None = None
    trace_id: str | None = None
    user_name: str | None = None
    info: dict[str, Any] | None = None
    timestamp: datetime | None = None
    due: datetime | None = None
    deadline: datetime | None = None
    depends_on: tuple[Text, ...] = ()
    if_dependency_fails: Literal["fail", "run"] = "fail"
    unique_key: str | None = None
    unique_window_s: float = Field(0, ge=0)
    unique_policy: UniquePolicy = "skip"

    def message(self, limits: MessageLimits) -> Message:
        """Make the message; its content is text, or the JSON text of any other value."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Message(**fields | {"content": content_text(self.content, limits)})


class SubmitRequest(BaseModel):
    """Messages to hand over, all or none."""

    messages: list[MessageModel] = Field(min_length=1, max_length=10_000)

    def touched(self) -> list[Touched]:
        """The users and cubes of the messages."""
        return [Touched(model.user_id, (model.mem_cube_id,)) for model in self.messages]
