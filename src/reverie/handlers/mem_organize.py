"""The handler of the label `mem_organize`: doubles are merged, contradictions settled, patterns noted.

What says the same becomes one memory with all sources. Of two facts that contradict each other, the earlier
one ended when the later one began: the language model says that they do, and their times which is which.
Without a model, similar facts are only marked. What is over the limit of a tier moves to the archive.
"""

from __future__ import annotations

from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.effect import Judged, Link, Move, Remember, Supersede
from reverie.handlers.grouping import (
    MOST_TOKENS,
    Rules,
    judged_key,
    merged_effects,
    normalised,
    not_judged,
    same_key,
    sources_of,
)
from reverie.handlers.memory_lines import memory_lines
from reverie.handlers.upkeep import UpkeepInput, follow_up, read_input, run_pass
from reverie.message import derived_id
from reverie.models.interface import ChatMessage
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.handlers.grouping import Reads
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message

__all__ = ["RULES", "excess_of", "mem_organize", "organize_prompt"]

PROMPT = Template(files(__package__).joinpath("prompts/organize.txt").read_text("utf-8"))
KINDS = frozenset({"fact", "preference", "profile", "event", "pattern"})
STATES = frozenset({"fact", "preference", "profile"})
"""Kinds of memories that can contradict each other: what has happened has happened."""
PATTERN = "pattern"
LEAST_EVIDENCE = 3
"""How many memories must show a pattern."""
MOST_MOVED = 1000
"""How many memories one message archives because a tier is over its limit."""
LAST = 2**62


def _group_key(item: MemoryItem) -> Hashable | None:
    """Facts that may be about the same matter."""
    if item.kind not in KINDS:
        return None
    return item.device_id, item.agent_id, item.domain, item.expires_at


CONTRARY = 0.55
"""The share of `upkeep.similarity` from which facts are compared: two homes of one person share few words."""
RULES = Rules(
    label="mem_organize", contained=False, group_key=_group_key, share=CONTRARY, shared_kinds=STATES
)


