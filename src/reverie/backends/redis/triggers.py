"""Triggers on Redis: each method is one call of one function on the server, for its whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from reverie.backends.redis import wire
from reverie.backends.redis.keys import decode_id, encode_id
from reverie.backends.redis.rows import message_row
from reverie.backends.triggers import (
    CancelTrigger,
    Due,
    DueTrigger,
    KnownType,
    RunTrigger,
    TriggerState,
    TypeStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.backends.moves import Claim, QueueLimits
    from reverie.backends.redis.keys import Keys
    from reverie.backends.redis.library import Library
    from reverie.backends.redis.replication import Replication
    from reverie.backends.triggers import Activity, Definition, Firing, TriggerCommand

__all__ = ["RedisTriggers"]

COUNTED = ("pending", "running", "runs", "failures", "skipped", "duration_ms", "lateness_ms", "fired")

_Row = tuple[Any, ...]


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    now: int


class _TypesReply(_Reply, frozen=True):
    types: list[tuple[str, list[str], bool, int, bool]]
    """Encoded name; names and texts of the fields in turn; enabled; version; whether the put one differs."""


class _AnswersReply(_Reply, frozen=True):
    answers: list[bool]


class _AnswerReply(_Reply, frozen=True):
    answer: bool


class _DueReply(_Reply, frozen=True):
    triggers: list[DueTrigger]
    """Their types are encoded."""
    next_due: int
    """-1 if nothing is scheduled."""


class _StatesReply(_Reply, frozen=True):
    states: list[TriggerState]
    """Their types are encoded."""


class _StatisticsReply(_Reply, frozen=True):
    types: list[tuple[str, list[str]]]
    """Encoded name; names and texts of the statistics in turn."""


R = TypeVar(
    "R", _TypesReply, _AnswersReply, _AnswerReply, _DueReply, _StatesReply, _StatisticsReply, wire.Hand
)

_encode = msgspec.msgpack.Encoder().encode


class RedisTriggers:
    """See `reverie.backends.interface.TriggerStore`."""

    def __init__(
        self, library: Library, keys: Keys, limits: QueueLimits, *, replication: Replication | None = None
    ) -> None:
        """`limits` are the queue's; activities and firings wait for `replication`."""
        self._library = library
        self._keys = keys
        self._replication = replication
        self._limits_row = wire.limits_row(limits)

    async def put(self, definitions: Sequence[Definition], *, whole: bool = False) -> list[KnownType]:
        """See `TriggerStore.put`."""
        request = {"definitions": [_definition_row(one) for one in definitions], "whole": whole}
        return _known_types(await self._call("put", request, _TypesReply))

    async def types(self) -> list[KnownType]:
        """See `TriggerStore.types`."""
        known = _known_types(await self._call("types", {}, _TypesReply))
        return sorted(known, key=lambda one: one.name)

    async def touch(self, activities: Sequence[Activity]) -> list[bool]:
        """See `TriggerStore.touch`."""
        request = {"activities": [_activity_row(activity) for activity in activities]}
        return await self._confirmed("touch", request, "the activity", "It is safe to note it again")

    async def due(self, types: Mapping[str, Sequence[str]], limit: int) -> Due:
        """See `TriggerStore.due`."""
        rows = [
            (encode_id(name), [encode_id(one) for one in depends_on])
            for name, depends_on in sorted(types.items())
        ]
        reply = await self._call("due", {"types": rows, "limit": limit}, _DueReply)
        return Due(
            now=reply.now,
            triggers=[replace(one, task_type=decode_id(one.task_type)) for one in reply.triggers],
            next_due=None if reply.next_due < 0 else reply.next_due,
        )

    async def fire(self, firings: Sequence[Firing]) -> list[bool]:
        """See `TriggerStore.fire`."""
        request = {
            "firings": [_firing_row(firing, self._keys) for firing in firings],
            "limits": self._limits_row,
        }
        advice = "What was fired runs all the same"
        return await self._confirmed("fire", request, "what was fired", advice)

    async def held(self, task_type: str, user_key: str) -> Claim | None:
        """See `TriggerStore.held`."""
        request = {"type": encode_id(task_type), "user_key": user_key}
        reply = await self._call("held", request, wire.Hand)
        return next(iter(wire.claims_of(reply.served, reply.claim_id, reply.lease_until)), None)

    async def states(
        self, task_type: str, user_key: str | None = None, *, after: str = "", limit: int = 100
    ) -> list[TriggerState]:
        """See `TriggerStore.states`."""
        request = {"type": encode_id(task_type), "user_key": user_key, "after": after, "limit": limit}
        reply = await self._call("states", request, _StatesReply)
        return [replace(one, task_type=task_type) for one in reply.states]

    async def statistics(self) -> list[TypeStatistics]:
        """See `TriggerStore.statistics`."""
        reply = await self._call("statistics", {}, _StatisticsReply)
        found = [_statistics(decode_id(kind), _pairs(texts)) for kind, texts in reply.types]
        return sorted(found, key=lambda one: one.task_type)

    async def control(self, command: TriggerCommand) -> bool:
        """See `TriggerStore.control`."""
        return (await self._call("control", _command(command), _AnswerReply)).answer

    async def _confirmed(self, function: str, request: dict[str, Any], what: str, advice: str) -> list[bool]:
        """Call a function; answer when as many replicas as asked for have confirmed `what`."""
        if self._replication is None:
            return (await self._call(function, request, _AnswersReply)).answers
        answer, confirmed = await self._library.call_replicated(
            f"trigger_{function}", _encode(request), self._replication
        )
        self._replication.check(confirmed, what, advice)
        return msgspec.msgpack.decode(answer, type=_AnswersReply).answers

    async def _call(self, function: str, request: dict[str, Any], reply: type[R]) -> R:
        answer = await self._library.call(f"trigger_{function}", _encode(request))
        return msgspec.msgpack.decode(answer, type=reply)


