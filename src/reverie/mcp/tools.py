"""The tools of the MCP server, each a plain function: `search`, then `timeline`, then `details`.

Each step answers more about fewer memories. A tool is called with the scheduler, with the `Reach` of its
caller, and with the arguments of the request, as its signature says. Rights are those of `current_principal`:
what the caller may not read looks as if it did not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import Field

from reverie.base.clock import from_epoch_ms
from reverie.capture.intake import add_message
from reverie.errors import InvalidSelectionError, MemoryDeletedError, UnknownMemoryError, shown
from reverie.face.feedback import governed_feedback
from reverie.face.scheduler import AsyncScheduler
from reverie.mcp.answers import (
    Accepted,
    Details,
    Hits,
    Line,
    Lines,
    LinkLine,
    Memory,
    Origin,
    SessionLine,
    Sessions,
    ToolText,
)
from reverie.memory.feedback import FeedbackInput
from reverie.message import Message, new_item_id
from reverie.models.tokens import tokens_in
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.memory.item import LinkedItem, MemoryItem

__all__ = ["TOOLS", "Reach", "Tool"]

LONGEST_TITLE = 120
"""How many characters of a text stand for a title."""
LONGEST_QUERY = 4000
"""How many characters a query may have."""
MOST_IDS = 50
"""How many memories one call may name."""
MOST_LINKS = 20
"""How many links, and how many sources, of a memory `details` shows."""
MOST_OF_NAME = 200
"""Among how many memories about files of one name those about a longer path are looked for."""
LONG_FIELDS = frozenset(
    {"title", "text", "narrative", "facts", "concepts", "from_tool_response", "files_read", "files_modified"}
)
"""The fields of a memory that are cut if it is too long for an answer."""

Limit = Annotated[int, Field(ge=1, le=50, description="at most so many")]
Around = Annotated[int, Field(ge=0, le=50)]
Id = Annotated[str, Field(max_length=512)]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Whose memories a call is about."""

    user_id: str
    mem_cube_id: str | None = None
    """The cube of the project; None: every cube of the user, and new memories go to the user's own one."""
    beside: tuple[str, ...] = ()
    """Cubes that are searched beside the one of the project."""
    spools: bool = False
    """Whether new messages wait on disk while the queue is away."""

    @property
    def cubes(self) -> tuple[str, ...]:
        """The cubes to search; empty: all."""
        return () if self.mem_cube_id is None else tuple(dict.fromkeys((self.mem_cube_id, *self.beside)))


async def search(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    query: Annotated[str, Field(max_length=LONGEST_QUERY, description="words, names or a question")],
    limit: Limit = 10,
    kind: Annotated[Id, Field(description="only this kind: observation, summary, turn, fact, …")] = "",
    file: Annotated[Id, Field(description="only what read or changed this file")] = "",
) -> Hits:
    """Find memories, one line each. Then read the ones that matter with details."""
    found = await scheduler.memory.search(
        query,
        user_id=reach.user_id,
        mem_cube_ids=reach.cubes,
        limit=MOST_OF_NAME if "/" in file else limit,
        kinds=(kind,) if kind else (),
        tags=(f"file:{_name(file)}",) if file else (),
    )
    hits = [hit for hit in found if not file or _use_of(hit.item, file)][:limit]
    lines = [_line(reach, hit.item, score=round(hit.score, 2)) for hit in hits]
    return Hits(hits=lines, notice=" ".join(found.degraded) or None)


async def timeline(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    memory_id: Annotated[Id, Field(description="show what came before and after this memory")] = "",
    session_id: Annotated[Id, Field(description="or: show what happened in this session")] = "",
    before: Around = 10,
    after: Around = 10,
) -> Lines:
    """Show what happened around a memory, or in a session: one line each, oldest first."""
    if bool(memory_id) == bool(session_id):
        raise InvalidSelectionError("give either memory_id or session_id")
    cube = None if reach.beside else reach.mem_cube_id
    if memory_id:
        item = await _item(scheduler, reach, memory_id)
        memory_id, cube = item.id, item.mem_cube_id
    elif await scheduler.sessions.get(session_id, user_id=reach.user_id) is None:
        raise InvalidSelectionError(f"there is no session {shown(session_id)} of this user")
    items = await scheduler.sessions.timeline(
        user_id=reach.user_id,
        mem_cube_id=cube,
        session_id=session_id or None,
        around=memory_id or None,
        before=before,
        after=after,
    )
    return Lines(memories=[_line(reach, item) for item in items])


async def details(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_IDS, description="ids of memories")],
    max_tokens: Annotated[
        int, Field(ge=200, le=50_000, description="about how many tokens the answer may have")
    ] = 8000,
) -> Details:
    """Read memories: their whole texts, where they come from, and what they are linked to."""
    memories: list[Memory] = []
    unknown: list[str] = []
    left_out: list[str] = []
    left = max_tokens
    for memory_id in dict.fromkeys(ids):
        try:
            item = await _item(scheduler, reach, memory_id)
        except UnknownMemoryError:
            unknown.append(memory_id)
            continue
        memory = _memory(item, await scheduler.memory.links(item.id, user_id=reach.user_id))
        if not memories:
            memory = _fitted(memory, left)
        size = _size(memory)
        if memories and size > left:
            left_out.append(memory_id)
            continue
        memories.append(memory)
        left -= size
    if not memories:
        raise UnknownMemoryError(unknown[0])
    return Details(memories=memories, unknown=unknown or None, left_out=left_out or None)


