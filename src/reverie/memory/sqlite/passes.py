"""What passes of upkeep have changed, and how a pass is taken back, inside the transaction of its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from reverie.memory.sqlite.new_items import ARCHIVE
from reverie.memory.sqlite.rows import to_json
from reverie.memory.upkeep import PASSES_KEPT
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.effect import InPass, Judged, PassDone, UndoPass
    from reverie.memory.sqlite.effects import EffectStep

__all__ = ["Change", "PassLog", "in_pass", "judged", "pass_done", "undo_pass"]

SQL = load_queries(__package__ or "", "upkeep.sql")
Change = Literal["created", "superseded", "moved", "linked"]


class PassLog:
    """The changes of one pass. The pass gets its row with the first change: a pass without one is none."""

    def __init__(self, step: EffectStep, pass_id: str, label: str) -> None:
        self._step = step
        self._pass_id = pass_id
        self._label = label
        self._pass: int | None = None

    def note(self, change: Change, memory_id: str, other: str, relation: str | None) -> None:
        """Keep one change."""
        run = self._step.run
        if self._pass is None:
            found = run(SQL["find_pass"], pass_id=self._pass_id)
            if not found:
                found = run(SQL["begin_pass"], pass_id=self._pass_id, label=self._label)
                for statement in ("forget_changes", "forget_passes"):
                    run(SQL[statement], kept=PASSES_KEPT)
            self._pass = found[0][0]
        run(
            SQL["note_change"], **{"pass": self._pass}, change=change, id=memory_id, other=other,
            relation=relation,
        )  # fmt: skip


def in_pass(step: EffectStep, effect: InPass) -> None:
    """Keep what the later effects of the message change; if the pass was undone, write none of them."""
    found = step.run(SQL["find_pass"], pass_id=effect.pass_id)
    step.is_void = bool(found) and found[0][1] is not None
    step.pass_log = PassLog(step, effect.pass_id, effect.label)


def pass_done(step: EffectStep, effect: PassDone) -> None:
    """Write until when upkeep has looked at all changes."""
    step.run(SQL["pass_done"], label=effect.label, until=effect.until)


def judged(step: EffectStep, effect: Judged) -> None:
    """Write which groups were decided upon."""
    step.run(SQL["judge"], keys=to_json(effect.keys))


def undo_pass(step: EffectStep, effect: UndoPass) -> None:
    """Take the changes of a pass back: first what makes room for items that come back."""
    found = step.run(SQL["find_pass"], pass_id=effect.pass_id)
    if not found or found[0][1] is not None:
        return
    number = {"pass": found[0][0]}
    changes = step.run(SQL["changes"], **number)
    kept = _kept_items(step, number, changes)
    for change, memory_id, other, relation in changes:
        if {memory_id, other} & kept:
            continue
        rows = step.run(SQL["alive"], id=memory_id)
        if change == "linked":
            step.run(SQL["unlink"], source_id=memory_id, relation=relation, target_id=other)
        elif rows:
            seq, tier, successor = rows[0]
            if change == "created":
                step.remove(seq, memory_id)
            elif change == "superseded" and successor == other:
                step.revive(seq)
                step.run(SQL["unlink"], source_id=other, relation="supersedes", target_id=memory_id)
            elif change == "moved" and tier == ARCHIVE and successor is None:
                step.note_version(seq)
                step.move(
                    seq, other
                )  # over the limit, it goes back to the archive at once, and no other item
                step.run(SQL["rest"], seq=seq)
    step.run(SQL["mark_undone"], **number)


def _kept_items(step: EffectStep, number: dict[str, int], changes: Sequence[tuple[Any, ...]]) -> set[str]:
    """The items of a pass on which somebody has worked since, and those that were merged into them."""
    kept = {memory_id for (memory_id,) in step.run(SQL["edited"], **number)}
    replaced = {memory_id: other for change, memory_id, other, _ in changes if change == "superseded"}
    for name in replaced:
        last = name
        while last in replaced:  # successors form no circle
            last = replaced[last]
        if last in kept:
            kept.add(name)
    return kept
