"""What to extract from conversations: a mission, categories, what to include and to leave out, by cube."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from pydantic import Field, model_validator

from reverie.configuration.section import Section
from reverie.errors import InvalidMessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.memory.interface import Tenant

__all__ = [
    "CubeExtraction",
    "Extraction",
    "ExtractionSettings",
    "KeepsCubes",
    "check_extraction",
    "merged",
]

LONGEST_SENTENCE = 2000
LONGEST_CATEGORY = 60
"""How many characters a category may have."""
MOST_ENTRIES = 100
"""How many entries `categories`, `include` and `exclude` may have each."""
LONGEST_SCHEMA = 10_000
"""How many characters a schema may have as JSON text."""


class Extraction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to extract for one cube. A field that is None follows the next wider place."""

    mission: str | None = None
    """In one sentence: what the memories are for."""
    categories: tuple[str, ...] | None = None
    """The only categories that a fact may have; empty: any."""
    include: tuple[str, ...] | None = None
    """What is worth remembering."""
    exclude: tuple[str, ...] | None = None
    """What must not be remembered."""
    schema: dict[str, Any] | None = None
    """A JSON schema of an object that each fact carries in `info`."""


class CubeExtraction(Section):
    """What to extract for one cube."""

    mission: str | None = Field(
        None, max_length=LONGEST_SENTENCE, description="in one sentence: what the memories are for"
    )
    categories: list[str] | None = Field(
        None,
        description="the only categories that a fact may have, each of 1 to 60 characters; empty: any",
    )
    include: list[str] | None = Field(None, description="what is worth remembering")
    exclude: list[str] | None = Field(None, description="what must not be remembered")
    fact_schema: dict[str, Any] | None = Field(
        None, description="the JSON schema of an object that each fact carries in info, without $ref"
    )

    @model_validator(mode="after")
    def check_value(self) -> CubeExtraction:
        """Refuse what `check_extraction` refuses."""
        try:
            check_extraction(self.value())
        except InvalidMessageError as error:
            field = "fact_schema" if error.field == "schema" else error.field
            raise ValueError(f"{field}: {error.reason}") from error
        return self

    def value(self) -> Extraction:
        """These settings as a value."""
        return Extraction(
            mission=self.mission,
            categories=None if self.categories is None else tuple(self.categories),
            include=None if self.include is None else tuple(self.include),
            exclude=None if self.exclude is None else tuple(self.exclude),
            schema=self.fact_schema,
        )


class ExtractionSettings(CubeExtraction):
    """What to extract for all cubes, and for single ones."""

    cubes: dict[str, CubeExtraction] = Field({}, description="id of a cube → what to extract for it instead")

    def of_cube(self, cube: str) -> Extraction:
        """What to extract for a cube, by the settings alone."""
        own = self.cubes.get(cube)
        return self.value() if own is None else merged(self.value(), own.value())


def merged(wider: Extraction, own: Extraction) -> Extraction:
    """The fields of `own`, and for those that are None the fields of `wider`."""
    given = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
    return msgspec.structs.replace(wider, **given)


def check_extraction(extraction: Extraction) -> None:
    """Refuse a text that is too long or empty, and a schema that is not the JSON schema of an object.

    Whether a schema is valid is checked only if the extra `llm` is installed.
    """
    if len(extraction.mission or "") > LONGEST_SENTENCE:
        reason = f"must have at most {LONGEST_SENTENCE} characters"
        raise InvalidMessageError("mission", extraction.mission, reason)
    _check_texts("categories", extraction.categories or (), LONGEST_CATEGORY)
    _check_texts("include", extraction.include or (), LONGEST_SENTENCE)
    _check_texts("exclude", extraction.exclude or (), LONGEST_SENTENCE)
    try:
        kept = msgspec.json.encode(extraction)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessageError("extraction", "…", f"cannot be kept as JSON: {error}") from error
    if extraction.schema is not None:
        _check_schema(msgspec.json.decode(kept)["schema"])


def _check_texts(field: str, texts: Sequence[str], longest: int) -> None:
    if len(texts) > MOST_ENTRIES:
        raise InvalidMessageError(field, len(texts), f"must have at most {MOST_ENTRIES} entries")
    for text in texts:
        if not text.strip() or len(text) > longest:
            raise InvalidMessageError(field, text, f"must have 1 to {longest} characters")


def _check_schema(schema: dict[str, Any]) -> None:
    if schema.get("type") != "object":
        reason = 'must be the JSON schema of an object, with "type": "object"'
        raise InvalidMessageError("schema", schema, reason)
    if len(msgspec.json.encode(schema)) > LONGEST_SCHEMA:
        reason = f"must have at most {LONGEST_SCHEMA} characters as JSON"
        raise InvalidMessageError("schema", schema, reason)
    try:
        problem = _problem_of(schema)
    except RecursionError:
        problem = "is nested too deeply"
    if problem is not None:
        raise InvalidMessageError("schema", schema, problem)


def _problem_of(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema; None if nothing is."""
    if _some_part(schema, _is_reference):
        return "must not have $ref or $dynamicRef, because it becomes a part of a larger schema"
    if _some_part(schema, _has_expression):
        return "must not have pattern or patternProperties: a regular expression may take for ever"
    try:
        jsonschema = import_module("jsonschema")
    except ImportError:
        return None
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"is no valid JSON schema at {error.json_path}: {error.message[:200]}"
    return None


def _is_reference(part: dict[str, Any]) -> bool:
    return any(isinstance(part.get(name), str) for name in ("$ref", "$dynamicRef"))


def _has_expression(part: dict[str, Any]) -> bool:
    """Whether a part of a schema is a regular expression. A property that is called `pattern` is none."""
    return isinstance(part.get("pattern"), str) or "patternProperties" in part


def _some_part(value: Any, holds: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether something holds for any of the objects in a JSON value."""
    if isinstance(value, dict):
        return holds(value) or any(_some_part(part, holds) for part in value.values())
    return isinstance(value, list) and any(_some_part(part, holds) for part in value)


@runtime_checkable
class KeepsCubes(Protocol):
    """A store that keeps what to extract for single cubes."""

    async def extraction(self, tenant: Tenant) -> Extraction:
        """What was set for a cube; fields that were not set are None."""
        ...

    async def set_extraction(self, tenant: Tenant, extraction: Extraction) -> None:
        """Set what to extract for a cube, in place of what was set before."""
        ...
