"""The handler of the label `mem_read`: facts, events and preferences are extracted from what was said.

It reads a buffer, named memories, or a text of its own. Each fact is linked to the turns that say it. The
turns stay as they are, and are marked as read in the transaction that writes their facts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.base.clock import from_epoch_ms
from reverie.effect import BufferDone, Extracted, Link, Remember, Revise, Source
from reverie.errors import ReverieError
from reverie.failures import FailureKind, InvalidWorkError, WorkError
from reverie.handlers.content import read_json
from reverie.handlers.extraction import (
    LEAST_TOKENS,
    Passage,
    answer_schema,
    halves,
    known_that_fit,
    pieces,
    prompt_for,
    prompt_tokens,
    read_facts,
)
from reverie.handlers.grouping import normalised
from reverie.memory.buffers import read_message
from reverie.memory.times import parse_chat_time
from reverie.message import derived_id
from reverie.models.interface import AnswerTooLongError, ModelAwayError, PromptTooLongError
from reverie.outcome import Done
from reverie.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.handlers.extraction import Fact
    from reverie.memory.buffers import BufferClaim, BufferRow, BufferState
    from reverie.memory.extraction import Extraction
    from reverie.memory.item import MemoryItem
    from reverie.message import Key, Message

__all__ = [
    "MOST_IDS",
    "PROMPT_TOKENS",
    "ReadInput",
    "lack_of_room",
    "mem_read",
    "normalised",
    "passage_of",
    "room_for_turns",
]

KNOWN = 10
"""How many known facts a prompt shows, so that the model can tell what is new and what has ended."""
FACT_KINDS = ("fact", "event", "preference", "profile")
PROMPT_TOKENS = 1000
"""About how many tokens the prompt takes besides the turns."""
MOST_IDS = 1000
NOT_OUR_FAULT = {
    FailureKind.RATE_LIMITED,
    FailureKind.QUOTA,
    FailureKind.CREDENTIALS,
    FailureKind.BUDGET,
}
"""Failures that say nothing about the rows that were read."""


class ReadInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a `mem_read` message. One of the fields says what to read."""

    blob_type: str | None = None
    """Read the buffer of this type."""
    blob_ids: tuple[str, ...] = ()
    """Read only the rows of these memories."""
    memory_ids: tuple[str, ...] = ()
    """Read these memories, buffered or not."""
    only_unread: bool = False
    """Of these memories, pass over those that a run has read before."""
    text: str | None = None
    """Read this text."""