def _definition_row(definition: Definition) -> _Row:
    fields = [text for pair in definition.fields.items() for text in pair]
    own = (definition.enabled, definition.version, definition.first_due)
    return (encode_id(definition.name), fields, *own)


def _activity_row(activity: Activity) -> _Row:
    return (
        encode_id(activity.task_type),
        activity.user_key,
        activity.user_id,
        activity.device_id,
        activity.agent_id,
        activity.interval_ms,
        activity.ttl_ms,
        activity.debounce,
        activity.max_wait_ms,
    )


def _command(command: TriggerCommand) -> dict[str, Any]:
    request: dict[str, Any] = {"command": type(command).__struct_config__.tag}
    if isinstance(command, RunTrigger):
        return request | {"activity": _activity_row(command.activity)}
    request["type"] = encode_id(command.task_type)
    if isinstance(command, CancelTrigger):
        return request | {"user_key": command.user_key}
    return request | {"enabled": command.enabled}


def _firing_row(firing: Firing, keys: Keys) -> _Row:
    trigger = firing.trigger
    message = None if firing.message is None else message_row(firing.message, keys)
    moments = (trigger.scheduled_at, firing.next_at, firing.next_anchor)
    return (encode_id(trigger.task_type), trigger.user_key, *moments, message)


def _pairs(flat: list[str]) -> dict[str, str]:
    texts = iter(flat)
    return dict(zip(texts, texts, strict=True))


def _known_types(reply: _TypesReply) -> list[KnownType]:
    return [
        KnownType(
            name=decode_id(kind), fields=_pairs(fields), enabled=enabled, version=version, differs=differs
        )
        for kind, fields, enabled, version, differs in reply.types
    ]


def _statistics(name: str, texts: dict[str, str]) -> TypeStatistics:
    counts = {field: max(0, int(texts.get(field, 0))) for field in (*COUNTED, "max_lateness_ms")}
    last = texts.get("last_run_at")
    return TypeStatistics(
        task_type=name,
        **counts,
        last_run_at=None if last is None else int(last),
        last_error=texts.get("last_error"),
    )
