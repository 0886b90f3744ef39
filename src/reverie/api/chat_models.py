"""What a client may send to talk with the model. Unknown fields are ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from reverie.api.memory_models import SearchRequest
from reverie.api.models import Cubes, Text, TurnModel
from reverie.api.routing import Touched
from reverie.models.interface import Sampling

__all__ = ["ChatRequest", "SuggestionsRequest"]


class ChatRequest(BaseModel):
    """A question that the language model answers with what is remembered."""

    user_id: Text
    query: Text = Field(min_length=1)
    mem_cube_id: Text | None = None
    readable_cube_ids: Cubes | None = Field(None, description="where to search; default: all cubes")
    writable_cube_ids: Cubes | None = Field(None, description="where question and answer are kept")
    history: list[TurnModel] | None = Field(None, description="what was said before")
    mode: Literal["fast", "fine", "mixture"] = "fast"
    system_prompt: Text | None = Field(
        None, description="instead of the server's own; memories stand at {memories}, or at its end"
    )
    top_k: int = Field(10, ge=1, le=1000)
    session_id: Text | None = None
    include_preference: bool = True
    pref_top_k: int = Field(6, ge=0, le=1000)
    model_name_or_path: Text | None = Field(None, description="the model of the settings, or nothing")
    max_tokens: int | None = Field(None, ge=1, description="tokens of the answer, at most")
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    add_message_on_answer: bool = Field(
        default=True, description="whether question and answer are remembered"
    )
    relativity: float = Field(0.45, ge=0, le=1)
    threshold: float | None = Field(
        0.5, ge=0, le=1, description="memories with a lower score are left out, but for the three best"
    )
    filter: dict[str, Any] | None = None
    internet_search: bool = False

    def touched(self) -> list[Touched]:
        """The user and the cubes that are searched and written."""
        return [
            Touched(self.user_id, (*self.search.cubes, *(self.cubes if self.add_message_on_answer else ())))
        ]

    @property
    def cubes(self) -> list[str]:
        """The cubes that keep question and answer; an empty name means the user's own cube."""
        return list(dict.fromkeys(self.writable_cube_ids or [self.mem_cube_id or ""]))

    @property
    def search(self) -> SearchRequest:
        """The search for what helps to answer."""
        return SearchRequest(
            query=self.query,
            user_id=self.user_id,
            mode=self.mode,
            chat_history=self.history,
            internet_search=self.internet_search,
            mem_cube_id=self.mem_cube_id,
            readable_cube_ids=self.readable_cube_ids,
            session_id=self.session_id,
            top_k=self.top_k,
            relativity=self.relativity,
            include_preference=self.include_preference,
            pref_top_k=self.pref_top_k,
            filter=self.filter,
        )

    @property
    def sampling(self) -> Sampling:
        """How the answer is to be made."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p)


class SuggestionsRequest(BaseModel):
    """For whom to suggest questions."""

    user_id: Text
    mem_cube_id: Text
    language: Literal["zh", "en"] = "zh"
    message: list[TurnModel] | Text | None = Field(None, description="what was said last")

    def touched(self) -> list[Touched]:
        """The user and the cube that are read."""
        return [Touched(self.user_id, (self.mem_cube_id,))]
