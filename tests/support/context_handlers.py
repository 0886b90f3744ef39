"""Handlers that use all of their context, found by import path from any process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from reverie import Cancel, Done, Message, Remember, ReverieError, Revise
from support.gate import pass_gate


def use_all(message: Message, ctx) -> Done:
    """Read memory, ask the embedder, keep a memo, and write down what was seen."""
    hits = [hit.text for hit in ctx.memory.search("tea")]
    (item,) = ctx.memory.items(["note", "nothing"])
    vectors = ctx.models.embed([item.text, "x"])
    kept = ctx.memo("step", lambda: {"pid": os.getpid()})
    again = ctx.memo("step", lambda: {"pid": 0})
    assert kept == again
    assert ctx.cancelled is False
    text = f"{sorted(hits)} {item.text} v{item.version} {vectors} {kept['pid'] == os.getpid()}"
    return Done(effects=[Remember(memory_id=f"seen-{message.item_id}", text=text)])


async def use_all_async(message: Message, ctx) -> Done:
    """The same where calls are awaited."""
    hits = [hit.text for hit in await ctx.memory.search("tea")]
    (item,) = await ctx.memory.items(["note", "nothing"])
    vectors = await ctx.models.embed([item.text, "x"])
    kept = await ctx.memo("step", lambda: {"pid": os.getpid()})
    again = await ctx.memo("step", lambda: {"pid": 0})
    assert kept == again
    assert ctx.cancelled is False
    text = f"{sorted(hits)} {item.text} v{item.version} {vectors} {kept['pid'] == os.getpid()}"
    return Done(effects=[Remember(memory_id=f"seen-{message.item_id}", text=text)])


def ask_too_much(message: Message, ctx) -> Done:
    """Each line asks for something that is refused; the reasons become a memory."""
    refused = []
    for ask in (
        lambda: ctx.memory_of(Message(user_id="bob", label="x")).search("tea"),
        ctx.memory.tenants,
        lambda: ctx.models.complete("hello"),
    ):
        try:
            ask()
        except ReverieError as error:
            refused.append(str(error))
    return Done(effects=[Remember(memory_id="refused", text="\n".join(refused))])


def append(message: Message, ctx) -> Done:
    """Add a word to the memory `note`; the content may name a file to leave and die by at the first run."""
    word, _, flag = message.content.partition(" ")
    (item,) = ctx.memory.items(["note"])
    if flag and len(Path(flag).read_text()) < 2:
        with Path(flag).open("a") as file:
            file.write("x")
        os._exit(9)
    return Done(effects=[Revise(memory_id="note", version=item.version, text=f"{item.text} {word}")])


def watch_for_cancel(message: Message, ctx) -> Done:
    """Come to the gate, then look until someone wants the message cancelled."""
    if message.content:
        pass_gate(message.content)
        while not ctx.cancelled:
            pass
    return Done()


class LengthEmbedder:
    """One number for each text: its length."""

    async def embed(self, texts):
        return [[float(len(text))] for text in texts]


def length_embedder(settings) -> LengthEmbedder:
    return LengthEmbedder()


def watch_batch(messages: list[Message], ctx) -> dict:
    """Look, for the first message of a batch, until someone wants it cancelled."""
    first = messages[0]
    pass_gate(first.content)
    while not ctx.line.is_cancelled(first.key):
        pass
    return {message.key: Cancel() if message is first else Done() for message in messages}


def leave_a_thread(message: Message, ctx) -> None:
    """Answer while a thread of the handler still asks; the content `next` only answers."""
    if message.content != "next":
        asked = threading.Event()

        def ask() -> None:
            asked.set()
            ctx.models.embed(["slow"])

        threading.Thread(target=ask, daemon=True).start()
        asked.wait(30)


def look_at_neighbour(message: Message, ctx) -> Done:
    """Ask for the memories of the user that the content names."""
    try:
        ctx.memory_of(Message(user_id=message.content, label="x")).items(["note"])
    except ReverieError as error:
        return Done(effects=[Remember(memory_id="refused", text=str(error))])
    return Done()


def read_batch(messages: list[Message], ctx) -> dict:
    """Ask the language model for each message, at its tenant's expense; a memo keeps each answer."""
    for message in messages:

        def ask(message: Message = message) -> str:
            return ctx.models.complete(message.content, message=message).text

        ctx.memo("ask", ask, message=message)
    return {message.key: Done() for message in messages}
