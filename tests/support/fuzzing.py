"""What schemathesis needs to know about this API, beyond its document; `fuzzing.toml` names this file."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.specs.openapi.checks import negative_data_rejection

LONGEST_WAIT_S = 0.05
WAITING = ("/scheduler/wait", "/scheduler/events")
NOWHERE = "https://127.0.0.1:9/"
"""An address that webhooks refuse, because it is a private one."""
LAX = re.compile(
    r"\s*([+-]?[\d_.]+(e[+-]?\d+)?|true|false|t|f|yes|no|y|n|on|off|nan|[+-]?inf(inity)?)\s*", re.IGNORECASE
)
"""Texts that are read as a number or a truth value."""


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Let no request wait for long, and no webhook send anything to an invented host."""
    if (
        case.path == "/admin/webhooks"
        and isinstance(case.body, dict)
        and isinstance(case.body.get("url"), str)
    ):
        case.body["url"] = NOWHERE
    if any(path in case.path for path in WAITING):
        with suppress(TypeError, ValueError):  # a value that is no number is refused
            given = float(case.query.get("timeout_seconds", 120))
            if given > LONGEST_WAIT_S:
                case.query["timeout_seconds"] = min(given, LONGEST_WAIT_S)


@schemathesis.check
def data_that_cannot_be_read_is_refused(ctx: Any, response: Any, case: schemathesis.Case) -> None:
    """The check `negative_data_rejection`, but a number or a truth value may be given as text or number."""
    try:
        negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData:
        if not is_only_lax(case):
            raise


def is_only_lax(case: schemathesis.Case) -> bool:
    """Whether the body breaks its schema only by values that are read all the same."""
    document = case.operation.schema.raw_schema
    content = document["paths"][case.path][case.method.lower()].get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return False
    schema = content["application/json"]["schema"] | {"components": document["components"]}
    errors = list(Draft202012Validator(schema).iter_errors(case.body))
    return bool(errors) and all(map(is_lax, errors))


def is_lax(error: Any) -> bool:
    given = error.instance
    return error.validator in {"type", "anyOf"} and (
        isinstance(given, int | float) or (isinstance(given, str) and bool(LAX.fullmatch(given)))
    )
