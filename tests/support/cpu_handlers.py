"""Handlers for tests that run them in other processes: what they shall do stands in the message."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from reverie import Bury, Cancel, Context, Done, Message, Remember, Retry, Snooze
from support.gate import pass_gate
from support.living import passes


def work(message: Message, ctx: Context) -> object:
    """Do what the content says, and note who did it."""
    order, _, argument = message.content.partition(" ")
    if order in ACTIONS:
        return ACTIONS[order](argument)
    return Done(effects=[Remember(memory_id=message.item_id, text=f"{os.getpid()} {ctx.worker} {argument}")])


async def work_async(message: Message, ctx: Context) -> object:
    await passes()
    return work(message, ctx)


def work_batch(messages: list[Message], ctx: Context) -> object:
    return {message.key: work(message, ctx) for message in messages}


def plain(message: Message) -> None:
    """Takes no context."""


def hang(argument: str) -> None:
    """Say which process hangs, then hang as a catastrophic regular expression does: with the lock held."""
    if argument:
        Path(argument).write_text(str(os.getpid()))
    import re  # noqa: PLC0415

    re.match(r"(a+)+$", "a" * 60 + "b")


def leave_child(argument: str) -> None:
    """Start a process that would live on, say which, and die."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Path(argument).write_text(str(child.pid))
    os._exit(1)


def main() -> None:
    """What a process of its own does in the tests of `ChildProcess`."""
    leave_child(sys.argv[1])


def fork(_: str) -> object:
    """Use a pool of processes as one does."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    return None


def stop(_: str) -> object:
    """Be hit by a signal that is meant for all."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return None


def fail(_: str) -> None:
    raise ZeroDivisionError("cannot share by none")


def raise_bury(_: str) -> None:
    raise Bury("no use")


ACTIONS = {
    "hang": hang,
    "gate": pass_gate,
    "exit": lambda code: os._exit(int(code)),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": leave_child,
    "fork": fork,
    "stop": stop,
    "fail": fail,
    "quit": lambda _: sys.exit(3),
    "retry": lambda _: Retry(after=5, reason="later"),
    "endless": lambda _: Retry(after=float("inf")),
    "snooze": lambda _: Snooze(after=5),
    "cancel": lambda _: Cancel(),
    "bury": raise_bury,
    "nonsense": lambda _: 7,
    "dictionary": lambda _: Done(effects=[{"type": "remember", "memory_id": "1", "text": "x"}]),
    "lambda": lambda _: Done(follow_ups=[lambda: None]),
    "surrogate": lambda _: Bury("bad \ud800"),
    "follow": lambda _: Done(follow_ups=[Message(user_id="ann", label="next", content="one")]),
}
