"""Replication: a submit is accepted when enough replicas have confirmed it."""

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
        """The commands sent behind a submit; the last one answers how many replicas have confirmed all of it.

        `WAIT` counts the replicas that have everything this connection has written. A repeated submit writes
        nothing, because its messages are known, and these came over another connection. Therefore something
        is published on a channel without listeners: a replica that has it has everything that was written
        before.
        """
        timeout_ms = math.ceil(self.timeout_s * 1000)
        return ("PUBLISH", self.channel, ""), ("WAIT", str(self.replicas), str(timeout_ms))

    def check(self, confirmed: int) -> None:
        """Raise `NotReplicatedError` if too few replicas have confirmed a submit."""
        if confirmed < self.replicas:
            raise NotReplicatedError(self.place, confirmed, self.replicas, self.timeout_s)
