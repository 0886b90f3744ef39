"""The handler of the label `summary`: what a session was about, in five short parts.

Each session has one summary in each of its cubes, which grows with it. It is made from what was said and from
the titles of what was done, never from the response of a tool: it stands in the context of the next session.
"""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.effect import Remember, Revise, Source
from reverie.failures import InvalidWorkError
from reverie.handlers.observation import file_tags, is_recent
from reverie.message import derived_id
from reverie.observation import Summary, read_content
from reverie.outcome import Bury, Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message
    from reverie.models.interface import Completion

__all__ = ["summary", "summary_id"]

PROMPT = Template(files(__package__).joinpath("prompts/summarize.txt").read_text("utf-8"))
PARTS = ("request", "investigated", "learned", "completed", "next_steps")
NAMES = ("Request", "Investigated", "Learned", "Completed", "Next steps")
MOST_ITEMS = 400
"""How many of the last items of a session a summary is made from."""
LONGEST_LINE = 600
"""Characters of a turn that the model is shown."""
LONGEST_PROMPT = 16_000
LONGEST_PART = 600
MOST_FILES = 12
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": LONGEST_PART} for name in PARTS},
    "required": list(PARTS),
    "additionalProperties": False,
}


async def summary(messages: list[Message], ctx: Context) -> dict[Key, Done | Bury]:
    """Write the summary of one session, if there is anything new. A message runs alone."""
    (message,) = messages
    try:
        asked = read_content(message.content, Summary)
    except InvalidWorkError as error:
        return {message.key: Bury(str(error))}
    if asked.type == "compact":
        return {message.key: Done(effects=[_compact(message, asked)])}
    options: HandlerOptions = await ctx.options()
    items: list[MemoryItem] = await ctx.memory.session(MOST_ITEMS, message=message)
    session_id = message.session_id or ""
    ids = [summary_id(session_id, message.mem_cube_id), _former_id(session_id)]
    known = next(iter(await ctx.memory.items(ids)), None)
    told = [
        item
        for item in items
        if item.kind in {"turn", "observation"} and item.mem_cube_id == message.mem_cube_id
    ]
    newest = max((item.created_at for item in told), default=0)
    covered = (known.info or {}).get("covers_until", 0) if known is not None else -1
    if not asked.is_given and (not told or newest <= covered):
        return {message.key: Done()}
    if asked.is_given:
        parts = {name: getattr(asked, name) for name in PARTS}
        if asked.text:
            parts["completed"] = " ".join(part for part in (parts["completed"], asked.text) if part)
    elif options.has_language_model and is_recent(message, options):
        parts = await _by_model(told, message, ctx)
    else:
        parts = _by_rule(told)
    return {message.key: Done(effects=[_written(message, known, parts, told)])}


def summary_id(session_id: str, cube: str) -> str:
    """The id of the memory that is the summary of what a session did in one cube."""
    return f"{derived_id('summary', cube, session_id)}.0"


def _former_id(session_id: str) -> str:
    """The id that a summary had before ids named the cube; such a summary keeps it."""
    return f"{derived_id('summary', session_id)}.0"


def _written(
    message: Message, known: MemoryItem | None, parts: dict[str, str], told: Sequence[MemoryItem]
) -> Remember | Revise:
    newest = max((item.created_at for item in told), default=0)
    lines = [f"{name}: {parts[part]}" for name, part in zip(NAMES, PARTS, strict=True) if parts[part]]
    text = "\n".join(lines) or "Nothing was said or done."
    title = parts["request"][:160] or None
    info = {**(message.info or {}), **parts, "covers_until": newest}
    sources = tuple(source for item in told if item.kind == "turn" for source in item.sources)[-20:]
    if known is not None:
        return Revise(
            memory_id=known.id, version=known.version, text=text, title=title, info=info, sources=sources
        )
    return Remember(
        memory_id=summary_id(message.session_id or "", message.mem_cube_id),
        text=text,
        kind="summary",
        type="session",
        title=title,
        session_id=message.session_id,
        tags=file_tags(
            tuple(dict.fromkeys(path for item in told for path in _files(item, "files_modified")))
        ),
        info=info,
        sources=sources,
        importance=0.7,
    )


def _compact(message: Message, asked: Summary) -> Remember:
    """The agent's own summary before it forgets, word for word."""
    return Remember(
        memory_id=f"{message.item_id}.0",
        text=asked.text,
        kind="summary",
        type="compact",
        title="The agent's summary before its context was compacted",
        session_id=message.session_id,
        info=message.info,
        sources=(Source(item_id=message.item_id, role="assistant", type="system"),),
    )


async def _by_model(told: Sequence[MemoryItem], message: Message, ctx: Context) -> dict[str, str]:
    shown = "\n".join(_line(item) for item in told)[-LONGEST_PROMPT:]
    prompt = PROMPT.substitute(session=shown)

    async def ask() -> Any:
        completion: Completion = await ctx.models.complete(prompt, schema=SCHEMA, message=message)
        return msgspec.json.decode(completion.text)

    answer: dict[str, str] = await ctx.memo("summarize", ask, message=message)
    return {name: str(answer.get(name, "")).strip()[:LONGEST_PART] for name in PARTS}


def _by_rule(told: Sequence[MemoryItem]) -> dict[str, str]:
    """The same parts without a model: what was asked, the files, the beginning of the last answer."""
    prompts = [item.text for item in told if _role(item) == "user"]
    answers = [item.text for item in told if _role(item) == "assistant"]
    read = dict.fromkeys(path for item in told for path in _files(item, "files_read"))
    changed = dict.fromkeys(path for item in told for path in _files(item, "files_modified"))
    failed = [_title(item) for item in told if "failure" in item.concepts]
    request = _short(prompts[0]) if prompts else ""
    if len(prompts) > 1:
        request = f"{request} Last: {_short(prompts[-1])}"
    done = f"Changed {_listed(list(changed))}. " if changed else ""
    return {
        "request": request,
        "investigated": f"Read {_listed(list(read))}." if read else "",
        "learned": "; ".join(failed[-3:]),
        "completed": (done + (_short(answers[-1]) if answers else "")).strip(),
        "next_steps": "",
    }


def _line(item: MemoryItem) -> str:
    if item.kind == "observation":
        return f"Did: {_title(item)}"
    speaker = {"user": "User", "assistant": "Agent"}.get(_role(item) or "", "System")
    return f"{speaker}: {' '.join(item.text.split())[:LONGEST_LINE]}"


def _title(item: MemoryItem) -> str:
    """The title that the rules gave: no text of a tool's response is in it."""
    return str((item.info or {}).get("rule_title") or item.type or "")


def _role(item: MemoryItem) -> str | None:
    return item.sources[0].role if item.kind == "turn" and item.sources else None


def _files(item: MemoryItem, name: str) -> list[str]:
    found = (item.info or {}).get(name)
    return [path for path in found if isinstance(path, str)] if isinstance(found, list) else []


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - MOST_FILES} more" if len(paths) > MOST_FILES else ""
    return ", ".join(paths[:MOST_FILES]) + more


def _short(text: str, longest: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
