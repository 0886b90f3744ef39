"""`reverie doctor` about the language model: what is missing, spent budgets, and turns that were given up."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from reverie.cli.doctor.finding import Patient
from reverie.cli.doctor.language_model import language_model
from reverie.memory.buffers import BufferKey
from reverie.models import openai_chat
from reverie.models.usage import Spent
from reverie.settings import load_settings
from support.commands import answer, run
from support.places import Place

if TYPE_CHECKING:
    from reverie.cli.doctor.finding import Finding

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

CUSTOM = {"preset": "custom", "url": "http://me:hunter2@127.0.0.1:9/v1", "model": "tiny"}


def look(place: Place, **llm: Any) -> list[Finding]:
    given = place.settings()
    settings = load_settings(
        data_dir=place.folder, queue={"url": given.queue.url}, memory={"url": given.memory.url}, llm=llm
    )
    return language_model(Patient(settings, place.folder))


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


def spend(place: Place, *users: str) -> None:
    with place.scheduler() as scheduler:
        scheduler.open()
        budgets = scheduler.runtime.gateway._budgets
        for user in users:
            spent = Spent(
                key=user,
                day=budgets.day,
                user_id=user,
                mem_cube_id="home",
                label="mem_read",
                model="tiny",
                input_tokens=100,
                output_tokens=0,
            )
            scheduler.run(scheduler.runtime.gateway.ledger.write_spent([spent]))


def give_up(place: Place, *users: str) -> None:
    """Let a run fail on a turn of each user for the last time."""
    with place.scheduler() as scheduler:
        for user in users:
            scheduler.buffers.insert(user, "I like tea", "home")
            store = scheduler.runtime.store
            claim = scheduler.run(
                store.claim_buffer(BufferKey(user, "home"), "run", lease_ms=1000, max_tokens=100)
            )
            scheduler.run(store.release_buffer(claim, failed="no", most=1))


def test_without_a_model_there_is_one_line(place: Place) -> None:
    spend(place, "ann")
    (found,) = look(place)
    assert (found.check, found.level) == ("language_model", "ok")
    assert "llm.preset = none" in found.what


def test_a_model_that_is_set_up(place: Place) -> None:
    for _ in range(2):  # at first there is no file yet
        (found,) = look(place, **CUSTOM)
        assert (found.level, "tiny at http://" in found.what) == ("ok", True)
        assert "hunter2" not in found.what
        spend(place, "ann")


def test_the_extra_is_not_installed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_chat, "PACKAGES", ("no_such_package",))
    (found,) = look(place, **CUSTOM)
    assert (found.level, "not installed: no_such_package" in found.what) == ("warning", True)
    assert "`pip install 'reverie[llm]'`" in found.remedy


@pytest.mark.parametrize(
    ("preset", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
def test_a_preset_without_its_key(
    place: Place, monkeypatch: pytest.MonkeyPatch, preset: str, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    (found,) = look(place, preset=preset)
    assert (found.level, found.remedy) == ("warning", f"set llm.api_key, or the variable {variable}")
    assert levels(look(place, preset=preset, api_key="k")) == ["ok"]
    monkeypatch.setenv(variable, "k")
    assert levels(look(place, preset=preset)) == ["ok"]
    assert levels(look(place, preset="ollama")) == ["ok"]


def test_spent_budgets_are_a_note(place: Place) -> None:
    spend(place, *"abcde")
    assert levels(look(place, **CUSTOM)) == ["ok"]
    (found,) = look(place, **CUSTOM, tokens_per_day=100)
    assert found.level == "note"
    assert "the budget of a/home, b/home, c/home and 2 others for " in found.what
    assert "`reverie usage --days 1`; or raise llm.tokens_per_day" in found.remedy


def test_turns_that_were_given_up(place: Place) -> None:
    give_up(place, "ann", "bob")
    (found,) = look(place, **CUSTOM)
    assert found.level == "warning"
    assert "2 turns were given up" in found.what
    assert found.what.endswith("ann/home, bob/home")
    for command in re.findall(r"`reverie ([^`]+)`", found.remedy):
        assert run(place, *shlex.split(command)).exit_code == 0, command
    (found,) = look(place, **CUSTOM)
    assert found.what.endswith("failed: bob/home")


def test_the_doctor_tells(place: Place) -> None:
    place.extra |= {"REVERIE_SERVER__PORT": "0"}
    found = {one["check"]: one["level"] for one in answer(place, "doctor")}
    assert found["language_model"] == "ok"
