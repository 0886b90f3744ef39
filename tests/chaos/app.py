"""Handlers that hang, wait, kill and remember, for worker processes under test: `--app app:scheduler`."""

from __future__ import annotations

import os
import signal

from reverie import Done, Message, Remember, Scheduler
from support.gate import pass_gate

scheduler = Scheduler()


@scheduler.handler("gated")
def gated(message: Message) -> Done:
    """Wait at the test's gate, then remember."""
    pass_gate(os.environ["TEST_GATE"])
    return Done(effects=[Remember(memory_id=message.item_id, text=f"note {message.item_id}")])


@scheduler.handler("note")
def note(message: Message) -> Done:
    """Remember."""
    return Done(effects=[Remember(memory_id=message.item_id, text=f"note {message.item_id}")])


@scheduler.handler("killer")
def killer(message: Message) -> Done:
    """Take the process along, if the message says so."""
    if message.content == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return note(message)


def _hidden() -> None:
    """Handlers that no other process can import."""

    @scheduler.handler("hidden_killer")
    def hidden_killer(message: Message) -> Done:
        return killer(message)


_hidden()


@scheduler.handler("hang", timeout=0.5, max_attempts=1)
def hang(message: Message) -> None:
    """Never come back, as long as the test runs."""
    pass_gate(os.environ["TEST_GATE"])
