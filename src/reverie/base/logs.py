"""Logs: each line is an event and its data, and goes through the standard library's logging.

A program that uses Reverie as a library sees its warnings and errors like those of any library. The command
line sets up its own output (`reverie.cli.output`).
"""

from __future__ import annotations

import logging
from textwrap import indent
from typing import TYPE_CHECKING, Any, cast

import structlog

from reverie.base.escapes import escape

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["get_logger"]


def _render(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
    """Make one line. A traceback follows it, indented: no text of an error can pass for a line of the log."""
    event, trace = line.pop("event"), line.pop("exception", None)
    text = escape(" ".join([str(event), *(f"{name}={value!r}" for name, value in line.items())]))
    return text + "\n" + indent(escape(trace, keep="\n\t"), "  ") if trace else text


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Make a logger whose lines read `event key=value …`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", logger)
