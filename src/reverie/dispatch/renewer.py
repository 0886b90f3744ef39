"""The renewer: renews the worker's claims and reports that the worker is alive, from a thread of its own.

The renewer does not run on the event loop, because a handler that blocks the loop must not cost the worker
its claims.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.interface import Queue
    from reverie.backends.moves import Claim, Presence
    from reverie.message import Key

__all__ = ["Renewer"]

log = get_logger(__name__)

LAST_WAIT_S = 5.0
"""How long a stop waits for a renewal that is under way."""


class Renewer:
    """Extends the lease of every claim that `held` answers, every `every_s` seconds."""

    def __init__(
        self,
        queue: Queue,
        held: Callable[[], list[Claim]],
        presence: Callable[[], Presence],
        on_cancel: Callable[[Sequence[Key]], None],
        *,
        lease_s: float,
        every_s: float,
    ) -> None:
        """`on_cancel` is called, on any thread, with the held messages that are to be cancelled."""
        self._queue = queue
        self._held = held
        self._presence = presence
        self._on_cancel = on_cancel
        self._lease_ms = round(lease_s * 1000)
        self._every_s = every_s
        self._renewed: dict[int, int] = {}
        """`id` of a claim → the end of its lease, for the claims of the last renewal."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    async def start(self) -> None:
        """See `Service.start`."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="reverie-renewer", daemon=True)
            self._thread.start()

    async def stop(self, grace_s: float) -> None:
        """See `Service.stop`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            # The join blocks the loop shortly, because the loop's thread pool may be closed by now.
            thread.join(min(grace_s, LAST_WAIT_S))

    @property
    def has_claims(self) -> bool:
        """Whether the worker holds claims to renew."""
        return bool(self._held())

    def lease_end(self, claim: Claim) -> int:
        """When the lease of a claim ends, or has ended, by the queue's clock."""
        return max(claim.lease_until, self._renewed.get(id(claim), 0))

    async def renew(self) -> None:
        """Extend all leases once, and pass on the cancel requests."""
        held = self._held()
        renewal = await self._queue.renew(held, self._lease_ms, self._presence())
        self._on_cancel(renewal.cancelled)
        lost = {(claim.key, claim.claim_id) for claim in renewal.lost}
        self._renewed = {
            id(claim): self.lease_end(claim) if (claim.key, claim.claim_id) in lost else renewal.lease_until
            for claim in held
        }
        for claim in self._held():  # without those that were settled meanwhile
            if (claim.key, claim.claim_id) in lost:
                log.info("claim.lost", user_id=claim.key.user_id, item_id=claim.key.item_id)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stopping.wait(self._every_s):
                try:
                    runner.run(self.renew())
                except ReverieError as error:
                    log.warning("service.failed", service="renewer", error=str(error))
                except Exception:
                    log.exception("service.failed", service="renewer")