async def search_by_file(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    path: Annotated[Id, Field(min_length=1, description="a path, the end of a path, or a file's name")],
    limit: Limit = 20,
) -> Lines:
    """Find the observations that read or changed a file: one line each, oldest first."""
    items = await scheduler.sessions.timeline(
        user_id=reach.user_id,
        mem_cube_id=reach.mem_cube_id,
        before=MOST_OF_NAME if "/" in path else limit,
        after=0,
        file=_name(path),
    )
    uses = [(item, use) for item in items if (use := _use_of(item, path))]
    return Lines(memories=[_line(reach, item, file=use) for item, use in uses[-limit:]])


async def sessions(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    limit: Limit = 20,
    status: Annotated[
        Literal["created", "active", "completed", "failed"] | None, Field(description="only these")
    ] = None,
) -> Sessions:
    """List the sessions of agents, the last active one first. timeline shows what happened in one."""
    page = await scheduler.sessions.list(
        user_id=reach.user_id, mem_cube_id=reach.mem_cube_id, status=status, limit=limit
    )
    return Sessions(
        sessions=[
            SessionLine(
                session_id=session.session_id,
                title=session.title,
                status=session.status,
                agent=session.agent,
                prompts=session.prompts,
                began=_date(session.created_at),
                last=_date(session.updated_at),
                mem_cube_id=session.mem_cube_id if reach.mem_cube_id is None else None,
            )
            for session in page.sessions
        ]
    )


async def add(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    text: Annotated[str, Field(description="what to remember, in words that are clear on their own")],
    session_id: Annotated[Id, Field(description="the conversation that it belongs to")] = "",
) -> Accepted:
    """Remember something. Soon after, search finds it."""
    message = add_message(
        text,
        user_id=reach.user_id,
        mem_cube_id=_home(reach),
        item_id=new_item_id(),
        session_id=session_id or None,
    )
    return await _submitted(scheduler, reach, [message], memory_ids=[f"{message.item_id}.0"])


