"""The queue on Redis: each move is one call of one function on the server, over the whole batch."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from functools import partial
from itertools import compress, count
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from redis.exceptions import ResponseError

from reverie.backends.control import ControlResult
from reverie.backends.limits import unknown_parent
from reverie.backends.moves import Advance, EndedMessage, Lost, Move, Pruned, Renewal, Settled, Submitted
from reverie.backends.redis import rows, wire
from reverie.backends.redis.attendance import Attendance
from reverie.backends.redis.keys import encode_id
from reverie.backends.redis.library import WrongTypeError
from reverie.backends.redis.outbox import Outbox
from reverie.base.bridge import run_here
from reverie.base.failpoints import failpoint
from reverie.base.logs import get_logger
from reverie.errors import ReverieError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reverie.backends.control import Command
    from reverie.backends.moves import Claim, ClaimRequest, Presence, QueueLimits, Settlement
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library
    from reverie.backends.redis.replication import Replication
    from reverie.message import Message

__all__ = ["RedisQueue"]

LONGEST_BLOCK_S = 30.0
"""The longest wait, because a token can get lost with the worker that took it."""
LOOK_AGAIN_S = 1.0
"""How long to wait before another claim, if there is work for which the worker had no room."""
NUDGE_TIMEOUT_S = 1.0
APPLIED = Settled(state="applied")

R = TypeVar(
    "R",
    wire.TimeReply,
    wire.ClaimReply,
    wire.SubmitReply,
    wire.RenewReply,
    wire.MemoReply,
    wire.SettleReply,
    wire.ControlReply,
    wire.AdvanceReply,
    wire.PruneReply,
)

log = get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode


class RedisQueue:
    """See `reverie.backends.interface.Queue`."""

    def __init__(
        self,
        connections: Connections,
        library: Library,
        direct: Library,
        keys: Keys,
        limits: QueueLimits,
        *,
        replication: Replication | None = None,
    ) -> None:
        """`direct` calls the same functions on the calling thread; submits wait for `replication`."""
        self._connections = connections
        self._library = library
        self._direct = direct
        self._keys = keys
        self._limits = limits
        self._limits_row = wire.limits_row(limits)
        self._replication = replication
        self._server_time: tuple[int, float] | None = None
        """The queue's clock and our monotonic one, at the last answer."""
        self._passed: frozenset[str] = frozenset()
        """Labels of the last claim that have work for which the worker had no room."""
        self._wrong = ""
        """What the last claim said of a lane that it could not serve; logged once."""
        self._standing: tuple[str, tuple[str, ...]] | None = None
        """The worker that has a standing request, and the labels of that request."""
        self._heard_until = b"0"
        """The last entry of the stream of horizons that this worker has read."""
        self._attendance = Attendance(connections, keys)
        self._outbox = Outbox(partial(self._submit, library))

    async def submit(self, messages: Sequence[Message]) -> list[Submitted]:
        """See `Queue.submit`."""
        if all(map(rows.is_plain, messages)):
            return await self._outbox.put(messages)
        return await self._submit(self._library, messages)

    def submit_here(self, messages: Sequence[Message]) -> list[Submitted]:
        """See `SubmitsHere.submit_here`."""
        return run_here(self._submit(self._direct, messages))

    async def _submit(self, library: Library, messages: Sequence[Message]) -> list[Submitted]:
        encoded = self._encoded(rows.submit_request(messages, self._keys))
        replication = self._replication
        answers: list[Submitted] = []

        def expect() -> None:
            """Prepare the most likely answers while the server is at work."""
            answers[:] = [Submitted(message.item_id, "accepted") for message in messages]

        if replication is None:
            answer, confirmed = await library.call("submit", encoded, expect), 0
        else:
            expect()
            answer, confirmed = await library.call_replicated("submit", encoded, replication)
        reply = self._decoded(answer, wire.SubmitReply)
        if reply.refusal is not None:
            wire.raise_refusal(reply.refusal, self._limits, messages, reply.now)
        if replication is not None:
            replication.check(confirmed)
        for other in reply.others:
            answers[other.index] = Submitted(other.item_id or messages[other.index].item_id, other.word)
        return answers

    async def claim(self, request: ClaimRequest) -> list[Claim]:
        """See `Queue.claim`."""
        claim_id = secrets.token_hex(16)
        if request.stands:
            self._attendance.begin(request.worker)
        self._standing = None
        reply = await self._call("claim", {"claim": wire.claim_request(request, claim_id)}, wire.ClaimReply)
        labels = list(request.wants)
        self._passed = frozenset(labels[index] for index in reply.passed)
        if reply.wrong != self._wrong:
            self._wrong = reply.wrong
            if error := WrongTypeError.of(self._connections.place, reply.wrong):
                log.error("redis.wrong_type", error=str(error))
        claims = wire.claims_of(reply.served, claim_id, reply.now + request.lease_ms)
        if reply.hand is not None:
            claims += wire.claims_of(reply.hand.served, reply.hand.claim_id, reply.hand.lease_until)
        elif request.stands and not claims:
            self._standing = (request.worker, tuple(request.wants))
        return claims

    async def renew(
        self, claims: Sequence[Claim], lease_ms: int, presence: Presence | None = None
    ) -> Renewal:
        """See `Queue.renew`."""
        request = {
            "claims": [wire.claim_row(claim) for claim in claims],
            "lease_ms": lease_ms,
            "presence": None if presence is None else wire.presence_row(presence),
        }
        reply = await self._call("renew", request, wire.RenewReply)
        return Renewal(
            lost=[Lost(claims[index].key, claims[index].claim_id) for index in reply.lost],
            cancelled=[claims[index].key for index in reply.cancelled],
            lease_until=reply.now + lease_ms,
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See `Queue.settle`."""
        if any(settlement.effects for settlement in settlements):
            raise ValueError("this queue applies no effects: give them to the effect store first")
        plain = [one.move is Move.COMPLETE and not one.follow_ups for one in settlements]
        others = [one for one, is_plain in zip(settlements, plain, strict=True) if not is_plain]
        request = {
            "completed": wire.completions(list(compress(settlements, plain)), self._keys),
            "settlements": [wire.settlement_row(one, self._keys) for one in others],
        }
        reply = await self._call("settle", request, wire.SettleReply, lambda: failpoint("inside_settle"))
        problems = {index: repr(unknown_parent(parent)) for index, parent in reply.unknown}
        answers = (Settled(state=state, error=problems.get(n)) for n, state in enumerate(reply.states))
        stale, completions = set(reply.stale), count()
        return [
            (Settled(state="stale") if next(completions) in stale else APPLIED) if is_plain else next(answers)
            for is_plain in plain
        ]

    async def save_memo(self, claim: Claim, step: str, value: str) -> bool:
        """See `Queue.save_memo`."""
        request = {"claim": wire.claim_row(claim), "step": step, "value": value}
        return (await self._call("save_memo", request, wire.MemoReply)).kept

    async def load_memos(self, claim: Claim) -> dict[str, str]:
        """See `Queue.load_memos`."""
        flat: list[bytes] = await self._connections.call("HGETALL", self._keys.memos(claim.key))
        texts = (text.decode() for text in flat)
        return dict(zip(texts, texts, strict=True))

    async def control(self, command: Command) -> ControlResult:
        """See `Queue.control`."""
        reply = await self._call("control", wire.control_request(command), wire.ControlReply)
        return ControlResult(
            changed=wire.keys_of(reply.changed), requested=wire.keys_of(reply.requested), more=reply.more
        )

    async def advance(self, limit: int) -> Advance:
        """See `Queue.advance`."""
        reply = await self._call("advance", {"limit": limit}, wire.AdvanceReply)
        _, staged, rested, reaped, expired = reply.counts
        return Advance(
            staged=staged + rested,
            reaped=reaped,
            expired=expired,
            ended=[EndedMessage(wire.read_message(row), row.submitted_at) for row in reply.ended],
            next_due=reply.next_due if reply.next_due >= 0 else None,
            more=limit in reply.counts,
        )

    async def prune(self, limit: int, after: str | None = None) -> Pruned:
        """See `Queue.prune`."""
        reply = await self._call("prune", {"limit": limit, "after": after}, wire.PruneReply)
        return Pruned(changed=reply.changed, after=reply.after)

    async def wait(self, labels: Sequence[str], until: int | None) -> list[Claim]:
        """See `Queue.wait`.

        The first waiter takes a token from one of the lists; the functions leave a new token as long as there
        is work. A test that moves the clock leaves tokens on a list that all waiters block on. Tokens of
        labels for which this worker had no room a moment ago are left to other workers.
        """
        if not labels:
            await self._wait_for_time(until)
            return []
        heard = [label for label in labels if label not in self._passed]
        seconds = LONGEST_BLOCK_S if len(heard) == len(labels) else LOOK_AGAIN_S
        if until is not None:
            seconds = min(seconds, (until - await self._now()) / 1000)
        if seconds <= 0:
            return []
        tokens = self._keys.wake(heard)
        hand = None
        if self._standing is not None and self._standing[1] == tuple(labels):
            hand = self._keys.hand(self._standing[0])
            tokens.insert(0, hand)
        answers: list[list[bytes] | None] = []
        command = ("BLPOP", *tokens, f"{max(seconds, 0.001):.3f}")
        try:
            with self._named(tokens, "list"):
                answers.append(await self._connections.block(seconds, *command, late=answers.append))
        except asyncio.CancelledError:
            if claims := _claims_in(answers, hand):
                return claims  # no other worker will get them
            if heard and answers != [None]:
                await self._nudge(heard)
            raise
        return _claims_in(answers, hand)

    async def _wait_for_time(self, until: int | None) -> None:
        """Wait until `until`, or until something falls due that any worker has set up meanwhile.

        All waiters read the same stream: a suspended worker cannot take the news from the others.
        """
        latest = await self._now() + LONGEST_BLOCK_S * 1000
        end = latest if until is None else min(latest, until)
        while (left_ms := end - await self._now()) > 0:
            read = ("XREAD", "BLOCK", str(math.ceil(left_ms)), "STREAMS", self._keys.wake_horizon)
            with self._named([self._keys.wake_horizon], "stream"):
                answer = await self._connections.block(
                    left_ms / 1000, *read, self._heard_until, late=lambda _: None
                )
            for entry, (_, moment) in answer[0][1] if answer is not None else ():
                self._heard_until = entry
                end = min(end, int(moment))

    @contextlib.contextmanager
    def _named(self, keys: Sequence[str], kind: str) -> Iterator[None]:
        """Name the keys of a wait, if one of them has a wrong type."""
        try:
            yield
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise WrongTypeError(self._connections.place, " or ".join(keys), kind) from error
            raise

    async def close(self) -> None:
        """Close the connection that is kept open for standing requests."""
        await self._attendance.close()

    async def _nudge(self, labels: Sequence[str]) -> None:
        """Replace a token that the server may have given to a wait that was cancelled."""
        request = {"labels": [encode_id(label) for label in labels]}
        with contextlib.suppress(ReverieError, TimeoutError):
            async with asyncio.timeout(NUDGE_TIMEOUT_S):
                await self._call("nudge", request, wire.TimeReply)

    async def _now(self) -> float:
        """The queue's time: what the server said last, plus what has passed since on our own clock."""
        if self._server_time is None:
            await self._call("now", {}, wire.TimeReply)
        assert self._server_time is not None
        now, heard_at = self._server_time
        return now + (time.monotonic() - heard_at) * 1000

    async def _call(
        self,
        function: str,
        request: dict[str, Any],
        reply: type[R],
        sent: Callable[[], object] | None = None,
    ) -> R:
        return self._decoded(await self._library.call(function, self._encoded(request), sent), reply)

    def _encoded(self, request: dict[str, Any]) -> bytes:
        return _encode(request | {"limits": self._limits_row})

    def _decoded(self, answer: bytes, reply: type[R]) -> R:
        decoded = msgspec.msgpack.decode(answer, type=reply)
        self._server_time = (decoded.now, time.monotonic())
        return decoded


def _claims_in(answers: Sequence[list[bytes] | None], hand: str | None) -> list[Claim]:
    """The claims that a wait has brought for the standing request, if any."""
    for answer in answers:
        if answer is not None and answer[0].decode() == hand:
            given = msgspec.msgpack.decode(answer[1], type=wire.Hand)
            return wire.claims_of(given.served, given.claim_id, given.lease_until)
    return []
