"""What runs handlers: a batch of claims, and the places where a batch can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from reverie.backends.moves import Claim
    from reverie.dispatch.context import Context
    from reverie.dispatch.registry import Handler
    from reverie.message import Key, Message
    from reverie.outcome import Outcome

__all__ = ["Batch", "Executor"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Claims of one label that run together: prefixes of one lane or of several."""

    batch_id: int
    handler: Handler
    claims: Sequence[Claim]
    seconds: dict[int, float] | None = None
    """How long the handler took for each claim it was called for, by the claim's `id`; a batch's call counts
    for all. None: nobody wants to know."""

    @property
    def label(self) -> str:
        """The label of its messages."""
        return self.handler.label

    @property
    def messages(self) -> list[Message]:
        """The messages to run, in their order."""
        return [claim.message for claim in self.claims]


class Executor(Protocol):
    """A place where handlers run."""

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """Run a batch; answer one outcome for each of its claims, in their order. Never raises.

        None means that the message was not run: one before it in its lane must be retried, the batch took
        longer than expected, or it was abandoned. `timeout_s` is for one call of the handler; a longer one
        counts as failed.
        """
        ...

    async def abandon(self, batch_id: int) -> None:
        """Give a running batch up: what has no outcome yet is answered as not run."""
        ...

    def cancel(self, keys: Collection[Key]) -> None:
        """End the running calls of these messages, as far as that is possible.

        `ctx.cancelled` says so to a handler that looks, and what has not begun does not begin.
        """
        ...

    async def close(self) -> None:
        """Let go of threads and processes. Idempotent."""
        ...