async def mem_read(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Extract what one message names. A message runs alone, and after the effects of the one before it."""
    (message,) = messages
    asked = _read_input(message)
    options: HandlerOptions = await ctx.options()
    if asked.text is not None:
        done = await _read_text(message, asked.text, ctx, options)
    elif not options.has_language_model:
        done = Done()  # turns are kept word for word already
    elif asked.memory_ids:
        wanted = asked.memory_ids
        if asked.only_unread:
            unread = set(await ctx.memory.unread(wanted))
            wanted = tuple(memory_id for memory_id in wanted if memory_id in unread)
        items = await ctx.memory.items(wanted)
        passages = [passage_of(item) for item in items]
        done = Done(effects=await _Reading(message, ctx, options).effects(passages))
    else:
        done = await _read_buffer(message, asked, ctx, options)
    return {message.key: done}


def _read_input(message: Message) -> ReadInput:
    """The content of the message; any text that is no such object is itself what to read."""
    asked: ReadInput = read_json(message, ReadInput) or ReadInput(text=message.content)
    if asked.text is not None and not asked.text.strip():
        raise InvalidWorkError("a mem_read message has an empty text")
    if len(asked.memory_ids) > MOST_IDS:
        raise InvalidWorkError(f"a mem_read message may name at most {MOST_IDS} memories")
    return asked


async def _read_text(message: Message, text: str, ctx: Context, options: HandlerOptions) -> Done:
    """Keep a text word for word, and extract its facts."""
    kept = Remember(
        memory_id=f"{message.item_id}.0",
        text=text,
        kind="turn",
        session_id=message.session_id,
        sources=(Source(item_id=message.item_id, type="doc"),),
    )
    if not options.has_language_model:
        return Done(effects=[kept])
    passage = Passage(memory_id=kept.memory_id, text=text, speaker="text")
    return Done(effects=[kept, *await _Reading(message, ctx, options).effects([passage])])


async def _read_buffer(message: Message, asked: ReadInput, ctx: Context, options: HandlerOptions) -> Done:
    """Extract the rows of a buffer; another message reads what this one leaves."""
    blob_type, room = asked.blob_type or "chat", room_for_turns(options)
    claim: BufferClaim = await ctx.buffers.claim(blob_type, max_tokens=room, blob_ids=asked.blob_ids)
    if any(row.failures and row.failures + 1 >= options.buffer_failures for row in claim.rows):
        # A row that always fails must fail alone. The second claim gives the other rows back.
        claim = await ctx.buffers.claim(blob_type, max_tokens=1, blob_ids=asked.blob_ids)
    if not claim.rows:
        return Done()
    passages = [_passage_of_row(row) for row in claim.rows]
    try:
        effects = await _Reading(message, ctx, options).effects(passages)
    except WorkError as error:
        is_away = isinstance(error, ModelAwayError)
        failed = None if is_away or error.kind in NOT_OUR_FAULT else str(error)
        await ctx.buffers.release(claim, failed=failed)
        raise
    except ReverieError:
        raise
    except Exception as error:
        await ctx.buffers.release(claim, failed=repr(error))
        raise
    ids = tuple(row.buffer_id for row in claim.rows)
    done = BufferDone(token=claim.token, buffer_ids=ids, blob_type=claim.key.blob_type)
    (left,) = await ctx.buffers.states([claim.key])
    return Done(effects=[*effects, done], follow_ups=_rest(left, options))


def _rest(left: BufferState, options: HandlerOptions) -> list[Message]:
    """The message that reads what a run has left: at once if that is much, else when it is old."""
    if left.oldest is None or not options.reads_buffers:
        return []
    if left.tokens >= options.buffer_tokens:
        return [read_message(left.key)]
    due = from_epoch_ms(left.oldest + round(options.buffer_age_s * 1000))
    return [read_message(left.key, due=due)]


def room_for_turns(options: HandlerOptions, extraction: Extraction | None = None) -> int:
    """How many tokens of turns fit into one prompt; at least as many as cannot be split any further."""
    besides = 0 if extraction is None else prompt_tokens(extraction)
    free = options.window_tokens - options.max_output_tokens - max(PROMPT_TOKENS, besides)
    return max(LEAST_TOKENS, free)


def lack_of_room(options: HandlerOptions, extraction: Extraction) -> str | None:
    """Why no turn fits into a prompt beside what is to be extracted; None if there is room."""
    needed = prompt_tokens(extraction) + LEAST_TOKENS + options.max_output_tokens
    if needed <= options.window_tokens:
        return None
    return (
        f"with it a prompt and its answer have at least {needed} tokens, "
        f"and the model reads {options.window_tokens} (llm.window_tokens): make it shorter"
    )


class _Found(NamedTuple):
    """A fact with the passages and the known facts that its numbers refer to."""

    fact: Fact
    passages: Sequence[Passage]
    known: Sequence[MemoryItem | None]
    """None for a fact that was deleted meanwhile."""


class _Reading:
    """One message while turns are read for it."""

    def __init__(self, message: Message, ctx: Context, options: HandlerOptions) -> None:
        self._message = message
        self._ctx = ctx
        self._options = options

    async def effects(self, passages: Sequence[Passage]) -> list[Effect]:
        """The effects that write the facts in some turns, and mark the turns as read."""
        extraction: Extraction = await self._ctx.memory.extraction()
        found: list[_Found] = []
        for piece in pieces(passages, room_for_turns(self._options, extraction)):
            found += await self._ask(piece, extraction)
        written = await self._write(found)
        read = tuple(dict.fromkeys(passage.memory_id for passage in passages))
        return [*written, Extracted(memory_ids=read)]

    async def _ask(self, piece: Sequence[Passage], extraction: Extraction) -> list[_Found]:
        """The facts that the model finds in one piece. A later run gets the same answer, and pays nothing.

        Sizes are estimates. A piece that the model finds too long, or has too much to answer to, is read in
        two parts.
        """
        try:
            return await self._ask_at_once(piece, extraction)
        except (PromptTooLongError, AnswerTooLongError):
            parts = halves(piece)
            if not parts:
                raise
            return [found for part in parts for found in await self._ask(part, extraction)]

    async def _ask_at_once(self, piece: Sequence[Passage], extraction: Extraction) -> list[_Found]:
        memory = self._ctx.memory

        async def complete() -> dict[str, Any]:
            query = " ".join(passage.text for passage in piece)[:2000]
            hits = await memory.search(query, limit=KNOWN, kinds=FACT_KINDS)
            known = known_that_fit([hit.item for hit in hits])
            prompt = prompt_for(extraction, piece, known)
            schema = answer_schema(extraction, len(piece), len(known))
            try:
                answer = await self._ctx.models.complete(prompt, schema=schema)
            except AnswerTooLongError as error:
                if not halves(piece):
                    raise
                return {"too_long": error.reason}  # a later run does not pay for this again
            return {"text": answer.text, "known": {item.id: item.version for item in known}}

        asked = msgspec.json.encode([extraction, piece])
        kept = await self._ctx.memo(f"extract:{hashlib.sha256(asked).hexdigest()[:24]}", complete)
        if "too_long" in kept:
            raise AnswerTooLongError(kept["too_long"])
        items = {item.id: item for item in await memory.items(list(kept["known"]))}
        known = [  # in the version that the model has seen
            msgspec.structs.replace(items[memory_id], version=version) if memory_id in items else None
            for memory_id, version in kept["known"].items()
        ]
        return [_Found(fact, piece, known) for fact in read_facts(kept["text"])]

    async def _write(self, found: Sequence[_Found]) -> list[Effect]:
        """Remember new facts, give known ones further sources, and close those that have ended."""
        by_id: dict[str, list[_Found]] = {}
        for one in found:
            same = one.fact.same_as
            known = one.known[same - 1] if same is not None and same <= len(one.known) else None
            is_same = known is not None and known.valid_to is None and not one.fact.ends
            memory_id = known.id if known is not None and is_same else self._id_of(one.fact)
            by_id.setdefault(memory_id, []).append(one)
        said = {turn: None for one in found for turn in _turns_of(one)}
        present = {item.id: item for item in await self._ctx.memory.items([*by_id, *said])}
        effects: list[Effect] = []
        links: list[Effect] = []  # after all facts, so that the store can write these together
        for same_id, group in by_id.items():
            memory_id, item = same_id, present.get(same_id)
            turns = list(dict.fromkeys(turn for one in group for turn in _turns_of(one)))
            sources = tuple(self._source_of(turn, present.get(turn)) for turn in turns)
            tags = [tag for turn in turns if turn in present for tag in present[turn].tags]
            if item is not None and item.valid_to is not None and group[0].fact.held_to is None:
                if set(map(_place_of, sources)) <= set(map(_place_of, item.sources)):
                    continue  # it was over after these turns
                memory_id, item = derived_id(*self._message.key, "fact", same_id), None  # it holds again
            effects.append(
                self._remember(memory_id, group[0], sources, tags)
                if item is None
                else _with_sources(item, sources)
            )
            links += [Link(source_id=memory_id, relation="derived_from", target_id=turn) for turn in turns]
        return effects + links + _closings(found, set(by_id))

    def _id_of(self, fact: Fact) -> str:
        """The id of a fact: facts whose texts are equal after normalising are the same."""
        return derived_id(*self._message.tenant, "fact", normalised(fact.text))

    def _source_of(self, memory_id: str, turn: MemoryItem | None) -> Source:
        """The source that a fact names for a turn: that of the turn itself, with its speaker and its time."""
        if turn is not None and turn.sources:
            return turn.sources[0]
        item_id, _, index = memory_id.rpartition(".")
        if item_id and index.isascii() and index.isdigit():
            type_ = "doc" if item_id == self._message.item_id else "chat"
            return Source(item_id=item_id, index=int(index), type=type_)
        return Source(item_id=memory_id)

    def _remember(
        self, memory_id: str, one: _Found, sources: tuple[Source, ...], tags: Sequence[str]
    ) -> Remember:
        """A new fact, with its categories and the tags of its turns: who may read these is told by tags."""
        fact = one.fact
        said = [one.passages[number - 1].said_at for number in fact.turns if number <= len(one.passages)]
        info: dict[str, Any] = {**(fact.info or {})}
        if fact.entities:
            info["entities"] = msgspec.to_builtins(fact.entities)
        names = [name for entity in fact.entities for name in (entity.name, *entity.aliases)]
        began = fact.held_from or next((moment for moment in said if moment is not None), None)
        if began is not None and fact.held_to is not None:
            began = min(began, fact.held_to)  # what was over when it was said
        return Remember(
            memory_id=memory_id,
            text=fact.text,
            kind=fact.kind,
            concepts=tuple(dict.fromkeys(names)),
            tags=tuple(dict.fromkeys((*fact.categories, *tags))),
            info=info or None,
            sources=sources,
            session_id=self._message.session_id,
            valid_from=began,
            valid_to=fact.held_to,
        )


def _turns_of(one: _Found) -> list[str]:
    """The ids of the turns that say a fact."""
    return [one.passages[number - 1].memory_id for number in one.fact.turns if number <= len(one.passages)]


def _place_of(source: Source) -> tuple[str, int]:
    return source.item_id, source.index


def _with_sources(item: MemoryItem, sources: tuple[Source, ...]) -> Effect:
    """A known fact with further sources."""
    known = set(map(_place_of, item.sources))
    new = tuple(source for source in sources if _place_of(source) not in known)
    return Revise(memory_id=item.id, version=item.version, sources=(*item.sources, *new))


def _closings(found: Sequence[_Found], written: set[str]) -> list[Effect]:
    """Close the known facts that new ones end: they held until the new ones began."""
    closings: dict[str, Effect] = {}
    for fact, passages, known in found:
        said = [passages[number - 1].said_at for number in fact.turns if number <= len(passages)]
        until = fact.held_from or next((moment for moment in said if moment is not None), None)
        for number in fact.ends:
            item = known[number - 1] if number <= len(known) else None
            if item is None or item.id in written or item.valid_to is not None or until is None:
                continue
            closings[item.id] = Revise(
                memory_id=item.id, version=item.version, valid_to=max(until, item.held_at)
            )
    return list(closings.values())


def passage_of(item: MemoryItem) -> Passage:
    """A memory as it stands in a prompt."""
    source = item.sources[0] if item.sources else None
    speaker = (source.name or source.role if source else None) or "user"
    return Passage(memory_id=item.id, text=item.text, speaker=speaker, said_at=item.held_at)


def _passage_of_row(row: BufferRow) -> Passage:
    try:
        turn = msgspec.json.decode(row.content, type=Turn)
    except msgspec.DecodeError:
        turn = Turn(content=row.content)
    said_at = parse_chat_time(turn.chat_time) if turn.chat_time else None
    return Passage(
        memory_id=row.blob_id,
        text=turn.content,
        speaker=turn.name or turn.role,
        said_at=row.created_at if said_at is None else said_at,
    )
