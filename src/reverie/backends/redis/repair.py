"""Repair of a queue whose keys were lost or changed by hand. Only a repair looks through all keys.

A repair goes through the queue in small steps, so that workers may go on meanwhile. Each step is a call of
one function (`lua/repair.lua`, `lua/reindex.lua`, `lua/recount.lua`):

1. every entry of every lane: does it have an item, and the right consumer?
2. every body that waits aside, and every item: is everything there that must point to it?
3. every user: are their lanes known, and do they have a turn?
4. every index: does each member point to something?
5. the counts of all labels, and the claims.
6. every trigger (`repair_triggers.py`).
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from reverie.backends.redis import wire
from reverie.backends.redis.keys import decode_id, encode_id
from reverie.backends.redis.repair_triggers import Reply, TriggerRepair
from reverie.backends.redis.rows import message_row
from reverie.message import Key, Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from reverie.backends.moves import QueueLimits
    from reverie.backends.redis.connection import Connections
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library

__all__ = ["MOST_NAMED", "Repaired", "Repairer"]

SCANNED = 1000
"""Keys that one SCAN looks at."""
BATCH = 100
"""The most lanes or users that one step is given."""
MOST_NAMED = 1000
"""The most lost messages, and unreadable entries, that are named; further ones are only counted."""
ROUNDS = 3
"""How often labels are counted at most, while their counts are wrong."""
QUIET_S = 2.0
"""How long to look for a moment at which no label changes."""
STILL_S = 0.05
"""A clock that has not moved for this long is stopped, as in a test."""
MISPLACED = ("claims", "ghosts", "groups", "returned")
"""Kinds of damage to the entries of a lane: a dry run that has found one cannot foresee what follows."""
INDEXES = ("leases", "due", "deadlines", "failed", "cancelled", "expiry", "resting")

_encode = msgspec.msgpack.Encoder().encode
_decode_message = msgspec.json.Decoder(Message).decode


class Repaired(msgspec.Struct, kw_only=True):
    """What a repair has looked at, found and mended; with `dry_run` what it would have mended."""

    dry_run: bool
    lanes: int = 0
    """Lanes that have a stream."""
    users: int = 0
    messages: int = 0
    """Messages that have not ended."""
    mended: dict[str, int] = {}
    """How often each kind of damage was found; `reverie.cli.commands.redis` has words for them."""
    lost: list[Key] = []
    """Waiting messages whose body is nowhere."""
    lost_count: int = 0
    unreadable: list[str] = []
    """Entries that no Reverie has written, as stream and id; they are left alone."""
    unreadable_count: int = 0
    busy: int = 0
    """Users with so many messages, moving so fast, that their lanes could not be counted."""


class _Entries(Reply, frozen=True):
    lanes: list[tuple[str, list[tuple[str, str, str]], list[str]]]
    """Per lane: where to go on; entries without an item (id, item id, body); ids of foreign entries."""


class _Items(Reply, frozen=True):
    cursors: list[str]
    lost: list[tuple[str, str]]
    open: int
    seq: int


class _Page(Reply, frozen=True):
    cursor: str


class _Aside(_Page, frozen=True):
    orphans: list[tuple[str, str]]


_Row = tuple[str, str, str, list[tuple[str, int]]]
"""A user whose items are counted: id, cursor, witness that nothing has moved, messages aside by lane."""
_Sum = tuple[str, int, int, int, int]
"""A label, and how many of its messages: not ended, completed, failed, cancelled."""


class _Users(Reply, frozen=True):
    rows: list[tuple[str, str, list[tuple[str, int]], list[_Sum], bool]]
    """Per user: the next cursor, witness and counts; the sums by label; whether to count again."""


class _Labels(Reply, frozen=True):
    seq: int
    """The last number that a message got."""
    labels: list[tuple[str, int, int, int, int, int, int]]
    """A sum, then ever completed, ever failed. The label of all labels together is empty."""


R = TypeVar("R", bound=Reply)


class Repairer:
    """Mends one queue. Use it once."""

    def __init__(
        self,
        connections: Connections,
        library: Library,
        keys: Keys,
        limits: QueueLimits,
        *,
        lease_ms: int,
        dry_run: bool = False,
        bury_lost: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """A claim that has lost its lease gets one of `lease_ms`; `bury_lost` ends messages without a body.

        `progress` is called over and over: with how many lanes and users were looked at, and how many there
        are.
        """
        self._connections = connections
        self._library = library
        self._keys = keys
        self._progress = progress
        self._request = {
            "limits": wire.limits_row(limits),
            "dry": dry_run or None,  # None is nil in Lua
            "bury": bury_lost or None,
            "lease_ms": lease_ms,
        }
        self._dry = dry_run
        self._report = Repaired(dry_run=dry_run, mended=defaultdict(int))
        self._triggers = TriggerRepair(self._call, self._batches, keys.trigger_prefix, dry_run=dry_run)
        self._done, self._total = 0, 0
        self._rings: set[str] = set()
        self._seq = 0
        self._moment: dict[str, int] = {}
        """The moment for which labels are counted, and the last number that a message had then."""
        self._sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Label → how many of its messages at that moment: not ended, completed, failed, cancelled."""
        self._extra: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Lane → how many messages a dry run would have adopted: in its stream, and aside."""

    async def repair(self) -> Repaired:
        """Look at everything and mend it."""
        await self._survey()
        await self._triggers.remove_locks()
        async for names in self._batches(f"{self._keys.prefix}:", _is_lane):
            await self._repair_lanes(names)
        await self._repair_aside()
        async for users in self._batches(self._users_start, _is_user):
            await self._reindex(users)
        for index in INDEXES:
            await self._remove_strays(index)
        await self._recount()
        unwritten = self._dry and self._report.mended["lanes"]  # all members would seem to point to nothing
        for label in () if unwritten else sorted(self._rings):
            await self._remove_strays(f"ready:{label}")
        await self._triggers.repair(made_anew=bool(self._report.mended["trigger_hashes"]))
        mended = {what: times for what, times in sorted(self._report.mended.items()) if times}
        return msgspec.structs.replace(self._report, mended=mended)

    # -- what there is --------------------------------------------------------------------------------

    @property
    def _users_start(self) -> str:
        return f"{self._keys.status_prefix}:task_meta:"

    async def _survey(self) -> None:
        """Count the lanes and users to look at, and find the rings."""
        prefix = f"{self._keys.prefix}:"
        async for keys in self._scan("*"):
            for key in keys:
                if key.startswith(f"{prefix}ready:"):
                    self._rings.add(key.removeprefix(f"{prefix}ready:"))
                elif key.startswith(prefix) and _is_lane(key.removeprefix(prefix)):
                    self._report.lanes += 1
                elif key.startswith(self._users_start):
                    self._report.users += 1
        self._total = self._report.lanes + 2 * self._report.users

    async def _scan(self, pattern: str) -> AsyncIterator[list[str]]:
        cursor = b"0"
        while True:
            cursor, keys = await self._connections.call(
                "SCAN", cursor, "MATCH", pattern, "COUNT", str(SCANNED)
            )
            yield [key.decode(errors="surrogateescape") for key in keys]
            if cursor == b"0":
                return

    async def _batches(self, start: str, wanted: Callable[[str], object]) -> AsyncIterator[list[str]]:
        """Yield what follows `start` in the keys that begin with it, a batch at a time."""
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", start) + "*"
        async for keys in self._scan(pattern):
            names = [name for key in keys if wanted(name := key.removeprefix(start))]
            for first in range(0, len(names), BATCH):
                batch = names[first : first + BATCH]
                yield batch
                self._done = min(self._done + len(batch), self._total)
                self._progress(self._done, self._total)

    # -- entries and bodies ---------------------------------------------------------------------------

    async def _repair_lanes(self, names: list[str]) -> None:
        """Look at all entries of some lanes, a page of each at a time."""
        work: list[tuple[str, str, list[str]]] = [(name, "-", []) for name in names]
        while work:
            reply = await self._call("repair_entries", {"lanes": work}, _Entries)
            ahead = []
            for (name, start, skipped), (further, orphans, unreadable) in zip(work, reply.lanes, strict=True):
                strange = [*unreadable, *await self._adopt(name, orphans)]
                self._note_unreadable(f"{self._keys.prefix}:{name}", strange)
                if orphans and not self._dry:
                    ahead.append((name, start, [*skipped, *strange]))  # now the orphans have items
                elif further:
                    ahead.append((name, further, skipped))
            work = ahead

    async def _adopt(self, lane: str, orphans: list[tuple[str, str, str]]) -> list[str]:
        """Give entries of a lane their items back; answers the ids of those that cannot be read."""
        rows, unreadable = [], []
        for entry_id, item_id, body in orphans:
            message = _read(body)
            fits = message is not None and self._keys.lane(message.lane) == lane
            if message is None or not fits or encode_id(message.item_id) != item_id:
                unreadable.append(entry_id)
            else:
                rows.append((entry_id, 0, message_row(message, self._keys)))
        await self._adopt_rows(rows, lane, 0)
        return unreadable

    async def _adopt_rows(self, rows: list[tuple[Any, ...]], lane: str, place: int) -> None:
        if self._dry:
            self._extra[lane][place] += len(rows)
            self._note([("adopted", len(rows))] if rows else [])
        elif rows:
            await self._call("repair_adopt", {"rows": rows}, Reply)

    async def _repair_aside(self) -> None:
        """Look at the bodies that wait aside. A body without an item gets one, with its old due time."""
        cursor, due = "0", None
        while cursor:
            page = await self._call("reindex_aside", {"cursor": cursor}, _Aside)
            for encoded, body in page.orphans:
                due = await self._due_times() if due is None else due
                name = unquote(encoded, errors="surrogateescape")
                message = _read(body)
                if message is None or name != f"{encode_id(message.user_id)}:{message.item_id}":
                    self._note_unreadable(f"{self._keys.prefix}:delayed", [name])
                else:
                    row = ("", due.get(name, 0), message_row(message, self._keys))
                    await self._adopt_rows([row], self._keys.lane(message.lane), 1)
            cursor = page.cursor

    async def _due_times(self) -> dict[str, int]:
        """When messages are due, by user and item id."""
        due: dict[str, int] = {}
        cursor = b"0"
        while True:
            cursor, flat = await self._connections.call(
                "ZSCAN", f"{self._keys.prefix}:due", cursor, "COUNT", str(SCANNED)
            )
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                due[member.decode(errors="surrogateescape").partition(":")[2]] = int(float(score))
            if cursor == b"0":
                return due

    # -- items, indexes, counts -----------------------------------------------------------------------

    async def _reindex(self, users: list[str]) -> None:
        """Look at all items of some users, a page at a time."""
        work = [(user, "0") for user in users]
        while work:
            reply = await self._call("reindex_items", {"users": work}, _Items)
            self._report.messages += reply.open
            self._report.lost_count += len(reply.lost)
            room = MOST_NAMED - len(self._report.lost)
            self._report.lost += [Key(decode_id(user), item_id) for user, item_id in reply.lost[:room]]
            self._seq = max(self._seq, reply.seq)
            work = [(user, cursor) for (user, _), cursor in zip(work, reply.cursors, strict=True) if cursor]

    async def _remove_strays(self, index: str) -> None:
        cursor = "0"
        while cursor:
            page = await self._call("reindex_strays", {"index": index, "cursor": cursor}, _Page)
            cursor = page.cursor

    async def _recount(self) -> None:
        """Count until the labels are right: a count that would fall below zero needs another round."""
        await self._call("recount_numbers", {"seq": self._seq}, Reply)
        for _ in range(1 if self._dry else ROUNDS):
            before = await self._quiet_moment()
            self._moment = {"at": before.now, "seq": max(before.seq, self._seq)}
            self._sums.clear()
            seen: set[int] = set()  # hashes, because there may be very many
            async for users in self._batches(self._users_start, _is_user):
                new = [user for user in dict.fromkeys(users) if hash(user) not in seen]  # SCAN may repeat
                seen.update(map(hash, new))
                await self._recount_users(new, rest=False)
            async for users in self._batches(f"{self._keys.prefix}:lanes:", _is_user):
                await self._recount_users(users, rest=True)
            if not await self._correct_labels(before):
                return

    async def _quiet_moment(self) -> _Labels:
        """The counts of labels at the end of a millisecond, which include all that happened up to then.

        Counts that are still the same in the next millisecond prove that. If the queue is never that quiet,
        the counts of labels may be wrong by what happens in a millisecond.
        """
        last = await self._call("recount_labels", {}, _Labels)
        first, began = last.now, time.monotonic()
        while (passed := time.monotonic() - began) < QUIET_S:
            following = await self._call("recount_labels", {}, _Labels)
            same = (following.seq, sorted(following.labels)) == (last.seq, sorted(last.labels))
            still = following.now == first and passed > STILL_S
            if same and (following.now > last.now or still):
                return last
            last = following
        return last

    async def _correct_labels(self, before: _Labels) -> bool:
        """Put the counts of labels right; answers whether some were wrong."""
        known = {label: numbers for label, *numbers in before.labels}
        self._sums[""] = [sum(numbers[0] for numbers in self._sums.values()), 0, 0, 0]
        rows = []
        for label in {*known, *self._sums}:
            counted = known.get(label, [0] * 6)
            missing = [true - said for true, said in zip(self._sums[label], counted[:4], strict=True)]
            rows.append((label, *missing, *counted[1:]))
        unsure = self._dry and self._report.mended["leases"]  # a dry run has not written them
        request = {"labels": rows, "unsure": bool(unsure) or None}
        return bool((await self._call("recount_correct", request, Reply)).mended)

    async def _recount_users(self, users: list[str], *, rest: bool) -> None:
        """Count the items of some users, page by page. A user whose items move meanwhile is counted again."""
        work: list[_Row] = [(user, "0", "", []) for user in users]
        found: defaultdict[str, list[_Sum]] = defaultdict(list)
        tries: Counter[str] = Counter()
        named = set(users)
        extra = [(lane, *numbers) for lane, numbers in self._extra.items() if lane.partition(":")[0] in named]
        misplaced = self._dry and any(self._report.mended[what] for what in MISPLACED)
        common = self._moment | {"rest": rest or None, "extra": extra, "misplaced": misplaced or None}
        while work:
            reply = await self._call("recount_users", common | {"users": work}, _Users)
            ahead: list[_Row] = []
            for (user, _, _, _), (cursor, witness, counted, sums, again) in zip(
                work, reply.rows, strict=True
            ):
                found[user] += sums
                tries[user] += again
                if again and tries[user] < ROUNDS:
                    found[user].clear()
                    ahead.append((user, "0", "", []))
                elif again:
                    self._report.busy += 1
                elif cursor:
                    ahead.append((user, cursor, witness, counted))
            work = ahead
        for label, *numbers in itertools.chain.from_iterable(found.values()):
            self._sums[label] = [one + other for one, other in zip(self._sums[label], numbers, strict=True)]

    # -- the report -----------------------------------------------------------------------------------

    def _note(self, mended: Iterable[tuple[str, int]]) -> None:
        for what, times in mended:
            self._report.mended[what] += times

    def _note_unreadable(self, key: str, ids: list[str]) -> None:
        self._report.unreadable_count += len(ids)
        room = MOST_NAMED - len(self._report.unreadable)
        self._report.unreadable += [f"{key} {entry}" for entry in ids[:room]]

    async def _call(self, function: str, request: dict[str, Any], reply: type[R]) -> R:
        answer = msgspec.msgpack.decode(
            await self._library.call(function, _encode(self._request | request)), type=reply
        )
        self._note(answer.mended)
        return answer


def _is_lane(name: str) -> bool:
    """Whether the part of a key after the prefix names a lane: other keys have more or fewer parts."""
    return name.count(":") == 2 and all(name.split(":")) and name.isascii()


def _is_user(name: str) -> bool:
    return ":" not in name and name.isascii()


def _read(body: str) -> Message | None:
    """Read a message from its encoded body; None if the text is no message."""
    try:
        return _decode_message(unquote_to_bytes(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
