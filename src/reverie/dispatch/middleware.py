"""Middleware around every run: a chain of small functions, each of which does one thing.

A middleware is given the batch and the rest of the chain, and answers the outcomes. It may read or change the
outcomes, run fewer messages than it was given, or none at all.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from reverie.base.logs import get_logger
from reverie.dispatch.answers import OUTCOMES, read_answer
from reverie.outcome import Died

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.dispatch.interface import Batch
    from reverie.outcome import Outcome

    Outcomes = list[Outcome | None]
    """One outcome for each message of a batch, in their order; None: not run, to be handed back."""
    Proceed = Callable[[Batch], Awaitable[Outcomes]]

__all__ = ["Middleware", "chain", "debugging"]

log = get_logger(__name__)

KNOWN = (*OUTCOMES, Died)
"""The outcomes of an executor. Any other answer of a middleware is read like a handler's answer."""


class Middleware(Protocol):
    """A function that runs around every run."""

    async def __call__(self, batch: Batch, proceed: Proceed, /) -> Outcomes:
        """Run the batch or a part of it, with `await proceed(batch)`; answer one outcome for each message."""
        ...


def chain(middleware: Sequence[Middleware], run: Proceed) -> Proceed:
    """Join all middleware into one function: the first is outermost, and `run` does the work at the end."""
    if not middleware:
        return run
    for one in reversed(middleware):
        run = _link(one, run)
    return partial(_read_outcomes, run)


def _link(middleware: Middleware, proceed: Proceed) -> Proceed:
    async def run(batch: Batch) -> Outcomes:
        return await middleware(batch, proceed)

    return run


async def _read_outcomes(run: Proceed, batch: Batch) -> Outcomes:
    """The outcomes of a batch from a chain. If a middleware fails, the runs have failed."""
    try:
        answers: list[Any] = list(await run(batch))
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        log.exception("middleware.failed", label=batch.label)
        return [read_answer(error)] * len(batch.claims)
    if len(answers) != len(batch.claims):
        wrong = f"a middleware answered {len(answers)} outcomes for {len(batch.claims)} messages"
        return [read_answer(TypeError(wrong))] * len(batch.claims)
    return [a if isinstance(a, KNOWN) or a is None else read_answer(a) for a in answers]


def debugging() -> list[Middleware]:
    """The middleware that logs each run, if the log level is DEBUG; else none."""
    return [logged] if log.isEnabledFor(logging.DEBUG) else []


async def logged(batch: Batch, proceed: Proceed) -> Outcomes:
    """Log the start and the end of a run."""
    log.debug("run.started", label=batch.label, batch=batch.batch_id, messages=len(batch.claims))
    outcomes = await proceed(batch)
    words = ["handed back" if outcome is None else type(outcome).__name__ for outcome in outcomes]
    log.debug("run.finished", label=batch.label, batch=batch.batch_id, outcomes=words)
    return outcomes
