"""Handlers that use buffers, found by import path from any process."""

from __future__ import annotations

from reverie import Done, Message, Remember, ReverieError
from reverie.effect import Buffer, BufferDone
from reverie.memory.buffers import BufferKey


def keep(message: Message) -> Done:
    """Remember and buffer the content of a message."""
    name = message.item_id
    return Done(
        effects=[
            Remember(memory_id=name, text=message.content),
            Buffer(buffer_id=name, blob_id=name, content=message.content, tokens=len(message.content)),
        ]
    )


def _done(message: Message, before: int, claim) -> Done:
    text = f"{before}: " + " ".join(row.content for row in claim.rows)
    ids = tuple(row.buffer_id for row in claim.rows)
    return Done(
        effects=[
            Remember(memory_id=f"read-{message.item_id}", text=text),
            BufferDone(token=claim.token, buffer_ids=ids),
        ]
    )


def read(message: Message, ctx) -> Done:
    """Take the rows of the message's buffer, give them back, take them again, and make them a memory."""
    (state,) = ctx.buffers.states([BufferKey(message.user_id, message.mem_cube_id)])
    ctx.buffers.release(ctx.buffers.claim(max_tokens=1), "only to see")
    return _done(message, state.rows, ctx.buffers.claim(max_tokens=100))


async def read_async(message: Message, ctx) -> Done:
    """The same where calls are awaited."""
    (state,) = await ctx.buffers.states([BufferKey(message.user_id, message.mem_cube_id)])
    await ctx.buffers.release(await ctx.buffers.claim(max_tokens=1), "only to see")
    return _done(message, state.rows, await ctx.buffers.claim(max_tokens=100))


def read_foreign(message: Message, ctx) -> Done:
    """Each line asks for a buffer that is not the message's own; the reasons become a memory."""
    refused = []
    foreign = BufferKey("bob", "bob")
    for ask in (
        lambda: ctx.buffers.states([foreign]),
        lambda: ctx.buffers.claim(max_tokens=1, message=Message(user_id="bob", label="x")),
        lambda: ctx.buffers.release(type("Claim", (), {"key": foreign, "token": "t"})),
    ):
        try:
            ask()
        except ReverieError as error:
            refused.append(str(error))
    return Done(effects=[Remember(memory_id="refused", text="\n".join(refused))])


def fail(_: Message, ctx) -> Done:
    """Give rows back as failed."""
    ctx.buffers.release(ctx.buffers.claim(max_tokens=100), "no sense in it")
    return Done()
