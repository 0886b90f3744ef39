"""Which memories say the same, and which are only similar. Handlers of upkeep and its plan ask here."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from reverie.effect import Extracted, Link, Remember, Supersede
from reverie.message import derived_id

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect, Source
    from reverie.memory.item import MemoryItem
    from reverie.memory.upkeep import Similar

__all__ = [
    "MOST_TOKENS",
    "TIERS",
    "Findings",
    "Reads",
    "Rules",
    "contains",
    "find_groups",
    "identity",
    "judged_key",
    "merged_effects",
    "normalised",
    "not_judged",
    "same_key",
    "sources_of",
]

MOST_TOKENS = 512
"""How many tokens a merged memory may have."""
MOST_MEMBERS = 50
"""How many memories are merged into one at once."""
LEAST_WORDS = 3
"""A text of fewer words is not looked for inside of others: "yes" is in very many."""
OVERLAP = 0.9
"""The share of the words of the shorter text that the longer one must have to be compared with it."""
AT_ONCE = 100
"""How many memories are compared with all others in one request."""
DAY_MS = 24 * 3600 * 1000
TIERS = frozenset({"working", "long_term"})
MOMENTS = frozenset({"turn", "event"})
"""Kinds of memories that are about a moment: if they were dated differently, they are different."""
QUESTION_MARKS = frozenset("?\uff1f")
_SENTENCE = re.compile("[^.!?\u3002\uff01\uff1f;\uff1b\n]+([.!?\u3002\uff01\uff1f;\uff1b\n]*)")
_WORD = re.compile(r"\w+")


class Reads(Protocol):
    """What upkeep of one tenant reads: by the context of a handler, or directly of the store."""

    def items(self, memory_ids: Sequence[str]) -> Any:
        """See `MemoryStore.items`."""
        ...

    def unread(self, memory_ids: Sequence[str]) -> Any:
        """See `KeepsUnread.unread`."""
        ...

    def changed(self, since: int, after: int, limit: int) -> Any:
        """See `KeepsUpkeep.changed`."""
        ...

    def similar(self, memory_ids: Sequence[str], *, least_cosine: float, least_overlap: float) -> Any:
        """See `KeepsUpkeep.similar`."""
        ...

    def coldest(self, tier: str, before: int, limit: int) -> Any:
        """See `KeepsUpkeep.coldest`."""
        ...

    def tier_counts(self) -> Any:
        """See `KeepsUpkeep.tier_counts`."""
        ...

    def judged(self, keys: Sequence[str]) -> Any:
        """See `KeepsUpkeep.judged`."""
        ...

    def until(self, label: str) -> Any:
        """See `KeepsUpkeep.upkeep_until`."""
        ...


class Rules(NamedTuple):
    """What one label of upkeep looks for."""

    label: str
    contained: bool
    """Whether a text that another one contains is merged with it."""
    group_key: Callable[[MemoryItem], Hashable | None]
    """Memories with the same key may be shown to the model together; None: the model is not asked."""
    share: float = 1.0
    """The share of `upkeep.similarity` from which memories of `shared_kinds` count as similar."""
    shared_kinds: frozenset[str] = frozenset()

    def similarity(self, options: HandlerOptions, *items: MemoryItem) -> float:
        """From which cosine these memories, or any, are similar: from less on if a model can tell."""
        if not options.has_language_model or any(item.kind not in self.shared_kinds for item in items):
            return options.similarity
        return self.share * options.similarity


class Findings(NamedTuple):
    """What was found among some memories. Nothing in it was decided upon before."""

    merges: list[list[MemoryItem]]
    """Memories that say the same; the first of each list has the text that says all."""
    groups: list[list[MemoryItem]]
    """Memories that are similar, oldest first: only a model can tell what they have in common."""


async def find_groups(
    reads: Reads, items: Sequence[MemoryItem], options: HandlerOptions, rules: Rules
) -> Findings:
    """Find the memories that say the same as some memories, and those that are similar to them."""
    pairs: list[Similar] = []
    ids = [item.id for item in items]
    similarity = rules.similarity(options)
    overlap = min(OVERLAP, similarity)
    for start in range(0, len(ids), AT_ONCE):
        pairs += await reads.similar(
            ids[start : start + AT_ONCE], least_cosine=similarity, least_overlap=overlap
        )
    known = {item.id: item for item in items}
    others = sorted({pair.other for pair in pairs} - known.keys())
    known |= {item.id: item for item in await reads.items(others)}
    eligible = {name: item for name, item in known.items() if _is_eligible(item)}
    if options.has_language_model:
        turns = [name for name, item in eligible.items() if item.kind == "turn"]
        for name in await reads.unread(turns) if turns else ():
            del eligible[name]  # its facts come first
    pairs = [pair for pair in pairs if pair.id in eligible and pair.other in eligible]
    same = _merges(eligible, pairs, rules)
    merges = await not_judged(reads, "merge", same)
    merged = {item.id for members in merges for item in members}
    undone = [{item.id for item in members} for members in same if members not in merges]
    near = [
        pair
        for pair in pairs
        if not merged & {pair.id, pair.other} and not any({pair.id, pair.other} <= ids for ids in undone)
    ]
    groups = _clusters(eligible, near, options, rules)
    return Findings(merges, await not_judged(reads, rules.label, groups))


def _is_eligible(item: MemoryItem) -> bool:
    return item.superseded_by is None and item.tier in TIERS


async def not_judged(reads: Reads, what: str, groups: list[list[MemoryItem]]) -> list[list[MemoryItem]]:
    """The groups that were not decided upon before."""
    keys = [judged_key(what, members) for members in groups]
    judged = set(await reads.judged(keys)) if keys else set()
    return [members for key, members in zip(keys, groups, strict=True) if key not in judged]


def judged_key(what: str, members: Iterable[MemoryItem]) -> str:
    """The key of a decision upon some memories. With another text, a memory is decided upon anew."""
    parts = sorted((item.id, item.text) for item in members)
    return f"{what}:{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]}"


# -- memories that say the same --------------------------------------------------------------------------


def identity(item: MemoryItem) -> tuple[Hashable, ...]:
    """What must agree for memories to become one: who said it, where it belongs, until when it held."""
    source = item.sources[0] if item.sources else None
    speaker = (source.role, source.name) if source is not None else None
    return (
        item.kind, item.type, speaker, item.valid_to, item.expires_at,
        item.device_id, item.agent_id, item.domain, item.title, item.narrative,
    )  # fmt: skip


def same_key(item: MemoryItem) -> tuple[Hashable, ...]:
    """Like `identity`; what was said, or has happened, on another day is another memory."""
    return (*identity(item), _first_day(item) if item.kind in MOMENTS else None)


def _first_day(item: MemoryItem) -> int | None:
    """The day since when an item holds, if that was told."""
    return None if item.valid_from is None else item.valid_from // DAY_MS


def normalised(text: str) -> str:
    """A text without differences of case, spaces and a last full stop."""
    return " ".join(text.casefold().split()).rstrip(".!。")


def contains(longer: str, shorter: str) -> bool:
    """Whether a text has the sentences of another one, beginning where a sentence begins.

    The last of them may go on: "I like tea and coffee" contains "I like tea", but "I never said that I like
    tea" does not. A question contains only questions.
    """
    wanted, own = _sentences(shorter), _sentences(longer)
    if sum(len(words) for words, _ in wanted) < LEAST_WORDS:
        return False
    *first, (last, asks) = wanted
    for start in range(len(own) - len(first)):
        end, is_question = own[start + len(first)]
        if own[start : start + len(first)] == first and end[: len(last)] == last and asks == is_question:
            return True
    return False


def _sentences(text: str) -> list[tuple[list[str], bool]]:
    """The words of each sentence, and whether it is a question."""
    found = [
        (_WORD.findall(sentence[0].casefold()), bool(set(sentence[1]) & QUESTION_MARKS))
        for sentence in _SENTENCE.finditer(text)
    ]
    return [(words, asks) for words, asks in found if words]


def _merges(items: dict[str, MemoryItem], pairs: Sequence[Similar], rules: Rules) -> list[list[MemoryItem]]:
    """The memories that say the same: each leads to the longest text that says all of it."""
    said_by: dict[str, str] = {}

    def rank(name: str) -> tuple[int, int, str]:
        item = items[name]
        return len(normalised(item.text)), -item.created_at, name

    for pair in pairs:
        one, other = sorted((pair.id, pair.other), key=rank)
        short, long = items[one], items[other]
        if same_key(short) != same_key(long):
            continue
        is_same = normalised(short.text) == normalised(long.text)
        may_contain = rules.contained and _first_day(short) == _first_day(long)
        if is_same or (may_contain and contains(long.text, short.text)):
            said_by[one] = max(said_by.get(one, other), other, key=rank)
    groups: defaultdict[str, list[MemoryItem]] = defaultdict(list)
    for name in said_by:
        whole = name
        while whole in said_by:
            whole = said_by[whole]
        groups[whole].append(items[name])
    return [
        [items[whole], *sorted(parts, key=lambda item: (item.held_at, item.id))[: MOST_MEMBERS - 1]]
        for whole, parts in sorted(groups.items())
    ]


# -- memories that are similar ---------------------------------------------------------------------------


def _clusters(
    items: dict[str, MemoryItem], pairs: Sequence[Similar], options: HandlerOptions, rules: Rules
) -> list[list[MemoryItem]]:
    """Groups of similar memories, at most `upkeep.group_size` each. The most similar are joined first."""
    likeness: dict[tuple[str, str], float] = {}
    for pair in pairs:
        key = rules.group_key(items[pair.id])
        if key is None or key != rules.group_key(items[pair.other]):
            continue
        value = pair.overlap if pair.cosine is None else pair.cosine
        if value >= rules.similarity(options, items[pair.id], items[pair.other]):
            likeness[min(pair.id, pair.other), max(pair.id, pair.other)] = value
    clusters: dict[str, set[str]] = {}
    for one, other in sorted(likeness, key=lambda key: (-likeness[key], key)):
        first, second = clusters.get(one, {one}), clusters.get(other, {other})
        if first is not second and len(first) + len(second) <= options.group_size:
            joined = first | second
            clusters |= dict.fromkeys(joined, joined)
    distinct = {id(cluster): cluster for cluster in clusters.values()}
    found = [
        sorted((items[name] for name in cluster), key=lambda item: (item.held_at, item.id))
        for cluster in distinct.values()
    ]
    return sorted(found, key=lambda members: members[0].id)


# -- merging ---------------------------------------------------------------------------------------------


def merged_effects(
    members: Sequence[MemoryItem], text: str, *, kind: str | None = None, read: bool = False
) -> list[Effect]:
    """The effects by which memories become one. Their ids lead to it, and it links to them.

    `read` marks it as read for facts, because all of them were.
    """
    first = members[0]
    times = [item.valid_from for item in members if item.valid_from is not None]
    sessions = {item.session_id for item in members}
    info: dict[str, Any] = {}
    for item in members:
        info = (item.info or {}) | info
    memory_id = derived_id(first.user_id, first.mem_cube_id, "merged", text, *sorted(i.id for i in members))
    effects: list[Effect] = [
        Remember(
            memory_id=memory_id,
            text=text,
            kind=kind or first.kind,
            tier=first.tier,
            type=first.type,
            title=first.title,
            narrative=first.narrative,
            facts=_union(item.facts for item in members),
            concepts=_union(item.concepts for item in members),
            # A turn has its place in its conversation, which what was merged from turns has not.
            session_id=sessions.pop() if len(sessions) == 1 and first.kind != "turn" else None,
            device_id=first.device_id,
            agent_id=first.agent_id,
            domain=first.domain,
            tags=_union(item.tags for item in members),
            info=info or None,
            sources=sources_of(members),
            importance=max(item.importance for item in members),
            valid_from=min(item.held_at for item in members) if times else None,
            valid_to=first.valid_to,
            expires_at=first.expires_at,
            learned_at=min(item.created_at for item in members),
        )
    ]
    for item in members:
        effects += [
            Link(source_id=memory_id, relation="derived_from", target_id=item.id),
            Supersede(memory_id=item.id, version=item.version, successor=memory_id),
        ]
    return [*effects, Extracted(memory_ids=(memory_id,))] if read else effects


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for texts in lists for text in texts))


def sources_of(members: Iterable[MemoryItem]) -> tuple[Source, ...]:
    """The sources of some memories, each once."""
    found = {(source.item_id, source.index): source for item in members for source in item.sources}
    return tuple(found.values())
