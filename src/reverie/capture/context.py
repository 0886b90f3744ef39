"""What an agent is told at the begin of a session and beside a prompt: facts, never instructions.

Nothing here is the text of a tool's response: a web page that an agent has read must not speak to the next
session. Only the memories of the person and of the project itself are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.clock import from_epoch_ms
from reverie.capture.protocol import LONGEST_CONTEXT
from reverie.memory.interface import PageQuery
from reverie.memory.query import Filters, SearchQuery
from reverie.turn import DEFAULT_SESSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reverie.access.reads import MemoryReads
    from reverie.memory.item import MemoryItem

__all__ = ["ContextComposer"]

LONGEST_BESIDE_PROMPT = 2500
SUMMARIES = 4
FACTS = 12
PREFERENCES = 12
OBSERVATIONS = 15
HITS = 6
THRESHOLD = 0.45
"""Hits beside a prompt must be at least this good."""
LONGEST_LINE = 500
LONGEST_SUMMARY = 1200
OF_SESSIONS = frozenset({"turn", "summary", "observation"})
"""Kinds of what was said and done in a session."""
TOLD_KINDS = ("turn", "fact", "event", "preference", "profile", "pattern", "summary", "observation")


class ContextComposer:
    """Writes context from the memories of a person and of one project."""

    def __init__(self, reads: MemoryReads) -> None:
        """`reads` are the reads of memories on behalf of the present caller."""
        self._reads = reads

    async def block(self, user_id: str, cube: str) -> str:
        """The block for the begin of a session: summaries, facts, preferences, and what was done last."""
        preferences = await self._newest(user_id, user_id, ("preference", "profile"), PREFERENCES)
        facts = await self._newest(user_id, cube, ("fact", "event", "preference", "profile"), FACTS)
        summaries = await self._newest(user_id, cube, ("summary",), SUMMARIES)
        done = await self._newest(user_id, cube, ("observation",), OBSERVATIONS)
        parts = [
            _part("About the user:", [_line(item) for item in preferences]),
            _part("Known of this project:", [_line(item) for item in facts]),
            _part("Earlier sessions in this project:", [_summary(item) for item in summaries]),
            _part("Done last in this project:", _titles(done)),
        ]
        return _fitted("Reverie, the memory of earlier sessions:", parts, LONGEST_CONTEXT)

    async def beside_prompt(self, user_id: str, cube: str, session_id: str, prompt: str) -> str:
        """What is remembered about a prompt, apart from what was said in its own session."""
        found = await self._reads.search(
            SearchQuery(
                text=prompt,
                user_id=user_id,
                mem_cube_ids=tuple(dict.fromkeys((cube, user_id))),
                limit=2 * HITS,
                filters=Filters(kinds=TOLD_KINDS),
                threshold=THRESHOLD,
            )
        )
        told = [
            item
            for item in (hit.item for hit in found.hits)
            if item.session_id != session_id and _is_told(item) and _is_of_here(item, cube)
        ]
        lines = [_summary(item) if item.kind == "summary" else _line(item) for item in told[:HITS]]
        return _fitted("Reverie remembers:", [_part("", lines)], LONGEST_BESIDE_PROMPT)

    async def _newest(self, user_id: str, cube: str, kinds: Sequence[str], limit: int) -> list[MemoryItem]:
        query = PageQuery(
            user_id=user_id, mem_cube_id=cube, kinds=tuple(kinds), newest_first=True, limit=limit
        )
        return [item for item in (await self._reads.page(query)).items if _is_told(item)]


def _is_told(item: MemoryItem) -> bool:
    """Whether an item may be told: what no person and no agent has said stays out, closed facts too."""
    if item.valid_to is not None:
        return False
    if item.kind == "turn":
        return bool(item.sources) and item.sources[0].role in {"user", "assistant"}
    return item.kind != "summary" or item.type == "session"


def _is_of_here(item: MemoryItem, cube: str) -> bool:
    """Whether an item is of this project, or about the person: not what was said in other sessions."""
    in_session = item.kind in OF_SESSIONS and item.session_id not in {None, DEFAULT_SESSION}
    return item.mem_cube_id == cube or not in_session


def _line(item: MemoryItem) -> str:
    """One item as a sentence that states a fact."""
    day = from_epoch_ms(item.held_at).date().isoformat()
    if item.kind == "observation":
        return f"- {day}: {_one_line(rule_title(item))}"
    text = _one_line(item.text)
    if item.kind == "turn":
        who = "The user said" if item.sources[0].role == "user" else "The agent answered"
        return f'- {who} on {day}: "{text}"'
    return f"- {text} (known since {day})"


def rule_title(item: MemoryItem) -> str:
    """The title of an observation that was made from the tool's name and input alone."""
    return str((item.info or {}).get("rule_title") or item.type or "an observation")


def _summary(item: MemoryItem) -> str:
    day = from_epoch_ms(item.updated_at or item.created_at).date().isoformat()
    text = item.text if len(item.text) <= LONGEST_SUMMARY else f"{item.text[: LONGEST_SUMMARY - 1]}…"
    return f"- Session of {day}. " + " ".join(text.split())


def _titles(items: Iterable[MemoryItem]) -> list[str]:
    """Titles of observations, oldest first, each once."""
    return list(dict.fromkeys(_line(item) for item in reversed(list(items))))


def _part(head: str, lines: list[str]) -> list[str]:
    return [*([head] if head else []), *lines] if lines else []


def _fitted(head: str, parts: Sequence[list[str]], longest: int) -> str:
    """All lines of all parts that fit; empty if there is nothing to tell."""
    lines = [line for part in parts for line in part]
    if not lines:
        return ""
    text = head
    for line in lines:
        if len(text) + 1 + len(line) > longest:
            break
        text += f"\n{line}"
    return text


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"
