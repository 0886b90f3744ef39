"""Questions of the server itself to the language model: for searches, chats and suggestions."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.logs import get_logger
from reverie.failures import BudgetError, WorkError
from reverie.message import new_item_id
from reverie.models.interface import ChatMessage, ModelMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reverie.face.scheduler import AsyncScheduler
    from reverie.turn import Turn

__all__ = ["MODEL_FAILURES", "ask_for_json", "in_lines", "one_line", "prompt_of", "reason_of"]

log = get_logger(__name__)

MODEL_FAILURES = (ModelMissingError, WorkError, TimeoutError)
"""The errors of `ask_for_json`: no model, no budget, no answer, or none in time."""
LONGEST_LINE = 1000
"""How many characters of a text a prompt shows."""


async def ask_for_json(
    scheduler: AsyncScheduler,
    prompt: str,
    schema: dict[str, Any],
    *,
    tenant: tuple[str, str],
    label: str,
    within_s: float,
) -> Any:
    """The answer of the model to a prompt, as JSON that fits the schema. The tenant pays."""
    async with asyncio.timeout(within_s):
        completion = await scheduler.runtime.gateway.complete(
            [ChatMessage("user", prompt)],
            schema=schema,
            tenant=tenant,
            label=label,
            key=new_item_id(),
            within_s=within_s,
        )
    return msgspec.json.decode(completion.text)


def reason_of(error: Exception, within_s: float) -> str:
    """Why the model gave no answer, for callers: the log has what the provider said."""
    if isinstance(error, ModelMissingError | BudgetError):
        return str(error)
    log.warning("model.not_asked", error=str(error), kind=type(error).__name__)
    if isinstance(error, WorkError):
        return f"the language model gave no answer ({error.kind})"
    return f"the language model gave no answer within {within_s:g} s"


def prompt_of(name: str, **values: str) -> str:
    """The prompt in `prompts/{name}.txt`, with these values in it."""
    return Template(files(__package__).joinpath(f"prompts/{name}.txt").read_text("utf-8")).substitute(values)


def in_lines(turns: Iterable[Turn]) -> str:
    """Turns for a prompt, one on each line; `none` if there are none."""
    return "\n".join(f"{turn.name or turn.role}: {one_line(turn.content)}" for turn in turns) or "none"


def one_line(text: str) -> str:
    """The beginning of a text in one line, so that no text can pass for another one."""
    return " ".join(text.split())[:LONGEST_LINE]
