"""The check of the language model: whether it can be called, spent budgets, and turns that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.cli.doctor.finding import Finding, Patient, a_note, a_warning, fine
from reverie.errors import ReverieError, redacted
from reverie.observe.alert import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.face.scheduler import Scheduler
    from reverie.memory.buffers import BufferState
    from reverie.models.budgets import SpentBudget

__all__ = ["language_model"]

CHECK = "language_model"
MOST_NAMED = 3
"""The most tenants that one finding names."""
MOST_BUFFERS = 10_000


def language_model(patient: Patient) -> list[Finding]:
    """Check that the language model can be called, and report spent budgets and turns that were given up.

    The server of the model is not asked.
    """
    from reverie.models.openai_chat import PRESETS, model_name, obstacle_to_calls

    llm = patient.settings.llm
    if llm.preset == "none":
        return [fine(CHECK, "no language model is set up (llm.preset = none): turns are kept as they are")]
    obstacle = obstacle_to_calls(llm)
    findings = [] if obstacle is None else [_no_calls(*obstacle)]
    findings += _in_store(patient)
    where = redacted(llm.url or PRESETS[llm.preset].url)
    return findings or [fine(CHECK, f"the language model is {model_name(llm)} at {where}")]


def _no_calls(reason: str, remedy: str) -> Finding:
    return a_warning(CHECK, f"the language model cannot be called: {reason}; its work waits", remedy)


def _in_store(patient: Patient) -> list[Finding]:
    """Findings about what the memory store keeps: costs and buffers."""
    from reverie.cli.commands.embeddings import has_memories
    from reverie.face.scheduler import Scheduler

    if patient.url.startswith("memory:") or not has_memories(patient.settings):
        return []
    try:
        with Scheduler(settings=patient.settings).used() as scheduler:
            return [*_spent(scheduler.observe.budgets_spent()), *_given_up(_failed_buffers(scheduler))]
    except ReverieError:
        return []  # the check `queue` reports it


def _failed_buffers(scheduler: Scheduler) -> list[BufferState]:
    from reverie.memory.buffers import KeepsBuffers

    scheduler.open()
    store = scheduler.runtime.store
    return scheduler.run(store.failed_buffers(MOST_BUFFERS)) if isinstance(store, KeepsBuffers) else []


def _spent(budgets: Sequence[SpentBudget]) -> list[Finding]:
    if not budgets:
        return []
    tenants = list(dict.fromkeys(f"{one.user_id}/{one.mem_cube_id}" for one in budgets))
    settings = " or ".join(dict.fromkeys(f"llm.{one.what}_per_day" for one in budgets))
    what = (
        f"the budget of {_named(tenants)} for {budgets[0].day} (UTC) is spent; model work of "
        f"{'this tenant' if len(tenants) == 1 else 'these tenants'} waits for the next day"
    )
    return [a_note(CHECK, what, f"see what it was spent on: `reverie usage --days 1`; or raise {settings}")]


def _given_up(buffers: Sequence[BufferState]) -> list[Finding]:
    if not buffers:
        return []
    rows = sum(state.rows for state in buffers)
    tenants = [f"{user_id}/{cube}" for user_id, cube in dict.fromkeys(state.key.tenant for state in buffers)]
    turns = "1 turn was" if rows == 1 else f"{rows} turns were"
    what = f"{turns} given up, because several runs that should extract facts failed: {_named(tenants)}"
    user_id, cube = buffers[0].key.tenant
    retry = command("extract", "retry", "--user", user_id, "--cube", cube)
    look = command("dead", "list", "--label", "mem_read")
    return [a_warning(CHECK, what, f"see why: `{look}`; let those of {tenants[0]} be read again: `{retry}`")]


def _named(tenants: Sequence[str]) -> str:
    """The first tenants of a list, and how many others there are."""
    named, others = ", ".join(tenants[:MOST_NAMED]), len(tenants) - MOST_NAMED
    if others <= 0:
        return named
    return f"{named} and 1 other" if others == 1 else f"{named} and {others} others"
