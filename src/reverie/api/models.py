"""What a client may send. Unknown fields are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from reverie.api.routing import Touched
from reverie.message import Message, MessageLimits, UniquePolicy, content_text, new_item_id
from reverie.turn import Turn

__all__ = ["DEFAULT_USER", "AddRequest", "PushRequest", "SubmitRequest", "Text", "Whose"]


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
    """What one speaker said; `{"type": "text", "text": …}` is content without a speaker."""

    role: str = "user"
    content: str
    name: str | None = Field(None, description="the name of the speaker, which a search may mention")
    chat_time: str | None = Field(None, description="when it was said, in words or as a date")
    message_id: str | None = Field(None, description="the id of the message in the client's own system")

    @model_validator(mode="before")
    @classmethod
    def read_raw_item(cls, given: Any) -> Any:
        """Take the text of a raw item for its content."""
        if isinstance(given, dict) and "content" not in given and "text" in given:
            return given | {"content": given["text"]}
        return given

    @field_validator("content", mode="before")
    @classmethod
    def join_parts(cls, content: Any) -> Any:
        """Turn content in parts into the text of its text parts; a call of a tool may have no content."""
        if content is None:
            return ""
        if isinstance(content, list):
            return "\n".join(
                str(part["text"]) for part in content if isinstance(part, dict) and "text" in part
            )
        return content

    def turn(self) -> Turn:
        """The turn that is remembered."""
        return Turn(
            content=self.content,
            role=self.role,
            name=self.name,
            chat_time=self.chat_time,
            message_id=self.message_id,
        )


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
    info: dict[str, Any] | None = Field(
        None, description="kept with each memory; device_id, agent_id and domain can be searched by"
    )
    custom_tags: list[str] | None = Field(None, description="become the tags of each memory")

    @model_validator(mode="after")
    def check_content(self) -> AddRequest:
        """Refuse a request that has nothing to remember, or an id for more than one cube."""
        if not self.messages and not self.memory_content:
            raise ValueError("give messages or memory_content: there is nothing to remember")
        if self.item_id and len(self.cubes) > 1:
            raise ValueError("item_id can be given for one cube only")
        return self

    def touched(self) -> list[Touched]:
        """The user and the cubes that are written."""
        return [Touched(self.user_id, tuple(self.cubes))]

    @property
    def cubes(self) -> list[str]:
        """The cubes to write into; an empty name means the user's own cube."""
        return self.writable_cube_ids or [self.mem_cube_id or ""]

    @property
    def turns(self) -> list[Turn]:
        """The turns of the request, in order."""
        if isinstance(self.messages, list):
            return [model.turn() for model in self.messages]
        return [Turn(content=self.messages or self.memory_content or "")]

    @property
    def info_with_tags(self) -> dict[str, Any] | None:
        """`info` with `custom_tags` added to those that it has."""
        if not self.custom_tags:
            return self.info
        before = (self.info or {}).get("custom_tags")
        tags = before if isinstance(before, list) else []
        new = [tag for tag in dict.fromkeys(self.custom_tags) if tag not in tags]
        return {**(self.info or {}), "custom_tags": [*tags, *new]}


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
