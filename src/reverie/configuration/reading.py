"""Merge settings from several sources: the later source wins, and one error names all problems."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from reverie.configuration.fields import Field, Place, all_fields, find
from reverie.errors import InvalidSettingError, InvalidSettingsError, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import ErrorDetails

    from reverie.configuration.sources import Source

__all__ = ["Reading", "Value", "read"]

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Value:
    """One setting in force, and where it comes from."""

    field: Field
    value: Any
    source: str
    """`default`, a file and its line, an environment variable, or `argument`."""

    @property
    def changed(self) -> bool:
        """Whether the setting is set to something other than the default."""
        return self.source != "default" and bool(self.value != self.field.default)


@dataclass(frozen=True)
class Reading(Generic[Model]):
    """Settings, and where they come from."""

    settings: Model
    sources: Sequence[Source]

    def values(self) -> Iterator[Value]:
        """Yield every setting in force."""
        for place, value in _leaves(self.settings):
            found = find(type(self.settings), place)
            assert isinstance(found, Field)
            yield Value(found, value, self.where(place))

    def where(self, place: Place) -> str:
        """The file and line, or the variable, that a setting comes from."""
        setting = next((source for source in reversed(self.sources) if source.sets(place)), None)
        return setting.where(place) if setting else "default"


def read(model: type[Model], sources: Sequence[Source]) -> Reading[Model]:
    """Merge the sources and check the result; raise one error that names every problem."""
    problems = [problem for source in sources for problem in source.problems]
    merged: dict[str, Any] = {}
    for source in sources:
        merged = _merged(model, merged, source.values)
    try:
        settings = model.model_validate(merged)
    except ValidationError as error:
        found = [_problem(model, sources, details) for details in error.errors(include_url=False)]
        problems.extend({(problem.setting, problem.reason): problem for problem in found}.values())
    if problems:
        raise InvalidSettingsError(problems)
    return Reading(settings, sources)


def _merged(
    model: type[BaseModel], low: dict[Any, Any], high: dict[Any, Any], above: Place = ()
) -> dict[Any, Any]:
    """Merge two mappings group by group, where `high` wins; a group without a value changes nothing."""
    result = dict(low)
    for name, value in high.items():
        place = (*above, str(name))
        if not _is_group(model, place):
            result[name] = value
        elif isinstance(value, dict):
            below = result.get(name)
            result[name] = _merged(model, below if isinstance(below, dict) else {}, value, place)
        elif value is None:
            result.setdefault(name, {})
        else:
            result[name] = value
    return result


def _is_group(model: type[BaseModel], place: Place) -> bool:
    found = find(model, place)
    return found.holds_groups if isinstance(found, Field) else found is not None


def _leaves(settings: BaseModel, above: Place = ()) -> Iterator[tuple[Place, Any]]:
    for name in type(settings).model_fields:
        yield from _leaves_of(getattr(settings, name), (*above, name))


def _leaves_of(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    groups = [(str(part), group) for part, group in parts if isinstance(group, BaseModel)]
    if isinstance(value, BaseModel):
        yield from _leaves(value, place)
    elif groups:
        for part, group in groups:
            yield from _leaves(group, (*place, part))
    else:
        yield place, value


def _problem(model: type[BaseModel], sources: Sequence[Source], details: ErrorDetails) -> InvalidSettingError:
    """Translate pydantic's error: where the value was set, its name, the value, what is allowed."""
    place = tuple(str(part) for part in details["loc"])
    bad_key = place[-1:] == ("[key]",) or details["type"] == "invalid_key"
    place = place[:-1] if place[-1:] == ("[key]",) else place
    unknown = details["type"] == "extra_forbidden"
    while not unknown and not bad_key and len(place) > 1 and find(model, place) is None:
        place = place[:-1]
    found = find(model, place)
    value = details.get("input")
    if any(is_secret(part) for part in place):
        value = "(hidden)"
    if unknown:
        reason = "no such setting" + _hint(model, place)
    elif bad_key:
        reason = "a name must be text: put it in quotes"
    elif details["type"] == "value_error":
        reason = details["msg"].removeprefix("Value error, ")
    elif isinstance(found, Field) and not found.holds_groups:
        reason = found.rule
    elif found is not None:
        reason = "must be a mapping of names to settings"
    else:
        reason = details["msg"]
    where = _where(sources, place, reason)
    return InvalidSettingError(".".join(place), value, reason, where)


def _hint(model: type[BaseModel], place: Place) -> str:
    """Suggest the nearest known name: the same name in another group, else a similar one."""
    group = find(model, place[:-1])
    names = [field.name for field in all_fields(model)]
    near = [name for name in names if name.rpartition(".")[2] == place[-1]]
    if not near and isinstance(group, type):
        siblings = get_close_matches(place[-1], list(group.model_fields), 1)
        near = [".".join((*place[:-1], sibling)) for sibling in siblings]
    near = near or get_close_matches(".".join(place), names, 1, 0.8)
    if near:
        return f"; did you mean {near[0]}?"
    known = ", ".join(group.model_fields) if isinstance(group, type) else "none"
    return f"; known here: {known}"


def _where(sources: Sequence[Source], place: Place, reason: str) -> str:
    """Where a value was set; for a whole group, where the settings that the reason names were set."""
    while len(place) > 1 and not any(source.sets(place) for source in sources):
        place = place[:-1]
    setting = [source for source in sources if source.sets(place)]
    named = dict.fromkeys(
        line
        for source in setting
        for below, line in source.lines.items()
        if len(below) > len(place) and below[: len(place)] == place and f"{below[-1]} " in reason
    )
    return ", ".join(named) or (setting[-1].where(place) if setting else "default")
