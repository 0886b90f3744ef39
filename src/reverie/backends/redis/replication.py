"""Accepted is what so many replicas have: the confirmation that a submit waits for."""

from __future__ import annotations

import math
from typing import NamedTuple

from reverie.errors import BackendUnavailableError

__all__ = ["NotReplicatedError", "Replication"]


class NotReplicatedError(BackendUnavailableError):
    """What was submitted is on the primary, but too few replicas have confirmed it in time."""

    def __init__(self, place: str, confirmed: int, replicas: int, timeout_s: float) -> None:
        """Name the server, how many replicas have confirmed, how many should, and in what time."""
        self.place, self.confirmed, self.replicas, self.timeout_s = place, confirmed, replicas, timeout_s
        super().__init__(
            f"{place} has kept what was submitted, but {confirmed} instead of {replicas} of its replicas "
            f"confirmed it within queue.replication_timeout_s = {timeout_s:g}: a failover might lose it. It "
            "is safe to submit it again with the same item_id"
        )


class Replication(NamedTuple):
    """How many replicas must confirm a submit, and in what time."""

    place: str
    channel: str
    replicas: int
    timeout_s: float

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """What is sent behind a submit; the last answer is the number of replicas that have all of it.

        The server waits for what this connection has changed last. A submit of what is known changes nothing,
        and the first one came over another connection, so something is published that nobody hears: replicas
        get it after all that was changed before.
        """
        timeout_ms = math.ceil(self.timeout_s * 1000)
        return ("PUBLISH", self.channel, ""), ("WAIT", str(self.replicas), str(timeout_ms))

    def check(self, confirmed: int) -> None:
        """Refuse to call a submit accepted that too few have confirmed."""
        if confirmed < self.replicas:
            raise NotReplicatedError(self.place, confirmed, self.replicas, self.timeout_s)
