"""Named steps at which a test can make this process die.

`REVERIE_FAILPOINT=after_claim` kills the process with SIGKILL when it first reaches that step, as a power cut
or the out-of-memory killer would. Without the variable a step does nothing.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAILPOINTS", "failpoint"]

FAILPOINTS = {
    "before_accept": "the message was checked, nothing is written",
    "after_accept": "the message is durable, the caller has no answer yet",
    "after_claim": "a worker holds the claim, the handler has not begun",
    "in_handler": "the handler has run, its answer is not yet taken",
    "inside_settle": "effects are written inside the settling step, it is not yet committed",
    "between_effects_and_settle": "two databases: effects are durable, the queue does not know yet",
    "after_ingest": "a spooled message is durable in the queue, its file is still there",
    "inside_change": "a person's change of memories is written, it is not yet committed",
    "inside_index": "a step of the indexer is written, it is not yet committed",
    "inside_claim_buffer": "rows of a buffer are taken, it is not yet committed",
    "after_settle": "the settlement is durable, nobody was told",
}

_armed = os.environ.get("REVERIE_FAILPOINT")

if _armed is not None and _armed not in FAILPOINTS:
    raise ValueError(f"REVERIE_FAILPOINT={_armed!r}: must be one of {', '.join(FAILPOINTS)}")


def _die_at(name: str) -> None:
    """Die here, if `name` is the armed step."""
    if name == _armed:
        os.kill(os.getpid(), signal.SIGKILL)


failpoint: Callable[[str], object] = bool if _armed is None else _die_at
"""Die here, if this is the armed step."""
