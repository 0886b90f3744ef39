"""The handler of the label `add`: each turn of a chat becomes a memory, word for word.

With a language model, each turn is also buffered, and one `mem_read` for each buffer is kept waiting: due at
once when the buffer is full, else when its oldest turn has reached the age of `buffer.max_age_s`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.base.clock import from_epoch_ms
from reverie.effect import Buffer, Remember, Source
from reverie.memory.buffers import BufferKey, read_message
from reverie.memory.times import parse_chat_time
from reverie.outcome import Done
from reverie.turn import Turn, memory_id_of, read_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.memory.buffers import BufferState
    from reverie.message import Key, Message

__all__ = ["add", "memories_of"]


async def add(messages: list[Message], ctx: Context) -> dict[Key, Done]:
    """Keep each turn as one memory, with its source."""
    options: HandlerOptions = await ctx.options()
    if not options.buffers:
        return {message.key: Done(effects=memories_of(message)) for message in messages}
    keys = list(dict.fromkeys(BufferKey(*message.tenant) for message in messages))
    fillings = {state.key: _Filling(state, options) for state in await ctx.buffers.states(keys)}
    kept = {message.key: memories_of(message) for message in messages}
    texts = [memory.text for memories in kept.values() for memory in memories]
    sizes = iter(await ctx.models.count_tokens(texts))
    answers = {}
    for message in messages:
        memories = kept[message.key]
        rows = [_row_of(memory, next(sizes)) for memory in memories]
        follow_ups = fillings[BufferKey(*message.tenant)].take([row.tokens for row in rows])
        answers[message.key] = Done(effects=[*memories, *rows], follow_ups=follow_ups)
    return answers


class _Filling:
    """One buffer while a batch of messages fills it."""

    def __init__(self, state: BufferState, options: HandlerOptions) -> None:
        self._key, self._rows, self._tokens = state.key, state.rows, state.tokens
        self._options = options

    def take(self, tokens: Sequence[int]) -> list[Message]:
        """Count the new rows of a message; the answer is the `mem_read` that the buffer needs now, if any."""
        if not tokens or not self._options.reads_buffers:
            return []
        was_empty, was_full = self._rows == 0, self._tokens >= self._options.buffer_tokens
        self._rows += len(tokens)
        self._tokens += sum(tokens)
        if self._tokens >= self._options.buffer_tokens:
            return [] if was_full else [read_message(self._key)]
        if not was_empty:
            return []
        due = self._options.now + round(self._options.buffer_age_s * 1000)
        return [read_message(self._key, due=from_epoch_ms(due))]


def memories_of(message: Message) -> list[Remember]:
    """The turns of a message as memories, with the fields that its `info` names."""
    info = message.info or {}
    fields: dict[str, Any] = {
        name: value
        for name in ("device_id", "agent_id", "domain")
        if isinstance(value := info.get(name), str) and value
    }
    tags = info.get("custom_tags")
    if isinstance(tags, list):
        fields["tags"] = tuple(tag for tag in tags if isinstance(tag, str))
    return [
        Remember(
            memory_id=memory_id_of(message, index),
            text=turn.content,
            kind="turn",
            session_id=message.session_id,
            info=message.info,
            valid_from=parse_chat_time(turn.chat_time) if turn.chat_time else None,
            sources=(
                Source(
                    item_id=message.item_id,
                    index=index,
                    role=turn.role,
                    name=turn.name,
                    chat_time=turn.chat_time,
                    message_id=turn.message_id,
                    type=turn.type,
                ),
            ),
            **fields,
        )
        for index, turn in enumerate(read_turns(message.content))
        if turn.content.strip()
    ]


def _row_of(memory: Remember, tokens: int) -> Buffer:
    """The row that lets a turn be read for facts."""
    source = memory.sources[0]
    turn = Turn(content=memory.text, role=source.role or "user", name=source.name, chat_time=source.chat_time)
    return Buffer(
        buffer_id=memory.memory_id,
        blob_id=memory.memory_id,
        content=msgspec.json.encode(turn).decode(),
        tokens=tokens,
        metadata={"session_id": memory.session_id} if memory.session_id else {},
    )
