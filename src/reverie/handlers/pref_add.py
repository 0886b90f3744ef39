"""The handler of the label `pref_add`: preferences, with the turns that show them.

The language model finds explicit and implicit preferences. Without one, careful rules find what somebody says
in plain words, and keep the sentence word for word. A preference that a later one contradicts is superseded.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.effect import Link, Remember, Revise, Source, Supersede
from reverie.failures import InvalidWorkError
from reverie.handlers.content import read_json
from reverie.handlers.extraction import Passage, halves, known_that_fit, pieces
from reverie.handlers.mem_read import MOST_IDS, normalised, passage_of, room_for_turns
from reverie.handlers.preferences import (
    preference_prompt,
    preference_schema,
    read_preferences,
    stated_in,
)
from reverie.memory.times import parse_chat_time
from reverie.message import derived_id
from reverie.models.interface import AnswerTooLongError, PromptTooLongError
from reverie.outcome import Done
from reverie.turn import Turn, memory_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message

__all__ = ["PreferenceInput", "pref_add"]

KIND = "preference"
KNOWN = 20
"""How many known preferences are looked at for one that is the same or contradicts."""
SAID = 0.9
"""How sure a preference is that somebody has said in plain words."""
SUREST = 0.99
"""How sure a preference gets that many turns show."""


class PreferenceInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a `pref_add` message: turns, or ids of memories. A bare list of turns will do."""

    turns: tuple[Turn, ...] = ()
    memory_ids: tuple[str, ...] = ()


class _Known(NamedTuple):
    """A preference that is kept, or that an earlier turn of the same message has brought."""

    memory_id: str
    version: int
    held_at: int


class _Shown(NamedTuple):
    """A preference that turns show."""

    memory_id: str
    """The id that a preference with this text has."""
    text: str
    explicit: bool
    confidence: float
    turns: list[Passage]
    replaces: list[_Known]
    said_at: int


