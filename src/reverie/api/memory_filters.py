"""The field `filter` of a search, as clients of MemOS write it, read into the filters of the store."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.api.memory_shape import TYPE_OF_KIND, TYPE_OF_TIER
from reverie.base.clock import to_epoch_ms
from reverie.errors import InvalidMessageError
from reverie.memory.query import Filters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["all_of", "epoch_of", "filters_of_types", "read_filter"]

ABSENT_TYPES = frozenset(
    {"OuterMemory", "ToolSchemaMemory", "ToolTrajectoryMemory", "RawFileMemory", "SkillMemory"}
)
"""Values of `memory_type` that MemOS has and no built-in handler writes."""
KINDS_OF_TYPE = {name: kind for kind, name in TYPE_OF_KIND.items()} | {name: name for name in ABSENT_TYPES}
TIERS_OF_TYPE = {name: tier for tier, name in TYPE_OF_TIER.items()}
TIERS_OF_STATUS = {
    "activated": tuple(tier for tier in TYPE_OF_TIER if tier != "archive"),
    "archived": ("archive",),
}
TIMES = ("created_at", "time")
OTHER_NAMES = {"create_time": "created_at"}
"""What clients of MemOS's platform call a field → its name here."""
SECONDS_BELOW = 10**11
"""A smaller number is a time in seconds, a larger one in milliseconds, as both are in use."""
NO_TIME = "must be a time: ISO 8601 text, or seconds or milliseconds since 1970"
LAST_MOMENT = 253_402_300_799_999
"""The end of the year 9999, in epoch milliseconds."""


def read_filter(given: Mapping[str, Any]) -> Filters:
    """The filters that `{"and": […], "or": […]}`, or a single condition, stands for.

    `InvalidMessageError` names what the store cannot filter by.
    """
    alone = {name: value for name, value in given.items() if name not in {"and", "or"}}
    found = [_condition(alone)] if alone else []
    for condition in _conditions("and", given.get("and", [])):
        inner = condition.get("or")
        if inner is not None and len(condition) == 1:
            found.append(_any_of(_conditions("or", inner)))
        else:
            found.append(_condition(condition))
    if "or" in given:
        found.append(_any_of(_conditions("or", given["or"])))
    return all_of(found)


def all_of(filters: Sequence[Filters]) -> Filters:
    """The filters that let only that pass which all of these let pass."""
    return reduce(_both, filters, Filters())


def filters_of_types(types: Sequence[str]) -> Filters:
    """The filters that let memories of some `memory_type` pass.

    A kind that has a type of its own is found in the tiers that are asked for beside it.
    """
    for name in types:
        if name not in KINDS_OF_TYPE and name not in TIERS_OF_TYPE:
            known = ", ".join([*TIERS_OF_TYPE, *TYPE_OF_KIND.values()])
            raise InvalidMessageError("memory_type", name, f"must be one of {known}")
    kinds = tuple(KINDS_OF_TYPE[name] for name in types if name in KINDS_OF_TYPE)
    tiers = tuple(TIERS_OF_TYPE[name] for name in types if name in TIERS_OF_TYPE)
    if not tiers:
        return Filters(kinds=kinds)
    return Filters(tiers=tiers, without_kinds=tuple(kind for kind in TYPE_OF_KIND if kind not in kinds))


def epoch_of(value: object) -> int:
    """A moment in epoch milliseconds, of ISO 8601 text or a number; `ValueError` if it is neither."""
    if isinstance(value, str):
        try:
            return to_epoch_ms(datetime.fromisoformat(value))
        except ValueError:
            value = float(value) if value.strip().lstrip("-").replace(".", "", 1).isdecimal() else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(NO_TIME)  # noqa: TRY004  pydantic reads a ValueError as a refusal
    moment = value * 1000 if abs(value) < SECONDS_BELOW else value
    if not abs(moment) <= LAST_MOMENT:
        raise ValueError("must be a time before the year 10000")
    return int(moment)


def _conditions(name: str, given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(condition, dict) for condition in given):
        raise InvalidMessageError(f"filter.{name}", given, "must be a list of conditions {field: value}")
    return given


def _condition(fields: Mapping[str, Any]) -> Filters:
    """The filters of a condition; all of its fields must fit."""
    return all_of([_field(name, value) for name, value in fields.items()])