async def feedback(
    scheduler: AsyncScheduler,
    reach: Reach,
    *,
    ids: Annotated[list[Id], Field(max_length=MOST_IDS, description="the memories that it is about")],
    text: Annotated[str, Field(description="what is right instead, in a sentence")] = "",
    verdict: Annotated[Literal["like", "dislike"] | None, Field(description="or: a verdict")] = None,
) -> Accepted:
    """Say that memories were helpful, useless or wrong. What is right takes the place of what was wrong."""
    if bool(text.strip()) == (verdict is not None):
        raise InvalidSelectionError("give either a text or a verdict")
    if verdict is not None and not ids:
        raise InvalidSelectionError("a verdict needs the ids of the memories that it is about")
    by_cube: dict[str, list[str]] = {}
    for memory_id in dict.fromkeys(ids):
        item = await _item(scheduler, reach, memory_id)
        by_cube.setdefault(item.mem_cube_id, []).append(item.id)
    messages = [
        Message(
            label="mem_feedback",
            user_id=reach.user_id,
            mem_cube_id=cube,
            item_id=new_item_id(),
            content=_content(
                FeedbackInput(feedback_content=verdict or text, retrieved_memory_ids=tuple(memory_ids))
            ),
        )
        for cube, memory_ids in (by_cube or {_home(reach): []}).items()
    ]
    return await _submitted(scheduler, reach, await governed_feedback(scheduler, messages))


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An entry of the table of tools."""

    function: Callable[..., Awaitable[Any]]
    role: Role
    """The weakest role that may call it."""

    @property
    def name(self) -> str:
        """The name under which it is called."""
        return self.function.__name__


TOOLS = (
    Tool(function=search, role=Role.READ_ONLY),
    Tool(function=timeline, role=Role.READ_ONLY),
    Tool(function=details, role=Role.READ_ONLY),
    Tool(function=search_by_file, role=Role.READ_ONLY),
    Tool(function=sessions, role=Role.READ_ONLY),
    Tool(function=add, role=Role.USER),
    Tool(function=feedback, role=Role.USER),
)
"""All tools. A new tool is added here; the tests of rights go through this table."""


async def _item(scheduler: AsyncScheduler, reach: Reach, memory_id: str) -> MemoryItem:
    """One memory; `UnknownMemoryError` if there is none, if it was deleted, or if it may not be read."""
    try:
        item = await scheduler.memory.get(memory_id, user_id=reach.user_id)
    except MemoryDeletedError:
        item = None
    if item is None:
        raise UnknownMemoryError(memory_id)
    return item


def _home(reach: Reach) -> str:
    """The cube of new memories; an error if the caller may not touch it."""
    cube = reach.mem_cube_id or reach.user_id
    current_principal.get().check_touch(reach.user_id, (cube,))
    return cube


async def _submitted(
    scheduler: AsyncScheduler,
    reach: Reach,
    messages: Sequence[Message],
    memory_ids: list[str] | None = None,
) -> Accepted:
    for cube in {message.mem_cube_id for message in messages}:
        await scheduler.runtime.door.check_project(reach.user_id, cube)
    receipts = await scheduler.runtime.intake.submit(messages, spools=reach.spools, vetted=True)
    is_spooled = any(receipt.status == "spooled" for receipt in receipts)
    return Accepted(
        item_ids=[receipt.item_id for receipt in receipts],
        memory_ids=memory_ids,
        status="spooled" if is_spooled else "accepted",
    )


def _content(given: FeedbackInput) -> str:
    try:
        return msgspec.json.encode(given).decode()
    except UnicodeEncodeError as error:
        raise InvalidSelectionError("the text is not valid Unicode") from error


def _line(reach: Reach, item: MemoryItem, **more: Any) -> Line:
    return Line(
        id=item.id,
        title=_title(item),
        kind=item.kind,
        date=_date(item.held_at),
        mem_cube_id=item.mem_cube_id if item.mem_cube_id != reach.mem_cube_id else None,
        **more,
    )


def _title(item: MemoryItem) -> str:
    title = " ".join((item.title or item.text[: 10 * LONGEST_TITLE]).split())
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"


def _date(milliseconds: int) -> str | None:
    """A moment in UTC, to the second; None if there is none."""
    try:
        return from_epoch_ms(milliseconds).strftime("%Y-%m-%dT%H:%M:%SZ") if milliseconds else None
    except OverflowError:  # no date has this number, but another client may have sent it
        return None


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _files(item: MemoryItem, field: str) -> list[str]:
    """The paths in a field of `info`; empty if it holds anything else, because clients write there, too."""
    paths = (item.info or {}).get(field)
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def _use_of(item: MemoryItem, path: str) -> Literal["read", "changed"] | None:
    """What an observation did to a file whose path is, or ends with, `path`; None: nothing."""
    end = "/" + path.strip("/")
    if any(f"/{known}".rstrip("/").endswith(end) for known in _files(item, "files_modified")):
        return "changed"
    if any(f"/{known}".rstrip("/").endswith(end) for known in _files(item, "files_read")):
        return "read"
    return None


def _memory(item: MemoryItem, links: Sequence[LinkedItem]) -> Memory:
    """A memory with all its texts; what a tool's response may have shaped is apart from the rest."""
    title, text = item.title, item.text
    narrative, facts = item.narrative, list(item.facts) or None
    response = None
    if item.kind == "observation":
        by_rule = (item.info or {}).get("rule_title")
        response = ToolText(narrative=narrative, facts=facts)
        narrative = facts = None
        if isinstance(by_rule, str) and by_rule != title:  # a model has read the response
            response.title = title
            title, text = by_rule, by_rule if text == title else text
    return Memory(
        id=item.id,
        kind=item.kind,
        type=item.type,
        title=title,
        text=text,
        narrative=narrative,
        facts=facts,
        concepts=list(item.concepts) or None,
        from_tool_response=response,
        files_read=_files(item, "files_read") or None,
        files_modified=_files(item, "files_modified") or None,
        date=_date(item.held_at),
        session_id=item.session_id,
        mem_cube_id=item.mem_cube_id,
        sources=[
            Origin(item_id=source.item_id, role=source.role, name=source.name, date=source.chat_time)
            for source in item.sources[:MOST_LINKS]
        ]
        or None,
        links=[
            LinkLine(
                relation=link.relation,
                direction="to" if link.outgoing else "from",
                id=link.item.id,
                title=_title(link.item),
            )
            for link in links[:MOST_LINKS]
        ]
        or None,
    )


def _size(memory: Memory) -> int:
    """About how many tokens a memory has in an answer."""
    return tokens_in(memory.model_dump_json(exclude_none=True))


def _fitted(memory: Memory, tokens: int) -> Memory:
    """A memory with so many tokens at most: the longest texts and lists are cut first."""
    fitted, letters = memory, 4 * tokens
    while _size(fitted) > tokens and letters > 20:
        letters //= 2
        texts = {name: _cut(value, letters) for name, value in memory if name in LONG_FIELDS}
        fitted = memory.model_copy(update={**texts, "sources": None, "links": None, "cut": True})
    return fitted


def _cut(value: Any, letters: int) -> Any:
    """Texts of so many letters at most, and of lists of texts the first ones."""
    if isinstance(value, str) and len(value) > letters:
        return value[:letters] + "…"
    if isinstance(value, list):
        return [_cut(text, letters) for text in value[: 1 + letters // 50]]
    if isinstance(value, ToolText):
        return ToolText(**{name: _cut(text, letters) for name, text in value})
    return value
