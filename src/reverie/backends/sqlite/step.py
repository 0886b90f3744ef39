"""One write transaction of the queue: the moves as statements, and what they have touched so far."""

from __future__ import annotations

import secrets
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import apsw
import msgspec

from reverie.backends.moves import Advance, Claim, Lost, Move, Settled, Submitted
from reverie.clock import from_epoch_ms, to_epoch_ms
from reverie.message import Message, level_of
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reverie.backends.moves import ClaimRequest, QueueLimits, Settlement, Want
    from reverie.effect import Effect

    ApplyEffects = Callable[[apsw.Connection, Message, Sequence[Effect], int], None]
    """Writes the effects of one message in the settling transaction: (connection, message, effects, now)."""

__all__ = ["SQL", "Step", "message_from_row"]

SQL = load_queries(__package__ or "", "queue.sql")

STORED_STATUS = {
    Move.COMPLETE: "completed",
    Move.RETRY: "pending",
    Move.RELEASE: "pending",
    Move.CANCEL: "failed",
    Move.BURY: "failed",
}
"""A cancelled message is stored as failed with the error `cancelled`."""


class Step:
    """Lives as long as one transaction. Whatever it does, `woken` and `earliest` say whom to tell."""

    def __init__(
        self, connection: apsw.Connection, now: int, limits: QueueLimits, apply_effects: ApplyEffects | None
    ) -> None:
        self._connection = connection
        self._now = now
        self._limits = limits
        self._apply_effects = apply_effects
        self._touched: set[int] = set()
        self.woken: set[str] = set()
        """Labels that have a lane in the ring which was not there before."""
        self.earliest: int | None = None
        """The first moment at which time will ask for something that this step has set up."""

    def insert(self, messages: Sequence[Message]) -> list[Submitted]:
        """Write new messages, each at the end of its lane, or without a place until it is due."""
        if not messages:
            return []
        last, _ = self._row("take_numbers", places=len(messages))
        places = range(last - len(messages) + 1, last + 1)
        return [
            Submitted(message.item_id, self._insert_one(message, place))
            for message, place in zip(messages, places, strict=True)
        ]

    def wake_lanes(self) -> None:
        """Put the touched lanes into the ring, as far as they may be served."""
        if self._touched:
            _, turn = self._row("take_numbers", places=0)
            woken = self._rows("wake_lanes", lanes=_json(sorted(self._touched)), turn=turn)
            self.woken.update(label for (label,) in woken)
            self._touched.clear()

    def claim(self, request: ClaimRequest) -> list[Claim]:
        """Serve the ready lanes of each wanted label."""
        claim_id = secrets.token_hex(16)
        lease_until = self._now + request.lease_ms
        rows: list[tuple[Any, ...]] = []
        for label, want in request.wants.items():
            rows += self._claim_label(label, want, request, claim_id, lease_until)
        if rows:
            self._expect(lease_until)
        self.wake_lanes()
        rows.sort(key=itemgetter(2, 1))  # level, then place
        return [Claim(message_from_row(row[4:]), claim_id, lease_until, (row[0], row[3])) for row in rows]

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Lost]:
        """Extend the leases that still stand."""
        lease_until = self._now + lease_ms
        bindings = [(lease_until, *_identity(claim)) for claim in claims]
        renewed = set(self._many("renew", bindings))
        lost = [claim for claim in claims if (claim.handle[0], claim.claim_id) not in renewed]
        return [Lost(claim.key, claim.claim_id) for claim in lost]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """End claims, each whole or not at all, and give their lanes back."""
        ended: Counter[int] = Counter()
        rests: dict[int, int] = {}
        together = [s for s in settlements if _is_plain(s)]
        if together and not self._end_together(together):
            together = []
        ended.update(settlement.claim.handle[1] for settlement in together)
        answers = []
        for settlement in settlements:
            if together and _is_plain(settlement):
                answers.append(Settled(key=settlement.claim.key, state="applied"))
                continue
            answer = self._settle_one(settlement)
            answers.append(answer)
            if answer.state == "applied":
                lane = settlement.claim.handle[1]
                ended[lane] += 1
                rests[lane] = max(rests.get(lane, 0), settlement.delay_ms)
        self._release_lanes(ended, rests)
        self.wake_lanes()
        return answers

    def advance(self, limit: int) -> Advance:
        """Do what time asks for."""
        staged = self._stage(limit)
        rested = self._rows("end_rests", now=self._now, limit=limit)
        self._touched.update(lane for (lane,) in rested)
        reaped = self._rows("reap", now=self._now, limit=limit, max_losses=self._limits.max_losses)
        self._release_lanes(Counter(lane for (lane,) in reaped), {})
        self.wake_lanes()
        expired = len(self._rows("expire", now=self._now, limit=limit))
        (next_due,) = self._row("next_due")
        counts = (staged, len(rested), len(reaped), expired)
        return Advance(
            staged=staged + len(rested),
            reaped=len(reaped),
            expired=expired,
            next_due=next_due,
            more=limit in counts,
        )

    def _insert_one(self, message: Message, place: int) -> Literal["accepted", "duplicate", "conflict"]:
        level = message.level or level_of(message.label)
        due = to_epoch_ms(message.due) if message.due else self._now
        fingerprint = message.fingerprint()
        (lane,) = self._row(
            "upsert_lane",
            user_id=message.user_id,
            project_id=message.mem_cube_id,
            message_type=message.label,
            level=level,
        )
        inserted = self._rows(
            "insert_message",
            user_id=message.user_id,
            id=message.item_id,
            message_type=message.label,
            memory_session_id=message.session_id,
            project_id=message.mem_cube_id,
            payload=message.content,
            lane=lane,
            level=level,
            place=place if due <= self._now else None,
            due=due if due > self._now else None,
            fingerprint=fingerprint,
            task_id=message.task_id,
            trace_id=message.trace_id,
            user_name=message.user_name,
            info=None if message.info is None else _json(message.info),
            timestamp=to_epoch_ms(message.timestamp) if message.timestamp else self._now,
            now=self._now,
        )
        if not inserted:
            (known,) = self._row("fingerprint", user_id=message.user_id, id=message.item_id)
            return "duplicate" if known == fingerprint else "conflict"
        if due <= self._now:
            self._touched.add(lane)
        else:
            self._expect(due)
        return "accepted"

    def _claim_label(
        self, label: str, want: Want, request: ClaimRequest, claim_id: str, lease_until: int
    ) -> list[tuple[Any, ...]]:
        lanes = [
            lane for (lane,) in self._rows("ready_lanes", label=label, lanes=min(want.lanes, want.messages))
        ]
        if not lanes:
            return []
        rows = self._rows(
            "claim_messages",
            lanes=_json(lanes),
            take=max(1, min(want.quantum, want.messages // len(lanes))),
            claim_id=claim_id,
            worker=request.worker,
            lease_until=lease_until,
            now=self._now,
        )
        served = Counter(row[3] for row in rows)
        self._many("mark_served", [(n, want.ordered, want.min_idle_ms, lane) for lane, n in served.items()])
        if not want.ordered:
            self._touched.update(lanes)
        return rows

    def _end_of(self, settlement: Settlement) -> tuple[Any, ...]:
        """The bindings of `end_claim`."""
        move = settlement.move
        status = STORED_STATUS[move]
        kept = move in {Move.COMPLETE, Move.CANCEL}
        return (
            status,
            settlement.attempt,
            "cancelled" if move is Move.CANCEL else settlement.error,
            None if status == "pending" else self._now,
            self._now + self._limits.retention_ms if kept else None,
            self._now,
            *_identity(settlement.claim),
        )

    def _end_together(self, settlements: Sequence[Settlement]) -> bool:
        """End plain completions by one statement; False, and nothing has changed, if not all stand."""
        claims = _json([_identity(settlement.claim) for settlement in settlements])
        self._connection.execute("SAVEPOINT together")
        self._connection.execute(SQL["end_claims"], (*self._end_of(settlements[0])[:6], claims))
        whole = self._connection.changes() == len(settlements)
        if not whole:
            self._connection.execute("ROLLBACK TO together")
        self._connection.execute("RELEASE together")
        return whole

    def _settle_one(self, settlement: Settlement) -> Settled:
        key = settlement.claim.key
        try:
            with self._connection:  # a savepoint
                state: Literal["applied", "stale"] = "applied" if self._end_claim(settlement) else "stale"
        except (apsw.ConstraintError, apsw.MismatchError, ValueError, TypeError, RecursionError) as error:
            return Settled(key=key, state="rejected", error=repr(error))
        return Settled(key=key, state=state)

    def _end_claim(self, settlement: Settlement) -> bool:
        """Write one settlement and all that follows from it; False if the claim is no longer the worker's."""
        if not self._many("end_claim", [self._end_of(settlement)]):
            return False
        if settlement.move is Move.COMPLETE:
            if self._apply_effects is not None and settlement.effects:
                self._apply_effects(self._connection, settlement.claim.message, settlement.effects, self._now)
            self.insert(settlement.follow_ups)
        elif settlement.delay_ms and STORED_STATUS[settlement.move] == "pending":
            due = self._now + settlement.delay_ms
            self._rows("postpone", row=settlement.claim.handle[0], due=due)
            self._expect(due)
        return True

    def _release_lanes(self, ended: Counter[int], rests: dict[int, int]) -> None:
        bindings = [(count, rests.get(lane, 0), self._now, lane) for lane, count in ended.items()]
        for (rest_until,) in self._many("release_lane", bindings):
            self._expect(rest_until)
        self._touched.update(ended)

    def _stage(self, limit: int) -> int:
        due = self._rows("due_messages", now=self._now, limit=limit)
        if not due:
            return 0
        last, _ = self._row("take_numbers", places=len(due))
        for place, (row,) in enumerate(due, last - len(due) + 1):
            self._touched.update(lane for (lane,) in self._rows("stage", row=row, place=place, now=self._now))
        return len(due)

    def _expect(self, moment: int | None) -> None:
        if moment is not None and (self.earliest is None or moment < self.earliest):
            self.earliest = moment

    def _rows(self, query: str, **bindings: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(SQL[query], bindings).fetchall()

    def _many(self, query: str, bindings: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return self._connection.executemany(SQL[query], bindings).fetchall() if bindings else []

    def _row(self, query: str, **bindings: Any) -> tuple[Any, ...]:
        return self._rows(query, **bindings)[0]


def message_from_row(row: Iterable[Any]) -> Message:
    """Build a message from the columns that `queue.sql` names `message columns`."""
    (
        user_id, item_id, label, session_id, cube, payload, level, attempts, losses,
        task_id, trace_id, user_name, info, timestamp,
    ) = row  # fmt: skip
    return Message(
        user_id=user_id,
        item_id=item_id,
        label=label,
        session_id=session_id,
        mem_cube_id=cube,
        content=payload,
        level=level,
        attempts=attempts,
        losses=losses,
        task_id=task_id,
        trace_id=trace_id,
        user_name=user_name,
        info=None if info is None else msgspec.json.decode(info),
        timestamp=from_epoch_ms(timestamp),
    )


def _is_plain(settlement: Settlement) -> bool:
    """Whether it is a completion that nothing follows from."""
    return settlement.move is Move.COMPLETE and not (settlement.effects or settlement.follow_ups)


def _identity(claim: Claim) -> tuple[int, str, str, str]:
    message = claim.message
    return claim.handle[0], message.user_id, message.item_id, claim.claim_id


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