async def mem_organize(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Put the memories in order that were changed since the last pass. A message runs alone."""
    (message,) = messages
    asked = read_input(message)
    done, found = await run_pass(message, ctx, RULES, settle_group, asked)
    if asked.group:
        return {message.key: done}
    options: HandlerOptions = await ctx.options()
    effects, follow_ups = list(done.effects), list(done.follow_ups)
    if not options.has_language_model:
        unmarked = await not_judged(ctx.upkeep, "mark", found.groups)
        effects += _marks(unmarked)
    if asked.after == 0:
        merged = {item.id for members in found.merges for item in members}
        excess = [item for item in await excess_of(ctx.upkeep, options) if item.id not in merged]
        effects += [Move(memory_id=item.id, version=item.version, tier="archive") for item in excess]
        follow_ups.append(follow_up(message, UpkeepInput(pass_id=asked.pass_id), "mem_archive"))
    return {message.key: Done(effects=effects, follow_ups=follow_ups)}


async def excess_of(reads: Reads, options: HandlerOptions) -> list[MemoryItem]:
    """The memories of least worth by which the tiers are over their limits."""
    limits = {"working": options.working_limit, "long_term": options.long_term_limit}
    counts: dict[str, int] = await reads.tier_counts()
    excess: list[MemoryItem] = []
    for tier, limit in limits.items():
        over = min(counts.get(tier, 0) - limit, MOST_MOVED)
        if over > 0:
            excess += await reads.coldest(tier, LAST, over)
    return excess


def _marks(groups: Sequence[Sequence[MemoryItem]]) -> list[Effect]:
    """Mark facts that may contradict each other; each later one leads to the one before it."""
    effects: list[Effect] = []
    for members in groups:
        facts = [item for item in members if item.kind in STATES and item.valid_to is None]
        effects += [
            Link(source_id=later.id, relation="may_contradict", target_id=earlier.id)
            for earlier, later in pairwise(facts)
        ]
    keys = tuple(judged_key("mark", members) for members in groups)
    return [*effects, Judged(keys=keys)] if effects else []


# -- with a language model -------------------------------------------------------------------------------


class _Pattern(msgspec.Struct, frozen=True):
    text: str
    evidence: tuple[int, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    same: tuple[tuple[int, ...], ...] = ()
    contradictions: tuple[tuple[int, ...], ...] = ()
    patterns: tuple[_Pattern, ...] = ()


class _Pair(NamedTuple):
    earlier: MemoryItem
    later: MemoryItem


def organize_prompt(members: Sequence[MemoryItem]) -> str:
    """The prompt that asks the model about a group."""
    return PROMPT.substitute(memories=memory_lines(members))


def answer_schema(members: int) -> dict[str, Any]:
    """The JSON schema of an answer about so many memories."""
    number = {"type": "integer", "minimum": 1, "maximum": members}

    def numbers(least: int, most: int) -> dict[str, Any]:
        return {"type": "array", "items": number, "minItems": least, "maxItems": most}

    pattern = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": 1000},
            "evidence": numbers(LEAST_EVIDENCE, max(members, LEAST_EVIDENCE)),
        },
        "required": ["text", "evidence"],
    }
    fields = {"same": numbers(2, members), "contradictions": numbers(2, 2), "patterns": pattern}
    properties = {
        name: {"type": "array", "items": items, "maxItems": 2 * members} for name, items in fields.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


async def settle_group(
    message: Message, ctx: Context, _: HandlerOptions, members: Sequence[MemoryItem]
) -> list[Effect]:
    """Ask the model what similar memories have to do with each other, and act on the answer."""

    async def complete() -> dict[str, Any]:
        prompt = (ChatMessage("user", organize_prompt(members)),)
        answer = await ctx.models.complete(prompt, schema=answer_schema(len(members)))
        return {"text": answer.text}

    kept = await ctx.memo(judged_key(message.label, members), complete)
    answer = msgspec.json.decode(kept["text"], type=_Answer, strict=False)
    pairs = _pairs(answer, members)
    told = [pair for pair in pairs if _when(pair.earlier) < _when(pair.later)]
    effects: list[Effect] = [
        Supersede(
            memory_id=pair.earlier.id,
            version=pair.earlier.version,
            successor=pair.later.id,
            successor_version=pair.later.version,
        )
        for pair in _settled(told)
    ]
    effects += [
        Link(source_id=pair.later.id, relation="may_contradict", target_id=pair.earlier.id)
        for pair in pairs
        if pair not in told
    ]
    replaced = {item.id for pair in pairs for item in pair}
    for group in _same(answer, members, replaced):
        text = max(group, key=lambda item: (item.held_at, item.id)).text
        (tokens,) = await ctx.models.count_tokens([text])
        if tokens <= MOST_TOKENS:
            effects += merged_effects(group, text)
            effects.append(Judged(keys=(judged_key("merge", group),)))
            replaced |= {item.id for item in group}
    return [*effects, *await _patterns(ctx, answer, members, replaced)]


def _pairs(answer: _Answer, members: Sequence[MemoryItem]) -> list[_Pair]:
    """The contradictions between facts that hold at the same time, each once."""
    found = {}
    for numbers in answer.contradictions:
        one, other = (members[number - 1] for number in numbers)
        if one.id == other.id or not {one.kind, other.kind} <= STATES:
            continue
        earlier, later = sorted((one, other), key=lambda item: (*_when(item), item.id))
        is_over = earlier.valid_to is not None and earlier.valid_to <= later.held_at
        if not is_over and later.valid_to is None:
            found[earlier.id, later.id] = _Pair(earlier, later)
    return list(found.values())


def _settled(pairs: Sequence[_Pair]) -> Iterator[_Pair]:
    """Each earlier fact with the first fact that contradicts it: it held until that began."""
    first: dict[str, _Pair] = {}
    for pair in pairs:
        known = first.get(pair.earlier.id)
        if known is None or _when(pair.later) < _when(known.later):
            first[pair.earlier.id] = pair
    # The latest is replaced first: an earlier one then leads to one that is still there.
    yield from sorted(first.values(), key=lambda pair: _when(pair.earlier), reverse=True)


def _when(item: MemoryItem) -> tuple[int, int]:
    return item.held_at, item.created_at


def _same(answer: _Answer, members: Sequence[MemoryItem], replaced: set[str]) -> list[list[MemoryItem]]:
    """Memories that say the same and may become one; each memory is in at most one list."""
    taken = set(replaced)
    groups = []
    for numbers in answer.same:
        items = {members[number - 1].id: members[number - 1] for number in numbers}
        group = [item for item in items.values() if item.id not in taken]
        group = [item for item in group if same_key(item) == same_key(group[0])]
        if len(group) > 1:
            groups.append(group)
            taken |= {item.id for item in group}
    return groups


async def _patterns(
    ctx: Context, answer: _Answer, members: Sequence[MemoryItem], replaced: set[str]
) -> list[Effect]:
    """Remember what several memories show together, with its evidence and a count."""
    effects: list[Effect] = []
    known = {normalised(item.text): item for item in members if item.kind == PATTERN}
    for pattern in answer.patterns:
        (tokens,) = await ctx.models.count_tokens([pattern.text])
        if not pattern.text.strip() or tokens > MOST_TOKENS:
            continue
        evidence = {number: members[number - 1] for number in pattern.evidence}.values()
        shown = [item for item in evidence if item.id not in replaced and item.kind != PATTERN]
        old = known.get(normalised(pattern.text))
        effects += _pattern(pattern.text, shown, old if old is None or old.id not in replaced else None)
    return effects


def _pattern(text: str, shown: Sequence[MemoryItem], old: MemoryItem | None) -> list[Effect]:
    """The effects that remember a pattern; a pattern that is known gets the further evidence."""
    before: list[str] = [] if old is None else list((old.info or {}).get("evidence", ()))
    ids = list(dict.fromkeys([*before, *(item.id for item in shown)]))
    if len(ids) < LEAST_EVIDENCE or len(ids) == len(before):
        return []
    first = shown[0]
    memory_id = derived_id(first.user_id, first.mem_cube_id, PATTERN, normalised(text), *sorted(ids))
    members = [*shown, old] if old is not None else shown
    effects: list[Effect] = [
        Remember(
            memory_id=memory_id,
            text=text,
            kind=PATTERN,
            device_id=first.device_id,
            agent_id=first.agent_id,
            domain=first.domain,
            expires_at=first.expires_at,
            info={"evidence": ids, "count": len(ids)},
            sources=sources_of(members),
            valid_from=min(item.held_at for item in members),
        )
    ]
    effects += [Link(source_id=memory_id, relation="derived_from", target_id=name) for name in ids]
    if old is not None:
        effects.append(Supersede(memory_id=old.id, version=old.version, successor=memory_id))
    return effects
