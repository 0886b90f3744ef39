"""The language model from the shell: what it has cost, what it extracts, and reading what was kept before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reverie.models import openai_chat
from reverie.testing import drain
from reverie.turn import Turn
from support.commands import answer, run
from support.extractor import extract
from support.forked import REVERIE
from support.living import wait_until
from support.places import Place
from support.scripted_model import Answer, quota, scripted
from support.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.scripted_model import ScriptedModel

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}

NOTHING_LEFT = "there is nothing to extract: all turns were read, or wait in a buffer\n"


@pytest.fixture
def model(place: Place) -> Iterator[ScriptedModel]:
    with scripted() as model:
        model.answers = extract
        place.extra |= {
            "REVERIE_LLM__PRESET": "custom",
            "REVERIE_LLM__URL": model.url,
            "REVERIE_LLM__MODEL": "tiny",
            "REVERIE_LLM__API_KEY": "k",
        }
        yield model


def say(place: Place, *texts: str, user: str = "ann") -> None:
    """Keep turns without a model."""
    with place.scheduler() as scheduler:
        scheduler.memory.add([Turn(content=text, name=user.title()) for text in texts], user_id=user)
        drain(scheduler)


def facts(place: Place, user: str = "ann") -> set[str]:
    with place.scheduler() as scheduler:
        page = scheduler.memory.page(user_id=user, kinds=["fact", "event", "preference"])
        return {item.text for item in page.items}


# -- plan and run ----------------------------------------------------------------------------------------


def test_a_plan_says_what_it_would_cost_and_makes_no_call(place: Place, model: ScriptedModel) -> None:
    say(place, "I moved to Lisbon", "I like tea")
    say(place, "I like milk", user="bob")
    shown = run(place, "extract", "plan")
    assert shown.exit_code == 0
    assert "turns      3 of 2 tenants" in shown.stdout
    assert "calls      about 2 of tiny" in shown.stdout
    assert "money      unknown: set llm.prices.tiny" in shown.stdout
    assert "days       1 (llm.tokens_per_day = 500000)" in shown.stdout
    assert "reverie extract run" in shown.stderr
    place.extra["REVERIE_LLM__PRICES"] = '{"tiny": {"input": 1000, "output": 1000}}'
    planned = answer(place, "extract", "plan", "--user", "bob")
    assert (planned["turns"], planned["calls"], planned["model"]) == (1, 1, "tiny")
    assert f"money      about {planned['cost']:g}" in run(place, "extract", "plan", "-u", "bob").stdout
    assert model.calls == 0


def test_a_run_reads_each_turn_once(place: Place, model: ScriptedModel) -> None:
    say(place, "I moved to Lisbon", "I like tea")
    shown = run(place, "extract", "run", "--yes")
    assert (shown.exit_code, shown.stdout) == (0, "read 2 of 2 turns\n"), shown.output
    assert facts(place) == {"Ann lives in Lisbon", "Ann likes tea"}
    shown = run(place, "extract", "run", "--yes")
    assert (shown.exit_code, shown.stdout) == (0, NOTHING_LEFT)
    assert answer(place, "extract", "run") == {"turns": 0, "failed": 0, "waiting": 0, "passed_over": 0}
    assert run(place, "extract", "plan").stdout == NOTHING_LEFT
    assert model.calls == 1


def test_only_a_user_or_a_cube_of_the_user(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    say(place, "I like milk", user="bob")
    assert answer(place, "extract", "run", "--user", "bob", "--cube", "bob")["turns"] == 1
    assert (facts(place), facts(place, "bob")) == (set(), {"Bob likes milk"})
    for command in (("extract", "plan"), ("extract", "run"), ("usage",)):
        shown = run(place, *command, "--cube", "ann")
        assert (shown.exit_code, "needs a user_id" in shown.stderr) == (2, True)


def test_without_a_model_the_error_says_what_to_set(place: Place) -> None:
    say(place, "I like tea")
    shown = run(place, "extract", "run", "--yes")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: no language model is set up (llm.preset = none): set llm.preset")
    assert "REVERIE_LLM__PRESET, to one of openai, ollama, anthropic, custom" in shown.stderr
    shown = run(place, "extract", "plan")
    assert (shown.exit_code, "turns      1 of 1 tenant\n" in shown.stdout) == (0, True)
    assert "no language model is set up" in shown.stderr


def test_a_key_or_a_package_that_is_missing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    say(place, "I like tea")
    place.extra |= {"REVERIE_LLM__PRESET": "openai", "OPENAI_API_KEY": ""}
    shown = run(place, "extract", "run", "--yes")
    assert shown.exit_code == 1
    assert (
        "llm.preset = openai has no API key: set llm.api_key, or the variable OPENAI_API_KEY" in shown.stderr
    )
    monkeypatch.setattr(openai_chat, "PACKAGES", ("openai", "no_such_package"))
    shown = run(place, "extract", "run", "--yes")
    assert shown.exit_code == 1
    assert "not installed: no_such_package: `pip install 'reverie[llm]'`" in shown.stderr


def test_what_has_to_wait(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    model.script = [quota()]
    shown = run(place, "extract", "run", "--yes")
    assert (shown.exit_code, shown.stdout) == (1, "read 0 of 1 turn\n")
    assert "1 message waits: reverie usage" in shown.stderr


def test_what_has_failed(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    model.answers = lambda _: Answer(status=400)
    shown = run(place, "extract", "run", "--yes")
    assert (shown.exit_code, shown.stdout) == (1, "read 0 of 1 turn\n")
    assert "1 message has failed: reverie dead list --label mem_read" in shown.stderr
    assert len(answer(place, "dead", "list", "--label", "mem_read")["rows"]) == 1
    model.answers = extract
    shown = run(place, "extract", "run", "--yes")  # another message, because the first has ended
    assert (shown.exit_code, shown.stdout) == (0, "read 1 of 1 turn\n")


def test_a_person_is_asked_and_may_say_no(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    with terminal(place, REVERIE, "extract", "run") as person:
        person.reads("extract them now?")
        person.types("n\n")
        assert person.ends() == 1
    assert "turns      1 of 1 tenant" in person.shown
    assert "nothing was done" in person.shown
    assert model.calls == 0
    with terminal(place, REVERIE, "extract", "run") as person:
        person.reads("extract them now?")
        person.types("y\n")
        assert person.ends() == 0
    assert "read 1 of 1 turn" in person.shown


def test_ctrl_c_leaves_what_was_handed_over(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    model.script = [Answer(hangs=True, text='{"facts": []}')]
    with terminal(place, REVERIE, "extract", "run", "--yes") as person:
        person.reads("reading turns")
        wait_until(lambda: model.calls)
        person.presses_ctrl_c()
        person.reads("stopping")
        model.release.set()
        assert person.ends() == 130
    with place.scheduler() as scheduler:
        assert [item.task_type for item in scheduler.status("ann")].count("mem_read") == 1
    assert run(place, "extract", "run", "--yes").exit_code == 0
    assert answer(place, "extract", "plan")["turns"] == 0


# -- show and set ----------------------------------------------------------------------------------------


def test_what_is_extracted_is_set_and_shown(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    place.extra["REVERIE_EXTRACTION__MISSION"] = "All of it."
    shown = run(place, "extract", "show", "--user", "ann").stdout
    assert "mission     All of it.  (settings)" in shown
    assert "categories  (not set)" in shown
    options = ("--category", "food", "--category", "drink", "--exclude", "prices", "--schema", str(file))
    found = answer(place, "extract", "set", "-u", "ann", *options)
    assert found == {
        "user_id": "ann",
        "mem_cube_id": "ann",
        "mission": "All of it.",
        "categories": ["food", "drink"],
        "include": None,
        "exclude": ["prices"],
        "schema": SCHEMA,
        "own": ["categories", "exclude", "schema"],
    }
    shown = run(place, "extract", "set", "-u", "ann", "--mission", "Meals.", "--exclude", "").stdout
    assert "mission     Meals.  (this cube)" in shown
    assert "categories  food; drink  (this cube)" in shown
    assert "exclude     none  (this cube)" in shown
    assert f"schema      {json.dumps(SCHEMA, separators=(',', ':'))}  (this cube)" in shown
    assert answer(place, "extract", "show", "-u", "ann", "--cube", "work")["own"] == []
    found = answer(place, "extract", "set", "-u", "ann", "--reset", "--include", "allergies")
    assert (found["own"], found["mission"]) == (["include"], "All of it.")


def test_what_is_set_is_asked_for(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    run(place, "extract", "set", "-u", "ann", "--mission", "A diary of meals.")
    assert run(place, "extract", "run", "--yes").exit_code == 0
    assert "A diary of meals." in model.requests[0].prompt


def test_what_cannot_be_set(place: Place, tmp_path: Path) -> None:
    bad, broken = tmp_path / "bad.json", tmp_path / "broken.json"
    bad.write_text('{"type": "object", "properties": 3}')
    broken.write_text("[1")
    for options, code, words in (
        ((), 2, "say what to set: --mission"),
        (("--category", "x" * 61), 1, "must have 1 to 60 characters"),
        (("--schema", str(bad)), 1, "is no valid JSON schema at $.properties"),
        (("--schema", str(broken)), 1, "is not a JSON object"),
        (("--schema", str(tmp_path / "none")), 1, "cannot be read: No such file"),
    ):
        shown = run(place, "extract", "set", "-u", "ann", *options)
        assert (shown.exit_code, words in shown.stderr) == (code, True), shown.output
    assert answer(place, "extract", "show", "-u", "ann")["own"] == []


def test_turns_that_were_given_up_are_read_again(place: Place, model: ScriptedModel) -> None:
    give_up(place, model)
    assert "1 turn will be read again" in run(place, "extract", "retry", "-u", "ann").stdout
    assert answer(place, "extract", "retry", "-u", "ann") == {"retried": 0}


def give_up(place: Place, model: ScriptedModel) -> None:
    """Let the one run that may fail on a turn fail."""
    place.extra |= {"REVERIE_BUFFER__MAX_FAILURES": "1", "REVERIE_BUFFER__MAX_TOKENS": "1"}
    model.answers = lambda _: Answer(status=400)
    run(place, "add", "I like tea", "-u", "ann")
    assert run(place, "worker", "--drain").exit_code == 0
    model.answers = extract


# -- usage -----------------------------------------------------------------------------------------------


def test_what_calls_have_cost(place: Place, model: ScriptedModel) -> None:
    shown = run(place, "usage")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "the language model was not called in the last 7 days" in shown.stderr
    say(place, "I like tea")
    say(place, "I like milk", user="bob")
    place.extra["REVERIE_LLM__PRICES"] = '{"tiny": {"input": 1000, "output": 1000}}'
    run(place, "extract", "run", "--yes")
    shown = run(place, "usage", "--days", "1").stdout
    assert "money" in shown
    assert "together" in shown
    assert "0.0150" in shown
    assert "0.0300" in shown
    found = answer(place, "usage", "--user", "bob", "--cube", "bob")
    (row,) = found["usage"]
    assert (row["user_id"], row["label"], row["calls"], row["input_tokens"]) == ("bob", "mem_read", 1, 10)
    assert found["budgets_spent"] == []
    assert "more than 1 rows" in run(place, "usage", "--limit", "1").stderr


def test_a_spent_budget_is_named(place: Place, model: ScriptedModel) -> None:
    say(place, "I like tea")
    place.extra["REVERIE_LLM__TOKENS_PER_DAY"] = "15"
    run(place, "extract", "run", "--yes")
    shown = run(place, "usage")
    assert "the tokens budget of ann/ann is spent until tomorrow (UTC): llm.tokens_per_day" in shown.stderr
    assert "money" not in shown.stdout
    (budget,) = answer(place, "usage")["budgets_spent"]
    assert (budget["user_id"], budget["what"]) == ("ann", "tokens")
    assert answer(place, "usage", "--user", "bob")["budgets_spent"] == []
