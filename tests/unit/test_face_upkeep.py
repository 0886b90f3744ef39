"""`scheduler.upkeep` and `reverie upkeep`: plan, run and undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reverie import Remember, Scheduler
from reverie.errors import InvalidMessageError, MemoryDeletedError
from reverie.testing import ManualClock, drain
from support.commands import answer, run
from support.places import Place
from support.schedulers import new_scheduler
from support.scripted_model import scripted
from support.tidier import tidy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.scripted_model import ScriptedModel

DAY_S = 24 * 3600


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = tidy
        yield model


def scheduler_at(
    tmp_path: Path, clock: ManualClock, model: ScriptedModel | None, **settings: Any
) -> Scheduler:
    if model is not None:
        settings["llm"] = {"preset": "custom", "url": model.url, "model": "tiny", "tries": 1} | settings.get(
            "llm", {}
        )
    return new_scheduler(
        f"sqlite:///{tmp_path / 'reverie.db'}",
        clock,
        **{"memory": {"embedding": "none"}, "upkeep": {"similarity": 0.5}, "scheduler": {"enabled": False}}
        | settings,
    )


def keep(scheduler: Scheduler, cube: str = "ann", **texts: str) -> None:
    effects = [Remember(memory_id=name, text=text) for name, text in texts.items()]
    scheduler.open()
    scheduler.run(scheduler.runtime.store.change(("ann", cube), effects))


def living(scheduler: Scheduler, **chosen: Any) -> list[str]:
    return sorted(item.text for item in scheduler.memory.page(user_id="ann", **chosen).items)


DOUBLES = {"a": "Ann likes tea", "b": "Ann likes TEA"}
SIMILAR = {"c": "Bob owns a red car", "d": "Bob owns a blue car"}


def test_a_plan_without_a_model_lists_what_only_a_model_could_merge(
    tmp_path: Path, clock: ManualClock
) -> None:
    with scheduler_at(tmp_path, clock, None).used() as scheduler:
        keep(scheduler, **DOUBLES, **SIMILAR)
        keep(scheduler, "other", x="snow", y="SNOW")
        plan = scheduler.upkeep.plan(user_id="ann")
        assert (plan.changed, plan.merges, plan.calls, plan.model) == (6, 2, 0, "")
        assert {(group.mem_cube_id, frozenset(group.memory_ids)) for group in plan.merged} == {
            ("ann", frozenset("ab")),
            ("other", frozenset("xy")),
        }
        assert {group.label: group.texts for group in plan.similar} == dict.fromkeys(
            ("mem_organize", "memory_compression"), ("Bob owns a red car", "Bob owns a blue car")
        )
        assert (plan.groups, plan.input_tokens, plan.cost) == (2, 0, None)
        assert scheduler.upkeep.plan(user_id="ann", mem_cube_id="other").changed == 2
        assert len(living(scheduler)) == 6


def test_a_plan_says_what_the_model_would_cost(
    tmp_path: Path, clock: ManualClock, model: ScriptedModel
) -> None:
    prices = {"prices": {"tiny": {"input": 1000, "output": 1000}}}
    with scheduler_at(tmp_path, clock, model, llm=prices).used() as scheduler:
        keep(scheduler, **SIMILAR)
        clock.advance(200 * DAY_S)
        plan = scheduler.upkeep.plan(user_id="ann")
        assert (plan.calls, plan.groups, plan.model, plan.archived, model.calls) == (2, 2, "tiny", 2, 0)
        assert plan.cost == round((plan.input_tokens + plan.output_tokens) / 1000, 4) > 0


def test_a_run_is_one_pass_that_can_be_undone(
    tmp_path: Path, clock: ManualClock, model: ScriptedModel
) -> None:
    with scheduler_at(tmp_path, clock, model) as scheduler:
        keep(scheduler, **DOUBLES, **SIMILAR)
        keep(scheduler, "other", x="snow falls", y="SNOW falls")
        before = living(scheduler)
        seen: list[tuple[int, int]] = []
        done = scheduler.upkeep.run(
            user_id="ann", on_progress=lambda state: seen.append((state.done, state.total))
        )
        assert (done.failed, done.waiting, done.done) == (0, 0, done.total)
        assert seen[-1] == (done.done, done.total)
        after = living(scheduler)
        assert after[1:] == ["Bob owns a red car; Bob owns a blue car", after[2]]
        assert len(after) == 3
        plan = scheduler.upkeep.plan(user_id="ann")
        assert (plan.merges, plan.groups) == (0, 0)
        undone = scheduler.upkeep.undo(user_id="ann")
        assert undone is not None
        assert (undone.pass_id, undone.mem_cube_ids, undone.changes) == (
            done.pass_id,
            ("ann", "other"),
            done.changes,
        )
        assert living(scheduler) == before
        assert scheduler.upkeep.undo(user_id="ann") is None
        again = scheduler.upkeep.run(user_id="ann")  # what was undone is not done again
        assert (again.changes, living(scheduler)) == (0, before)


def test_passes_are_undone_one_after_the_other_and_deleted_stays_deleted(
    tmp_path: Path, clock: ManualClock
) -> None:
    with scheduler_at(tmp_path, clock, None).used() as scheduler:
        keep(scheduler, **DOUBLES)
        scheduler.submit("mem_organize", user_id="ann", item_id="first")
        drain(scheduler)
        clock.advance(1)
        keep(scheduler, c="Ann likes rain", d="Ann likes Rain")
        scheduler.submit("memory_compression", user_id="ann", item_id="second")
        drain(scheduler)
        assert len(living(scheduler)) == 2
        scheduler.memory.delete("c", user_id="ann")
        undone = scheduler.upkeep.undo(user_id="ann")
        assert undone is not None
        assert (undone.pass_id, undone.label) == ("second", "memory_compression")
        assert living(scheduler) == ["Ann likes Rain", *living(scheduler)[1:]]
        assert len(living(scheduler)) == 2
        undone = scheduler.upkeep.undo(user_id="ann")
        assert undone is not None
        assert undone.pass_id == "first"
        assert living(scheduler) == ["Ann likes Rain", "Ann likes TEA", "Ann likes tea"]


def test_what_a_user_deletes_is_gone_with_all_that_was_merged_into_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with scheduler_at(tmp_path, clock, None).used() as scheduler:
        keep(scheduler, **DOUBLES, **SIMILAR)
        scheduler.submit("mem_organize", user_id="ann")
        drain(scheduler)
        (found,) = scheduler.memory.search("tea", user_id="ann")
        scheduler.memory.delete(found.item.id, user_id="ann")
        assert scheduler.memory.search("tea", user_id="ann").hits == []
        for name in DOUBLES:
            with pytest.raises(MemoryDeletedError):
                scheduler.memory.get(name, user_id="ann")
        scheduler.upkeep.undo(user_id="ann")
        assert living(scheduler) == sorted(SIMILAR.values())


def test_a_spent_budget_lets_a_run_wait(tmp_path: Path, clock: ManualClock, model: ScriptedModel) -> None:
    with scheduler_at(tmp_path, clock, model, llm={"upkeep_share": 0}) as scheduler:
        keep(scheduler, **DOUBLES, **SIMILAR)
        done = scheduler.upkeep.run(user_id="ann")
        assert (done.waiting > 0, done.failed, model.calls) == (True, 0, 0)
        assert len(living(scheduler)) == 3  # what needs no model was done


def test_a_user_without_memories(tmp_path: Path, clock: ManualClock) -> None:
    with scheduler_at(tmp_path, clock, None).used() as scheduler:
        assert scheduler.upkeep.plan(user_id="ann").changed == 0
        assert scheduler.upkeep.run(user_id="ann").total == 0
        assert scheduler.upkeep.undo(user_id="ann") is None
        with pytest.raises(InvalidMessageError):
            scheduler.upkeep.plan(user_id="")


# -- from the shell --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_from_the_shell(place: Place) -> None:
    place.extra |= {"REVERIE_UPKEEP__SIMILARITY": "0.5"}
    with place.scheduler() as scheduler:
        keep(scheduler, **DOUBLES, **SIMILAR)
    shown = run(place, "upkeep", "plan", "--user", "ann")
    assert shown.exit_code == 0
    assert "changed    4 memories since the last pass" in shown.stdout
    assert "merge      1 group of memories that say the same" in shown.stdout
    assert "similar    2 groups that stay, without a language model" in shown.stdout
    assert "Bob owns a red car | Bob owns a blue car" in shown.stdout
    assert answer(place, "upkeep", "plan", "--user", "ann")["merges"] == 1
    done = answer(place, "upkeep", "run", "--user", "ann")
    assert (done["failed"], done["waiting"], done["changes"] > 0) == (0, 0, True)
    shown = run(place, "upkeep", "undo", "--user", "ann")
    assert shown.exit_code == 0
    assert f"took back {done['changes']} changes of the pass {done['pass_id']}" in shown.stdout
    shown = run(place, "upkeep", "undo", "--user", "ann")
    assert shown.exit_code == 1
    assert "there is no pass" in shown.stderr
    assert "0 changes by 3 messages" in run(place, "upkeep", "run", "--user", "ann").stdout
