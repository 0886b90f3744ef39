"""The handler of the label `observation`: what an agent did with a tool becomes a memory.

Titles, narratives and facts are made by rule. With a language model they are made by the model, as long as
the session is young and the hour's tokens last; then by rule again.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.effect import Remember, Source
from reverie.failures import InvalidWorkError
from reverie.handlers.observation_rules import Described, describe
from reverie.models.tokens import tokens_in
from reverie.observation import Observation, read_content
from reverie.outcome import Bury, Done
from reverie.turn import memory_id_of

if TYPE_CHECKING:
    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.message import Key, Message
    from reverie.models.interface import Completion

__all__ = ["file_tags", "is_recent", "observation"]

PROMPT = Template(files(__package__).joinpath("prompts/observe.txt").read_text("utf-8"))
LONGEST_PART = 6000
"""Characters of a tool's input, and of its response, that the model is shown."""
ANSWER_TOKENS = 400
"""About how many tokens an answer has: they are set aside in the budget of the hour."""
MOST_FILES = 50
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 200},
        "narrative": {"type": "string", "maxLength": 1000},
        "facts": {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 5},
        "concepts": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
    },
    "required": ["title", "narrative", "facts", "concepts"],
    "additionalProperties": False,
}


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    narrative: str = ""
    facts: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()


async def observation(messages: list[Message], ctx: Context) -> dict[Key, Done | Bury]:
    """Remember each observation. One that cannot be read is buried alone."""
    options: HandlerOptions = await ctx.options()
    answers = await asyncio.gather(*(_observed(message, ctx, options) for message in messages))
    return {message.key: answer for message, answer in zip(messages, answers, strict=True)}


async def _observed(message: Message, ctx: Context, options: HandlerOptions) -> Done | Bury:
    try:
        seen = read_content(message.content, Observation)
    except InvalidWorkError as error:
        return Bury(str(error))
    ruled = Described(seen.title or f"Used {seen.type}") if seen.tool is None else describe(seen.tool)
    told = ruled
    if (
        seen.tool is not None
        and not seen.title
        and options.has_language_model
        and is_recent(message, options)
    ):
        told = await _by_model(seen, ruled, message, ctx, options)
    files_read = seen.files_read or ruled.files_read
    files_modified = seen.files_modified or ruled.files_modified
    info = {
        **(message.info or {}),
        "rule_title": ruled.title,
        **({"files_read": files_read} if files_read else {}),
        **({"files_modified": files_modified} if files_modified else {}),
        **({"cut": seen.cut} if seen.cut else {}),
        **({"tool_use_id": seen.tool.tool_use_id} if seen.tool and seen.tool.tool_use_id else {}),
    }
    title = seen.title or told.title
    remembered = Remember(
        memory_id=memory_id_of(message, 0),
        text=title,
        kind="observation",
        type=seen.type,
        title=title,
        narrative=seen.narrative or told.narrative or None,
        facts=seen.facts or told.facts,
        concepts=seen.concepts or told.concepts,
        session_id=message.session_id,
        agent_id=_agent(message),
        tags=file_tags((*files_read, *files_modified)),
        info=info,
        sources=(Source(item_id=message.item_id, role="tool", name=seen.type, type="system"),),
        valid_from=_moment(message),
    )
    return Done(effects=[remembered])


async def _by_model(
    seen: Observation, ruled: Described, message: Message, ctx: Context, options: HandlerOptions
) -> Described:
    """What the model says of a call; what the rules say if the tokens of the hour are spent."""
    tool = seen.tool
    assert tool is not None
    prompt = PROMPT.substitute(
        tool=tool.name, input=_shown(tool.input), response=_shown(tool.error or tool.response)
    )
    wanted = tokens_in(prompt) + ANSWER_TOKENS

    async def ask() -> dict[str, Any] | None:
        if not await ctx.models.set_aside(wanted, options.observation_tokens_per_hour, message=message):
            return None
        completion: Completion = await ctx.models.complete(prompt, schema=SCHEMA, message=message)
        unused = wanted - completion.input_tokens - completion.output_tokens
        await ctx.models.set_aside(-unused, options.observation_tokens_per_hour, message=message)
        answer: dict[str, Any] = msgspec.json.decode(completion.text)
        return answer

    answer = await ctx.memo("observe", ask, message=message)
    if answer is None:
        return ruled
    made = msgspec.convert(answer, _Answer)
    if not made.title.strip():
        return ruled
    return ruled._replace(
        title=made.title.strip(), narrative=made.narrative, facts=made.facts, concepts=made.concepts
    )


def is_recent(message: Message, options: HandlerOptions) -> bool:
    """Whether tokens may be spent for a message: not if its session may have ended long ago."""
    made = _moment(message)
    return made is None or options.now - made <= options.session_timeout_ms


def file_tags(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The tags by which an item is found by its files: each path, and each name."""
    tags: dict[str, None] = {}
    for path in paths[:MOST_FILES]:
        tags[f"file:{path}"] = None
        tags[f"file:{path.rstrip('/').rpartition('/')[2]}"] = None
    return tuple(tags)


def _moment(message: Message) -> int | None:
    return None if message.timestamp is None else round(message.timestamp.timestamp() * 1000)


def _agent(message: Message) -> str | None:
    agent = (message.info or {}).get("agent_id")
    return agent if isinstance(agent, str) and agent else None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_PART else f"{text[:LONGEST_PART]} …"