async def pref_add(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Keep the preferences in the turns or memories of one message. A message runs alone."""
    (message,) = messages
    asked = _read_input(message)
    options: HandlerOptions = await ctx.options()
    turns = _GivenTurns(message, asked.turns, options.now)
    items: list[MemoryItem] = await ctx.memory.items(asked.memory_ids) if asked.memory_ids else []
    passages = [turns.passage(index) for index in turns.said]
    passages += [passage_of(item) for item in items if item.kind != KIND]
    if not passages:
        return {message.key: Done()}
    roles = {item.id: item.sources[0].role for item in items if item.sources}
    roles |= {memory_id_of(message, index): turn.role for index, turn in enumerate(asked.turns)}
    finding = _Finding(message, ctx, options, roles)
    shown = await (finding.ask(passages) if options.has_language_model else finding.apply_rules(passages))
    return {message.key: Done(effects=await _effects(message, ctx, shown, turns))}


class _GivenTurns(NamedTuple):
    """The turns that the message itself has."""

    message: Message
    turns: tuple[Turn, ...]
    now: int

    @property
    def said(self) -> list[int]:
        """The numbers of the turns that say something."""
        return [index for index, turn in enumerate(self.turns) if turn.content.strip()]

    def passage(self, index: int) -> Passage:
        turn = self.turns[index]
        said_at = parse_chat_time(turn.chat_time) if turn.chat_time else None
        return Passage(
            memory_id=memory_id_of(self.message, index),
            text=turn.content,
            speaker=turn.name or turn.role,
            said_at=self.now if said_at is None else said_at,
        )

    def memories(self) -> dict[str, Remember]:
        """The turns as memories, by id: a turn that shows a preference is kept word for word."""
        return {
            memory_id_of(self.message, index): Remember(
                memory_id=memory_id_of(self.message, index),
                text=turn.content,
                kind="turn",
                session_id=self.message.session_id,
                valid_from=parse_chat_time(turn.chat_time) if turn.chat_time else None,
                sources=(
                    Source(
                        item_id=self.message.item_id,
                        index=index,
                        role=turn.role,
                        name=turn.name,
                        chat_time=turn.chat_time,
                        message_id=turn.message_id,
                    ),
                ),
            )
            for index, turn in enumerate(self.turns)
        }


def _read_input(message: Message) -> PreferenceInput:
    """The content of the message; any text that is no JSON is one turn of the user."""
    given = read_json(message, PreferenceInput | list[Turn], opening="{[")
    if given is None:
        given = [Turn(content=message.content)]
    asked: PreferenceInput = PreferenceInput(turns=tuple(given)) if isinstance(given, list) else given
    if len(asked.memory_ids) > MOST_IDS:
        raise InvalidWorkError(f"a pref_add message may name at most {MOST_IDS} memories")
    return asked


class _Finding:
    """One message while preferences are looked for in its turns."""

    def __init__(
        self, message: Message, ctx: Context, options: HandlerOptions, roles: Mapping[str, str | None]
    ) -> None:
        """`roles` maps the id of a turn to the role of who said it."""
        self._message = message
        self._ctx = ctx
        self._options = options
        self._roles = roles

    # -- without a language model ---------------------------------------------------------------------

    async def apply_rules(self, passages: Sequence[Passage]) -> list[_Shown]:
        """What somebody says in plain words. It replaces what is equal but for being liked or not."""
        shown: dict[str, _Shown] = {}
        newest: dict[tuple[str, str], tuple[bool, str]] = {}
        """(Speaker, what it is about) → whether it is liked, and the id, as the turns so far say."""
        for passage in passages:
            if self._roles.get(passage.memory_id) not in {"user", None}:
                continue  # what an assistant likes is nobody's preference
            for text, about, liked in stated_in(passage.text):
                said_at = passage.said_at or self._options.now
                own = derived_id(*self._message.tenant, KIND, passage.speaker, normalised(text))
                before = newest.get((passage.speaker, about))
                if own in shown and (before is None or before[1] != own):  # taken back, and said again
                    own = derived_id(*self._message.key, KIND, own, len(shown))
                replaces = await self._opposites(passage.speaker, about, liked=liked)
                if before is not None and before[0] != liked:
                    earlier = shown[before[1]]
                    replaces.append(_Known(earlier.memory_id, 1, earlier.said_at))
                newest[passage.speaker, about] = (liked, own)
                if own in shown:
                    shown[own].turns.append(passage)
                else:
                    shown[own] = _Shown(own, text, True, SAID, [passage], replaces, said_at)  # noqa: FBT003
        return list(shown.values())

    async def _opposites(self, speaker: str, about: str, *, liked: bool) -> list[_Known]:
        """The kept preferences of a speaker that say the contrary."""
        hits = await self._ctx.memory.search(about.partition(":")[2], limit=KNOWN, kinds=(KIND,))
        return [
            _Known(hit.item.id, hit.item.version, hit.item.held_at)
            for hit in hits
            if hit.item.valid_to is None
            and passage_of(hit.item).speaker == speaker
            and any((one.about, one.liked) == (about, not liked) for one in stated_in(hit.item.text))
        ]

    # -- with a language model ------------------------------------------------------------------------

    async def ask(self, passages: Sequence[Passage]) -> list[_Shown]:
        """What the language model finds."""
        found: dict[str, _Shown] = {}
        for piece in pieces(passages, room_for_turns(self._options)):
            for one in await self._ask_parts(piece):
                same = found.setdefault(one.memory_id, one)
                if same is not one:
                    same.turns.extend(one.turns)
                    same.replaces.extend(one.replaces)
        return list(found.values())

    async def _ask_parts(self, piece: Sequence[Passage]) -> list[_Shown]:
        """What the model finds in one piece; one with too much to read or to answer is read in two parts."""
        try:
            return await self._ask_at_once(piece)
        except (PromptTooLongError, AnswerTooLongError):
            parts = halves(piece)
            if not parts:
                raise
            return [one for part in parts for one in await self._ask_parts(part)]

    async def _ask_at_once(self, piece: Sequence[Passage]) -> list[_Shown]:
        memory = self._ctx.memory

        async def complete() -> dict[str, Any]:
            query = " ".join(passage.text for passage in piece)[:2000]
            hits = await memory.search(query, limit=KNOWN, kinds=(KIND,))
            known = known_that_fit([hit.item for hit in hits if hit.item.valid_to is None])
            answer = await self._ctx.models.complete(
                preference_prompt(piece, known), schema=preference_schema(len(piece), len(known))
            )
            return {"text": answer.text, "known": {item.id: item.version for item in known}}

        digest = hashlib.sha256(msgspec.json.encode(piece)).hexdigest()[:24]
        kept = await self._ctx.memo(f"preferences:{digest}", complete)
        items = {item.id: item for item in await memory.items(list(kept["known"]))}
        known = [
            _Known(memory_id, version, items[memory_id].held_at) if memory_id in items else None
            for memory_id, version in kept["known"].items()
        ]
        shown = []
        for one in read_preferences(kept["text"]):
            turns = [piece[number - 1] for number in dict.fromkeys(one.turns) if number <= len(piece)]
            same = known[one.same_as - 1] if one.same_as and one.same_as <= len(known) else None
            own = derived_id(*self._message.tenant, "fact", normalised(one.text))  # as `mem_read` names it
            replaces = [known[number - 1] for number in one.replaces if number <= len(known)]
            said = [turn.said_at for turn in turns if turn.said_at is not None]
            if turns:
                shown.append(
                    _Shown(
                        memory_id=own if same is None else same.memory_id,
                        text=one.text,
                        explicit=one.explicit,
                        confidence=round(one.confidence, 3),
                        turns=turns,
                        replaces=[old for old in replaces if old is not None and old != same],
                        said_at=max(said, default=self._options.now),
                    )
                )
        return shown


async def _effects(
    message: Message, ctx: Context, shown: Sequence[_Shown], given: _GivenTurns
) -> list[Effect]:
    """Remember new preferences, give known ones further turns, and supersede those that are over."""
    if not shown:
        return []
    named = [turn.memory_id for one in shown for turn in one.turns]
    wanted = [one.memory_id for one in shown] + named
    present = {item.id: item for item in await ctx.memory.items(list(dict.fromkeys(wanted)))}
    memories = given.memories()
    effects: list[Effect] = [
        memories[turn] for turn in dict.fromkeys(named) if turn in memories and turn not in present
    ]
    renamed: dict[str, str] = {}
    for one in shown:
        memory_id, item = one.memory_id, present.get(one.memory_id)
        if item is not None and (item.superseded_by is not None or item.valid_to is not None):
            memory_id, item = derived_id(*message.key, KIND, one.memory_id), None  # it holds again
            renamed[one.memory_id] = memory_id
        sources = tuple(_source_of(turn, present, memories) for turn in _unlike(one.turns))
        if item is None:
            shown_by = [present[turn.memory_id] for turn in one.turns if turn.memory_id in present]
            tags = dict.fromkeys(tag for turn in shown_by for tag in turn.tags)
            effects.append(_remember(memory_id, one, sources, tuple(tags), message))
        else:
            effects += _further(item, one, sources)
        effects += [
            Link(source_id=memory_id, relation="derived_from", target_id=turn.memory_id)
            for turn in _unlike(one.turns)
            if turn.memory_id in present or turn.memory_id in memories
        ]
        for old in {old.memory_id: old for old in one.replaces}.values():
            old_id = renamed.get(old.memory_id, old.memory_id)
            if old_id == memory_id:
                continue
            version = present[old_id].version if old_id in present else old.version
            if old.held_at <= one.said_at:
                own = 1 if item is None else item.version
                effects.append(
                    Supersede(memory_id=old_id, version=version, successor=memory_id, successor_version=own)
                )
            elif item is None:  # it was said before what it contradicts
                effects.append(
                    Supersede(memory_id=memory_id, version=1, successor=old_id, successor_version=version)
                )
                break
    return effects


def _unlike(turns: Iterable[Passage]) -> list[Passage]:
    """Turns without those that come twice: a long turn is read in parts."""
    return list({turn.memory_id: turn for turn in turns}.values())


def _source_of(turn: Passage, present: dict[str, MemoryItem], memories: dict[str, Remember]) -> Source:
    item = present.get(turn.memory_id) or memories.get(turn.memory_id)
    return item.sources[0] if item is not None and item.sources else Source(item_id=turn.memory_id)


def _remember(
    memory_id: str, one: _Shown, sources: tuple[Source, ...], tags: tuple[str, ...], message: Message
) -> Remember:
    """A new preference, with the tags of its turns: who may read these is told by tags."""
    return Remember(
        memory_id=memory_id,
        text=one.text,
        kind=KIND,
        tags=tags,
        info={"preference_type": _type_of(explicit=one.explicit), "confidence": one.confidence},
        sources=sources,
        session_id=message.session_id,
        valid_from=one.said_at,
    )


def _further(item: MemoryItem, one: _Shown, sources: tuple[Source, ...]) -> list[Effect]:
    """A known preference that further turns show is surer; the same turns change nothing."""
    known = {(source.item_id, source.index) for source in item.sources}
    new = tuple(source for source in sources if (source.item_id, source.index) not in known)
    if not new:
        return []
    info = item.info or {}
    before = info.get("confidence")
    unsure = (1 - one.confidence) * (1 - before if isinstance(before, int | float) else 1)
    was_said = one.explicit or info.get("preference_type") == _type_of(explicit=True)
    changed = {
        "preference_type": _type_of(explicit=was_said),
        "confidence": round(min(SUREST, 1 - unsure), 3),
    }
    return [
        Revise(
            memory_id=item.id, version=item.version, sources=(*item.sources, *new), info={**info, **changed}
        )
    ]


def _type_of(*, explicit: bool) -> str:
    return "explicit_preference" if explicit else "implicit_preference"
