"""The handler of the label `mem_feedback`: what users think of an answer changes the memories behind it.

Praise raises the importance of memories, and criticism lowers it. A correction becomes a new memory, which
supersedes the wrong one; that stays in history. With a language model, the model tells which of these the
feedback is, and what it is about. Without one, words decide, and of the memories that the feedback names
only the one that fits best is superseded.
"""

from __future__ import annotations

import re
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from reverie.effect import Remember, Revise, Source, Supersede
from reverie.failures import InvalidWorkError
from reverie.handlers.content import read_json
from reverie.memory.feedback import (
    CANDIDATES,
    FAIR,
    FeedbackInput,
    correction_id,
    cut,
    search_text,
)
from reverie.memory.times import parse_chat_time
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message

__all__ = ["Verdict", "mem_feedback", "read_words"]

PROMPT = Template(files(__package__).joinpath("prompts/feedback.txt").read_text("utf-8"))
STEP = 0.2
"""By how much praise raises the importance of a memory, and criticism lowers it."""
CORRECTED = 0.7
"""The importance of what a user has corrected, at least."""
MOST_IDS = 100
"""How many memories one feedback may name."""
MOST_SUCCESSORS = 10
"""How many successors of a superseded memory are followed."""
HISTORY = 10
"""How many of the last turns the model sees."""

Kind = Literal["like", "dislike", "correction", "none"]

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|👍|👎|❤|💯")
PRAISE = re.compile(
    "(?:good|great|perfect|right|correct|yes|thanks?|nice|exactly|excellent|helpful|useful|love|like|well"
    "|awesome|amazing|👍|❤|💯|不错|很好|好的|谢谢|正确|对|好|赞|有用)+"
)
CRITICISM = re.compile(
    "(?:bad|wrong|no|not|useless|unhelpful|incorrect|false|terrible|awful|irrelevant|dislike|never"
    "|(?:do|is|was|does|did)n't|👎|不对|错了|错误|不好|不是|没用|差|错|不)+"
)
FILLER = re.compile(
    "(?:an?|all|and|answer|are|at|both|but|did|do|does|helped|i|is|it|just|lot|me|memor(?:y|ies)|much|of|one"
    "|quite|really|results?|so|that(?:'s)?|the|these|they|this|those|very|was|were|you|这个|回答|的|了)+"
)
CORRECTING = re.compile(
    r"\b(?:actually|wrong|incorrect|not|no longer|instead|should be|correct(?:ion)?|rather|no|isn't|wasn't)\b"
    r"|不是|不对|错|应该|其实|而是",
    re.IGNORECASE,
)
"""The words by which feedback that names no memory is a correction."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What feedback means."""

    verdict: Kind
    memories: tuple[int, ...] = ()
    """The numbers of the memories that it is about, from 1."""
    text: str | None = None
    """What is right."""


