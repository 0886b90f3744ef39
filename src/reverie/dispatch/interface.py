"""A batch of claims, and the executor: a place where batches run."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """Seconds that the handler took, by the `id` of each claim it was called for. The call of a batch handler
    counts for all its claims. None if nobody measures."""
    calls: list[float] = field(default_factory=list)
    """Seconds that each call of the handler took, without the wait for its turn; empty if its place does not
    measure them."""

    @property
    def label(self) -> str:
        """The label of the messages."""
        return self.handler.label

    @property
    def messages(self) -> list[Message]:
        """The messages to run, in their order."""
        return [claim.message for claim in self.claims]


class Executor(Protocol):
    """A place where handlers run."""

    async def run(self, batch: Batch, context: Context, timeout_s: float) -> list[Outcome | None]:
        """Run a batch; answer one outcome for each of its claims, in their order. Never raises.

        None means that the message was not run: a message before it in its lane must be retried, the batch
        took longer than expected, or the batch was abandoned. A call of the handler that takes longer than
        `timeout_s` counts as failed.
        """
        ...

    async def abandon(self, batch_id: int) -> None:
        """Give up a running batch: its messages without an outcome are answered as not run."""
        ...

    def cancel(self, keys: Collection[Key]) -> None:
        """End the running calls of these messages, as far as that is possible.

        A handler can see this in `ctx.cancelled`. Messages of the batch that have not begun do not begin.
        """
        ...

    async def close(self) -> None:
        """Release threads and processes. Idempotent."""
        ...
