"""All settings of a model, and the values that each allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from reverie.errors import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

__all__ = ["PREFIX", "Field", "Place", "all_fields", "find"]

PREFIX = "REVERIE_"
KINDS: dict[object, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
}
UNITS = {"_s": "seconds", "_ms": "milliseconds", "_bytes": "bytes"}
COUNTED = re.compile(
    r"(?:[\w ]+: )?(?:least )?(messages submitted per second|messages|handler calls|calls|worker processes"
    r"|processes|threads|slots|runs|words|tokens|claims|items|samples|labels|tries|files|webhooks|deliveries"
    r"|levels|money|share|cosine|days|seconds|milliseconds|bytes)\b"
)

Place = tuple[str, ...]
"""Where a setting is: the names that lead to it."""


@dataclass(frozen=True)
class Field:
    """One setting. In `place`, a name in angle brackets means any name."""

    place: Place
    info: FieldInfo
    annotation: Any
    """The setting's type, without null."""
    nullable: bool

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.place)

    @property
    def variable(self) -> str:
        """The environment variable of the setting."""
        return PREFIX + "__".join(self.place).upper()

    @property
    def description(self) -> str:
        """What the setting means, with its default if that is not a plain value."""
        return self.info.description or ""

    @property
    def default(self) -> Any:
        """The value if the setting is not set."""
        return self.info.get_default(call_default_factory=True)

    @property
    def computed(self) -> bool:
        """Whether the default depends on the machine."""
        return self.info.default_factory is not None

    @property
    def secret(self) -> bool:
        """Whether the value must not be shown."""
        return is_secret(self.place[-1])

    @property
    def structured(self) -> bool:
        """Whether the value is an object or a list, which is written as JSON in the environment."""
        return _holds_parts(self.annotation)

    @property
    def holds_groups(self) -> bool:
        """Whether the setting is a mapping or a list of groups of settings, such as `labels`."""
        return _inner(self.annotation, self.place[-1])[0] is not None

    @property
    def kind(self) -> str:
        """The setting's type, in words."""
        return _kind(self.annotation) + (" or null" if self.nullable else "")

    @property
    def unit(self) -> str:
        """What the number counts, such as seconds; empty if there is no unit."""
        if self.annotation not in {int, float}:
            return ""
        suffix = next((suffix for suffix in UNITS if self.place[-1].endswith(suffix)), None)
        if suffix:
            return UNITS[suffix]
        counted = COUNTED.match(self.description)
        return counted[1].replace(" submitted", "") if counted else ""

    @property
    def allowed(self) -> str:
        """The allowed values or range; empty if every value of the type is allowed."""
        if get_origin(self.annotation) is Literal:
            return ", ".join(str(choice) for choice in get_args(self.annotation))
        bounds = {
            name: value
            for rule in self.info.metadata
            for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
            if (value := getattr(rule, name, None)) is not None
        }
        return _range(bounds)

    @property
    def rule(self) -> str:
        """What a value must be, as the end of a sentence."""
        if get_origin(self.annotation) is Literal:
            return f"must be one of {self.allowed}" + (", or null" if self.nullable else "")
        allowed = f", {self.allowed}" if self.allowed else ""
        kind = KINDS.get(self.annotation, self.kind) if allowed else self.kind
        null = ", or null" if allowed and self.nullable else ""
        article = "" if self.annotation in {bool, str} else "a "
        return f"must be {article}{kind}{allowed}{null}"


def all_fields(model: type[BaseModel], above: Place = ()) -> Iterator[Field]:
    """Yield every setting of a model, at any depth, in the order of the model's fields."""
    for name, info in model.model_fields.items():
        place = (*above, name)
        annotation, nullable = _without_null(info.annotation)
        inner, part = _inner(annotation, name)
        if inner is None:
            yield Field(place, info, annotation, nullable)
        else:
            yield from all_fields(inner, (*place, part) if part else place)


def find(model: type[BaseModel], place: Place) -> Field | type[BaseModel] | None:
    """The setting, or the group of settings, at a place; None if there is no such place."""
    if not place:
        return model
    info = model.model_fields.get(place[0])
    if info is None:
        return None
    annotation, nullable = _without_null(info.annotation)
    inner, part = _inner(annotation, place[0])
    if inner is None or (part and len(place) == 1):
        return Field(place[:1], info, annotation, nullable) if len(place) == 1 else None
    rest = place[2:] if part else place[1:]
    found = find(inner, rest)
    if isinstance(found, Field):
        return Field(place, found.info, found.annotation, found.nullable)
    return found


def _without_null(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation, False
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    nullable = len(kinds) < len(get_args(annotation))
    return (kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]), nullable  # noqa: UP007  built when it runs


def _inner(annotation: Any, name: str) -> tuple[type[BaseModel] | None, str]:
    """The model of the groups in a setting, and the placeholder for their keys or positions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    last = get_args(annotation)[-1:] if get_origin(annotation) in {dict, list} else ()
    if last and isinstance(last[0], type) and issubclass(last[0], BaseModel):
        return last[0], f"<{name.removesuffix('s')}>"
    return None, ""


def _holds_parts(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if kind in {Union, UnionType}:
        return any(_holds_parts(part) for part in get_args(annotation))
    return isinstance(kind, type) and issubclass(kind, dict | list | tuple | set | frozenset | BaseModel)


def _kind(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "choice"
    if origin in {list, tuple, set, frozenset}:
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return f"mapping of names to {_kind(parts[1])}"
    if origin in {Union, UnionType}:
        return " or ".join(_kind(part) for part in parts)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "settings"
    return KINDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _range(bounds: dict[str, Any]) -> str:
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    words = {
        "ge": "at least {}",
        "gt": "greater than {}",
        "le": "at most {}",
        "lt": "less than {}",
        "max_length": "at most {} long",
    }
    found = [text.format(bounds[name]) for name, text in words.items() if name in bounds]
    if bounds.get("min_length") == 1:
        found.insert(0, "not empty")
    elif "min_length" in bounds:
        found.insert(0, f"at least {bounds['min_length']} long")
    return ", ".join(found)