async def mem_feedback(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Change memories as one message says. A message runs alone, and after the effects of the one before."""
    (message,) = messages
    given = _read_input(message)
    if not given.feedback_content.strip():
        return {message.key: Done()}
    options: HandlerOptions = await ctx.options()
    items = await _meant(given, ctx)
    if options.has_language_model:
        verdict = await _ask(given, items, ctx)
    else:
        verdict = read_words(given, is_meant=bool(items))
        if verdict.verdict == "correction" and len(items) > 1:
            verdict = msgspec.structs.replace(verdict, memories=await _best(given, items, ctx))
    about = [items[number - 1] for number in dict.fromkeys(verdict.memories) if 0 < number <= len(items)]
    if verdict.verdict == "correction":
        effects = _corrected(message, given, verdict.text or given.feedback_content, about)
    else:
        change = {"like": STEP, "dislike": -STEP, "none": 0.0}[verdict.verdict]
        effects = [_weighed(item, change) for item in about if item.importance != _weight(item, change)]
    return {message.key: Done(effects=effects)}


def read_words(given: FeedbackInput, *, is_meant: bool) -> Verdict:
    """What feedback means by its words alone; `is_meant`: whether memories are known that it is about.

    Praise and criticism have no other words than such of praise and criticism. Everything else is a
    correction if it is about known memories, or has the words of one; if not, it is only remembered.
    """
    text = given.feedback_content.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    words = WORD.findall(text)
    criticism = [word for word in words if CRITICISM.fullmatch(word)]
    praise = [word for word in words if PRAISE.fullmatch(word)]
    has_others = any(
        not FILLER.fullmatch(word) for word in words if word not in criticism and word not in praise
    )
    if not given.corrected_answer and not has_others:
        kind: Kind = "dislike" if criticism else "like" if praise else "none"
        return Verdict(verdict=kind, memories=tuple(range(1, MOST_IDS + 1)))
    corrects = given.corrected_answer or bool(given.retrieved_memory_ids) or CORRECTING.search(text)
    return Verdict(verdict="correction", memories=(1,) if corrects and is_meant else ())


def _read_input(message: Message) -> FeedbackInput:
    given: FeedbackInput = read_json(message, FeedbackInput) or FeedbackInput(
        feedback_content=message.content
    )
    if len(given.retrieved_memory_ids) + len(given.candidates or ()) > MOST_IDS:
        raise InvalidWorkError(f"a mem_feedback message may name at most {MOST_IDS} memories")
    return given


async def _meant(given: FeedbackInput, ctx: Context) -> list[MemoryItem]:
    """The memories that feedback may be about: those that it names, else those that fit it well."""
    if given.candidates is not None:
        named = await ctx.memory.items(given.retrieved_memory_ids or given.candidates)
        return [item for item in named if item.superseded_by is None]
    if not given.retrieved_memory_ids:
        found = await ctx.memory.search(search_text(given), limit=CANDIDATES)
        return [hit.item for hit in found if hit.score >= FAIR]
    present: dict[str, MemoryItem] = {}
    wanted = list(dict.fromkeys(given.retrieved_memory_ids))
    for _ in range(MOST_SUCCESSORS):
        found = await ctx.memory.items(wanted)
        present |= {item.id: item for item in found if item.superseded_by is None}
        wanted = [item.superseded_by for item in found if item.superseded_by not in {None, *present}]
        if not wanted:
            break
    return list(present.values())


async def _best(given: FeedbackInput, items: Sequence[MemoryItem], ctx: Context) -> tuple[int, ...]:
    """The number of the memory that fits the feedback best; none if no memory does."""
    numbers = {item.id: number for number, item in enumerate(items, 1)}
    found = await ctx.memory.search(cut(given.feedback_content), limit=10 * CANDIDATES)
    return tuple(numbers[hit.item.id] for hit in found if hit.item.id in numbers)[:1]


async def _ask(given: FeedbackInput, items: Sequence[MemoryItem], ctx: Context) -> Verdict:
    """What the model says that feedback means. A later run gets the same answer, and pays nothing."""
    prompt = PROMPT.substitute(
        history="\n".join(
            f"{turn.name or turn.role}: {cut(turn.content)}" for turn in given.history[-HISTORY:]
        )
        or "none",
        feedback=cut(given.feedback_content),
        memories="\n".join(f"{number}. {cut(item.text)}" for number, item in enumerate(items, 1)) or "none",
    )
    number = {"type": "integer", "minimum": 1, "maximum": max(1, len(items))}
    schema = {
        "type": "object",
        "properties": {
            "verdict": {"enum": ["correction"] if given.corrected_answer else list(get_args(Kind))},
            "memories": {"type": "array", "items": number, "maxItems": len(items)},
            "text": {"type": ["string", "null"], "maxLength": 1000},
        },
        "required": ["verdict", "memories"],
    }

    async def complete() -> str:
        answer = await ctx.models.complete(prompt, schema=schema)
        return str(answer.text)

    return msgspec.json.decode(await ctx.memo("verdict", complete), type=Verdict)


def _weight(item: MemoryItem, change: float) -> float:
    return round(min(1.0, max(0.0, item.importance + change)), 3)


def _weighed(item: MemoryItem, change: float) -> Effect:
    return Revise(memory_id=item.id, version=item.version, importance=_weight(item, change))


def _corrected(
    message: Message, given: FeedbackInput, text: str, wrong: Sequence[MemoryItem]
) -> list[Effect]:
    """Remember what is right, in the place of what is wrong."""
    wrong = [item for item in wrong if item.text.split() != text.split()]
    kinds = [item.kind for item in wrong if item.kind != "turn"]
    new = Remember(
        memory_id=correction_id(message),
        text=text,
        kind=kinds[0] if kinds else "fact",
        tags=tuple(dict.fromkeys(tag for item in wrong for tag in item.tags)),
        session_id=message.session_id,
        info=message.info,
        importance=max([CORRECTED, *(item.importance for item in wrong)]),
        valid_from=parse_chat_time(given.feedback_time) if given.feedback_time else None,
        sources=(Source(item_id=message.item_id, role="user", chat_time=given.feedback_time, type="chat"),),
    )
    return [
        new,
        *(Supersede(memory_id=item.id, version=item.version, successor=new.memory_id) for item in wrong),
    ]
