"""The handler of the label `memory_compression`: similar memories become one, which links to them.

Texts that are equal, or that another text of the same speaker contains, are merged without a language model.
Other groups of similar memories are written as one text by the model; without one they stay as they are, and
`reverie upkeep plan` lists them. Nobody's words are rewritten because they are merely similar.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.handlers.fan_out import fan_out_cubes
from reverie.handlers.grouping import MOST_TOKENS, Rules, identity, judged_key, merged_effects
from reverie.handlers.memory_lines import memory_lines
from reverie.handlers.upkeep import read_input, run_pass
from reverie.message import Message
from reverie.models.interface import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.memory.interface import Tenant
    from reverie.memory.item import MemoryItem
    from reverie.message import Key
    from reverie.outcome import Done

__all__ = ["RULES", "compress_prompt", "memory_compression"]

PROMPT = Template(files(__package__).joinpath("prompts/compress.txt").read_text("utf-8"))
WORDS = MOST_TOKENS // 2
"""How many words the model is asked for at most; a word has one or two tokens."""
SUMMARY = "summary"
"""The kind of what is merged from turns: it is nobody's own words."""


def _group_key(item: MemoryItem) -> Hashable | None:
    return identity(item)


RULES = Rules(label="memory_compression", contained=True, group_key=_group_key)


async def memory_compression(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Merge what is similar to what was changed since the last pass. A message runs alone."""
    (message,) = messages
    asked = read_input(message)
    if asked.interval_seconds is None:
        options: HandlerOptions = await ctx.options()
        asked = msgspec.structs.replace(asked, interval_seconds=options.compression_interval_s)
    if message.user_key:
        return {message.key: await _each_changed_cube(message, ctx, asked.interval_seconds or 0)}
    done, _ = await run_pass(message, ctx, RULES, settle_group, asked)
    return {message.key: done}


async def _each_changed_cube(message: Message, ctx: Context, interval_s: float) -> Done:
    """Send a message to each cube of the user that has changed: a trigger names a user, but no cube."""
    content = msgspec.json.encode({"interval_seconds": interval_s}).decode()

    def make(tenant: Tenant) -> Message:
        return Message(
            user_id=tenant[0],
            mem_cube_id=tenant[1],
            label=message.label,
            content=content,
            info=message.info,
            task_id=message.task_id,
        )

    return await fan_out_cubes(ctx, make, message.label)


def compress_prompt(members: Sequence[MemoryItem]) -> str:
    """The prompt that asks the model for one text."""
    return PROMPT.substitute(words=WORDS, memories=memory_lines(members))


class _Answer(msgspec.Struct, frozen=True):
    text: str | None = None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": ["string", "null"], "maxLength": 8 * MOST_TOKENS}},
    "required": ["text"],
}


async def settle_group(
    message: Message, ctx: Context, _: HandlerOptions, members: Sequence[MemoryItem]
) -> list[Effect]:
    """Ask the model for one text that says all; no text, or one that is too long, leaves all as it is."""
    own = identity(members[0])
    group = [item for item in members if identity(item) == own]
    if len(group) < 2:
        return []

    async def complete() -> dict[str, Any]:
        answer = await ctx.models.complete((ChatMessage("user", compress_prompt(group)),), schema=SCHEMA)
        return {"text": answer.text}

    kept = await ctx.memo(judged_key(message.label, group), complete)
    text = (msgspec.json.decode(kept["text"], type=_Answer).text or "").strip()
    if not text:
        return []
    (tokens,) = await ctx.models.count_tokens([text])
    if tokens > MOST_TOKENS:
        return []
    kind = SUMMARY if group[0].kind == "turn" else group[0].kind
    return merged_effects(group, text, kind=kind, read=kind != group[0].kind)
