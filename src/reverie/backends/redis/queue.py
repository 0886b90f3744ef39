"""The queue on Redis: each move is one call of one function on the server, over the whole batch."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from reverie.backends.moves import Accepted, Advance, Lost, Settled, Submitted
from reverie.backends.redis import wire
from reverie.backends.redis.keys import encode_id
from reverie.errors import ReverieError
from reverie.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.backends.moves import Claim, ClaimRequest, QueueLimits, Settlement
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library
    from reverie.message import Message

__all__ = ["RedisQueue"]

LONGEST_BLOCK_S = 30.0
"""A token can get lost with the worker that took it, so nobody sleeps longer than this."""
NUDGE_TIMEOUT_S = 1.0

R = TypeVar(
    "R",
    wire.TimeReply,
    wire.ClaimReply,
    wire.SubmitReply,
    wire.RenewReply,
    wire.SettleReply,
    wire.AdvanceReply,
)

_encode = msgspec.msgpack.Encoder().encode


class RedisQueue:
    """See `reverie.backends.interface.Queue`."""

    def __init__(self, connections: Connections, library: Library, keys: Keys, limits: QueueLimits) -> None:
        self._connections = connections
        self._library = library
        self._keys = keys
        self._limits = limits
        self._server_time: tuple[int, float] | None = None
        """The queue's clock and our monotonic one, at the last answer."""

    async def submit(self, messages: Sequence[Message], claim: ClaimRequest | None = None) -> Accepted:
        """See `Queue.submit`."""
        claim_id = secrets.token_hex(16)
        request = {
            "messages": [wire.message_row(message, self._keys) for message in messages],
            "claim": wire.claim_request(claim, claim_id) if claim else None,
        }
        reply = await self._call("submit", request, wire.SubmitReply)
        answers = [
            Submitted(message.item_id, cast("Literal['accepted', 'duplicate', 'conflict']", word))
            for message, word in zip(messages, reply.answers, strict=True)
        ]
        claims = wire.claims_of(reply.served, claim_id, reply.now + claim.lease_ms) if claim else []
        return Accepted(answers=answers, claims=claims)

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """See `Queue.claim`."""
        claim_id = secrets.token_hex(16)
        body = {"claim": wire.claim_request(request, claim_id)}
        reply = await self._call("claim", body, wire.ClaimReply)
        return wire.claims_of(reply.served, claim_id, reply.now + request.lease_ms)

    async def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Lost]:
        """See `Queue.renew`."""
        request = {"claims": [wire.claim_row(claim) for claim in claims], "lease_ms": lease_ms}
        reply = await self._call("renew", request, wire.RenewReply)
        return [Lost(claims[index].key, claims[index].claim_id) for index in reply.lost]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See `Queue.settle`."""
        if any(settlement.effects for settlement in settlements):
            raise ValueError("this queue applies no effects: give them to the effect store first")
        request = {
            "settlements": [wire.settlement_row(settlement, self._keys) for settlement in settlements],
            "retention_ms": self._limits.retention_ms,
        }
        reply = await self._call("settle", request, wire.SettleReply, lambda: failpoint("inside_settle"))
        return [
            Settled(key=settlement.claim.key, state="applied" if applied else "stale")
            for settlement, applied in zip(settlements, reply.applied, strict=True)
        ]

    async def advance(self, limit: int) -> Advance:
        """See `Queue.advance`."""
        request = {"limit": limit, "max_losses": self._limits.max_losses}
        reply = await self._call("advance", request, wire.AdvanceReply)
        return Advance(
            staged=reply.staged + reply.rested,
            reaped=reply.reaped,
            expired=reply.expired,
            next_due=reply.next_due if reply.next_due >= 0 else None,
            more=limit in {reply.staged, reply.rested, reply.reaped, reply.expired},
        )

    async def wait(self, labels: Sequence[str], until: int | None) -> None:
        """See `Queue.wait`.

        A token is taken from one of the lists by whoever waits first; the functions leave a new one as
        long as there is work. A test that moves the clock leaves tokens on a list that all wait for.
        """
        seconds = LONGEST_BLOCK_S
        if until is not None:
            seconds = min(seconds, (until - await self._now()) / 1000)
        if seconds <= 0:
            return
        command = ("BLPOP", *self._keys.wake(labels), f"{max(seconds, 0.001):.3f}")
        try:
            await self._connections.block(seconds, *command)
        except asyncio.CancelledError:
            await self._nudge(labels)
            raise

    async def _nudge(self, labels: Sequence[str]) -> None:
        """Make up for a token that the server may have given to a waiter which is gone."""
        request = {"labels": [encode_id(label) for label in labels]}
        with contextlib.suppress(ReverieError, TimeoutError):
            async with asyncio.timeout(NUDGE_TIMEOUT_S):
                await self._call("nudge", request, wire.TimeReply)

    async def _now(self) -> float:
        """Tell the queue's time by our own clock, from what the server said last."""
        if self._server_time is None:
            await self._call("now", None, wire.TimeReply)
        assert self._server_time is not None
        now, heard_at = self._server_time
        return now + (time.monotonic() - heard_at) * 1000

    async def _call(
        self, function: str, request: Any, reply: type[R], sent: Callable[[], None] | None = None
    ) -> R:
        answer = await self._library.call(function, _encode(request), sent)
        decoded = msgspec.msgpack.decode(answer, type=reply)
        self._server_time = (decoded.now, time.monotonic())
        return decoded
