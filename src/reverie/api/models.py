"""What a client may send. Unknown fields are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from reverie.message import Message, MessageLimits, UniquePolicy, content_text, new_item_id
from reverie.turn import Turn

__all__ = ["AddRequest", "PushRequest", "SearchRequest", "SubmitRequest", "Whose"]


def _check_text(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can express and no storage can keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("text", "is not valid Unicode text") from error
    return text


Text = Annotated[str, AfterValidator(_check_text)]
"""Text that is checked here. The fields of a message are checked later, with the message."""


class TurnModel(BaseModel):
    """What one speaker said."""

    role: str = "user"
    content: str
    chat_time: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def join_parts(cls, content: Any) -> Any:
        """Turn content in parts into the text of its text parts."""
        if isinstance(content, list):
            return "\n".join(
                str(part["text"]) for part in content if isinstance(part, dict) and "text" in part
            )
        return content


class AddRequest(BaseModel):
    """Something to remember: `messages`, or `memory_content`."""

    user_id: str
    mem_cube_id: str | None = None
    writable_cube_ids: list[str] | None = None
    messages: list[TurnModel] | str | None = None
    memory_content: str | None = None
    session_id: str | None = None
    task_id: str | None = None
    item_id: str | None = Field(None, description="repeat a request with the same id and it is kept once")
    info: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_content(self) -> AddRequest:
        """Refuse a request that has nothing to remember, or an id for more than one cube."""
        if not self.messages and not self.memory_content:
            raise ValueError("give messages or memory_content: there is nothing to remember")
        if self.item_id and len(self.cubes) > 1:
            raise ValueError("item_id can be given for one cube only")
        return self

    @property
    def cubes(self) -> list[str]:
        """The cubes to write into; an empty name means the user's own cube."""
        return self.writable_cube_ids or [self.mem_cube_id or ""]

    @property
    def turns(self) -> list[Turn]:
        """The turns of the request, in order."""
        if isinstance(self.messages, list):
            return [Turn(content=t.content, role=t.role, chat_time=t.chat_time) for t in self.messages]
        return [Turn(content=self.messages or self.memory_content or "")]


class Whose(BaseModel):
    """The user, device and agent of a timed task; without any of them, the task that belongs to no user."""

    user_id: Text | None = None
    device_id: Text | None = None
    agent_id: Text | None = None


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

    @property
    def turns(self) -> list[Turn]:
        """The turns of the request, in order."""
        if isinstance(self.messages, list):
            return [Turn(content=t.content, role=t.role, chat_time=t.chat_time) for t in self.messages]
        return [Turn(content=self.messages or self.content or "", role=self.role)]


class SearchRequest(BaseModel):
    """What to look for."""

    query: Text
    user_id: Text
    mem_cube_id: Text | None = None
    readable_cube_ids: list[Text] | None = None
    top_k: int = Field(10, ge=1, le=1000)


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