def _any_of(conditions: Sequence[Mapping[str, Any]]) -> Filters:
    """The filters of alternatives, which the store can check only if all are values of one field."""
    names = {name for condition in conditions for name in condition}
    if len(names) != 1 or not names <= set(LISTS):
        allowed = ", ".join(LISTS)
        raise InvalidMessageError(
            "filter.or", sorted(names), f"must list values of one field, which is one of {allowed}"
        )
    (name,) = names
    return LISTS[name]([text for condition in conditions for text in _texts(name, condition[name])])


def _field(name: str, value: Any) -> Filters:
    name = OTHER_NAMES.get(name, name)
    if name in LISTS:
        return LISTS[name](_texts(name, value))
    if name in TIMES:
        return _interval(name, value)
    if name in {"device_id", "agent_id"}:
        texts = _texts(name, value)
        if len(texts) != 1:
            raise InvalidMessageError(f"filter.{name}", value, "must be one text")
        return Filters(device_id=texts[0]) if name == "device_id" else Filters(agent_id=texts[0])
    allowed = ", ".join([*LISTS, "device_id", "agent_id", *TIMES])
    raise InvalidMessageError("filter", name, f"memories cannot be filtered by it, only by {allowed}")


def _texts(name: str, value: Any) -> list[str]:
    """The texts of `"a"`, `["a"]`, `{"in": ["a"]}`, `{"=": "a"}` or, for tags, `{"contains": "a"}`."""
    given = value
    if isinstance(given, dict):
        operators = ("contains", "in") if name == "tags" else ("=", "in")
        if len(given) != 1 or not set(given) <= set(operators):
            raise InvalidMessageError(
                f"filter.{name}",
                value,
                f"must be a text, or {' or '.join(operators)} and a value",
            )
        (given,) = given.values()
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) and _is_unicode(text) for text in texts):
        raise InvalidMessageError(f"filter.{name}", value, "must be a text or a list of texts")
    return texts


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _interval(name: str, value: Any) -> Filters:
    """The filters of `{"gt" | "gte" | "lt" | "lte": time}`."""
    if not isinstance(value, dict) or not value or not {"gt", "gte", "lt", "lte"}.issuperset(value):
        raise InvalidMessageError(f"filter.{name}", value, "must be gt, gte, lt or lte and a time")
    found = []
    for operator, given in value.items():
        try:
            moment = epoch_of(given)
        except ValueError as error:
            raise InvalidMessageError(f"filter.{name}.{operator}", given, str(error)) from error
        moment += operator in {"gt", "lte"}
        found.append(Filters(since=moment) if operator.startswith("g") else Filters(until=moment))
    return all_of(found)


def _kinds(kinds: Sequence[str]) -> Filters:
    return Filters(kinds=tuple(kinds))


def _tags(tags: Sequence[str]) -> Filters:
    return Filters(tags=tuple(tags))


def _tiers(tiers: Sequence[str]) -> Filters:
    return Filters(tiers=tuple(_known("tier", tier, TYPE_OF_TIER) for tier in tiers))


def _statuses(statuses: Sequence[str]) -> Filters:
    known = [_known("status", status, TIERS_OF_STATUS) for status in statuses]
    return Filters(tiers=tuple(tier for status in known for tier in TIERS_OF_STATUS[status]))


LISTS: dict[str, Callable[[Sequence[str]], Filters]] = {
    "kind": _kinds,
    "memory_type": filters_of_types,
    "tags": _tags,
    "tier": _tiers,
    "status": _statuses,
}
"""Field of a condition that is one of several texts → the filters for these texts."""


def _known(name: str, value: str, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise InvalidMessageError(f"filter.{name}", value, f"must be one of {', '.join(known)}")
    return value


def _both(first: Filters, second: Filters) -> Filters:
    """The filters that let only that pass which both let pass."""
    merged: dict[str, Any] = {"without_kinds": (*first.without_kinds, *second.without_kinds)}
    for name in ("kinds", "tiers", "tags", "device_id", "agent_id", "since", "until", "as_of"):
        one, other = getattr(first, name), getattr(second, name)
        if one in {None, ()}:
            merged[name] = other
        else:
            merged[name] = one if other in {None, ()} else _merged(name, one, other)
    return msgspec.structs.replace(first, **merged)


def _merged(name: str, one: Any, other: Any) -> Any:
    if name in {"since", "until"}:
        return max(one, other) if name == "since" else min(one, other)
    if one == other:
        return one
    if name == "tags":
        raise InvalidMessageError(
            "tags",
            [list(one), list(other)],
            "give one list of tags: a memory must have one of them",
        )
    shared = tuple(value for value in one if value in other) if isinstance(one, tuple) else ()
    if not shared:
        raise InvalidMessageError(name, [one, other], "no memory can be both")
    return shared
