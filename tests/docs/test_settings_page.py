"""The page of settings is what the settings themselves say."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie.configuration.fields import Field, all_fields, find
from reverie.configuration.section import Section
from reverie.settings import DEFAULT_NAMES, OTHER_NAMES, Settings, settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
FIELDS = list(all_fields(Settings))


def test_the_page_is_up_to_date() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    assert shown == settings_page(), "docs/settings.md is old: run `make pages`"


def test_every_setting_says_what_it_means() -> None:
    assert [field.name for field in FIELDS if not field.description.strip()] == []


def test_a_default_that_differs_between_machines_is_told_in_words() -> None:
    assert [field.name for field in FIELDS if field.computed and "; default: " not in field.description] == []


def test_every_group_refuses_unknown_names_and_says_what_it_is() -> None:
    groups = {find(Settings, field.place[:-1]) for field in FIELDS}
    assert [group for group in groups if not issubclass(group, Section) or not group.__doc__] == []


def test_every_setting_is_on_the_page_with_its_variable() -> None:
    text = settings_page()
    assert [field.name for field in FIELDS if f"| `{field.name}` | `{field.variable}` |" not in text] == []
    assert {"queue.url", "worker.lease_s", "labels.<label>.min_idle_ms"} <= {field.name for field in FIELDS}


@pytest.mark.parametrize("name", [*DEFAULT_NAMES, *OTHER_NAMES])
def test_other_names_lead_to_settings(name: str) -> None:
    assert isinstance(find(Settings, (DEFAULT_NAMES | OTHER_NAMES)[name]), Field)


def test_no_setting_lacks_its_unit() -> None:
    numbers = [field.name for field in FIELDS if field.annotation in {int, float} and not field.unit]
    assert numbers == [
        "queue.redis_port",
        "queue.redis_db",
        "llm.temperature",
        "server.port",
        "scheduler.version",
        "scheduler.tasks.<task>.level",
        "labels.<label>.level",
    ]
