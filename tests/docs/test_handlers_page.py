"""The page about the built-in handlers."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import msgspec
import pytest

from reverie.handlers.catalogue import CATALOGUE, handlers_page
from reverie.handlers.mem_read import ReadInput
from reverie.handlers.mem_update import UpdateInput
from reverie.handlers.pref_add import PreferenceInput
from reverie.handlers.query import AnswerInput, QueryInput
from reverie.handlers.upkeep import UpkeepInput
from reverie.memory.feedback import FeedbackInput
from reverie.memory.kept_searches import MixInput
from reverie.message import LABEL_LEVELS
from reverie.observation import Observation, SessionContent, Summary
from reverie.turn import Turn

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
INPUTS = {
    "add": list[Turn],
    "mem_read": ReadInput,
    "query": QueryInput,
    "answer": AnswerInput,
    "mem_update": UpdateInput,
    "mem_feedback": FeedbackInput,
    "pref_add": PreferenceInput,
    "api_mix_search": MixInput,
    **dict.fromkeys(("mem_organize", "memory_compression", "mem_archive"), UpkeepInput),
    "observation": Observation,
    "summary": Summary,
    **dict.fromkeys(("session_init", "session_complete"), SessionContent),
}
BARE_TURNS = {"add", "pref_add"}
"""Labels whose example is a list of turns."""


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text() == handlers_page(), "docs/handlers.md is old: run `make pages`"


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.label)
def test_each_example_is_a_content_that_the_handler_reads(entry) -> None:
    if entry.label not in INPUTS:  # its messages have no content
        assert (entry.described.input, entry.described.example) == ("nothing", "{}")
        return
    kind = INPUTS[entry.label]
    fields = kind.__args__[0] if entry.label == "add" else kind
    for name in fields.__struct_encode_fields__:
        assert f"`{name}`" in entry.described.input, f"{entry.label} does not tell of {name}"
    shown, known = json.loads(entry.described.example), set(fields.__struct_encode_fields__)
    if entry.label in BARE_TURNS:
        kind, shown, known = list[Turn], shown[0], set(Turn.__struct_fields__)
    msgspec.json.decode(entry.described.example, type=kind)
    assert set(shown) <= known


def test_each_handler_has_a_level_and_a_docstring() -> None:
    for entry in CATALOGUE:
        assert entry.label in LABEL_LEVELS
        assert inspect.getdoc(entry.function)
