"""Replication: a submit, an activity or a firing is accepted when enough replicas have confirmed it."""

from __future__ import annotations

import math
from typing import NamedTuple

from reverie.errors import BackendUnavailableError

__all__ = ["NotReplicatedError", "Replication"]


class NotReplicatedError(BackendUnavailableError):
    """What was written is on the primary, but too few replicas have confirmed it in time."""

    def __init__(
        self, place: str, confirmed: int, replicas: int, timeout_s: float, *, what: str, advice: str
    ) -> None:
        """Name the server, how many replicas have confirmed `what`, how many should, in what time."""
        self.place, self.confirmed, self.replicas, self.timeout_s = place, confirmed, replicas, timeout_s
        super().__init__(
            f"{place} has kept {what}, but {confirmed} instead of {replicas} of its replicas "
            f"confirmed it within queue.replication_timeout_s = {timeout_s:g}: a failover might lose it. "
            f"{advice}"
        )


class Replication(NamedTuple):
    """How many replicas must confirm a call, and in what time."""

    place: str
    channel: str
    replicas: int
    timeout_s: float

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands sent behind a call; the last one answers how many replicas have confirmed all of it.

        `WAIT` counts the replicas that have everything this connection has written. A repeated submit writes
        nothing, because its messages are known, and these came over another connection. Therefore something
        is published on a channel without listeners: a replica that has it has everything that was written
        before.
        """
        timeout_ms = math.ceil(self.timeout_s * 1000)
        return ("PUBLISH", self.channel, ""), ("WAIT", str(self.replicas), str(timeout_ms))

    def check(
        self,
        confirmed: int,
        what: str = "what was submitted",
        advice: str = "It is safe to submit it again with the same item_id",
    ) -> None:
        """Raise `NotReplicatedError` if too few replicas have confirmed `what`."""
        if confirmed < self.replicas:
            raise NotReplicatedError(
                self.place, confirmed, self.replicas, self.timeout_s, what=what, advice=advice
            )
