"""Values are changed in the text of a settings file, and all else of the text stays."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reverie.configuration.editing import with_values
from reverie.errors import InvalidSettingError

NEW = {"embedding": "onnx", "embedding_path": "/models/e5 small.jar"}
ADDED = 'embedding: onnx\n  embedding_path: "/models/e5 small.jar"\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"memory:\n  {ADDED}"),
        ("# only a comment", f"# only a comment\nmemory:\n  {ADDED}"),
        ("queue: {max_depth: 9}\n", f"queue: {{max_depth: 9}}\nmemory:\n  {ADDED}"),
        ("memory:  # later\nserver: {}\n", f"memory:  # later\n  {ADDED}server: {{}}\n"),
        ("memory:", f"memory:\n  {ADDED.rstrip()}"),
        (
            "memory:\n   # a\n   embedding: 'none' # b\n   url: x\n",
            'memory:\n   # a\n   embedding_path: "/models/e5 small.jar"\n   embedding: onnx # b\n   url: x\n',
        ),
        ("memory: {embedding: none}", 'memory: {embedding_path: "/models/e5 small.jar", embedding: onnx}'),
        ("memory: {}", 'memory: {embedding: onnx, embedding_path: "/models/e5 small.jar"}'),
        (
            "memory:\n  embedding_path:\n  embedding: none\n",
            'memory:\n  embedding_path: "/models/e5 small.jar"\n  embedding: onnx\n',
        ),
        ("memory:\r\n  embedding: none\r\n", None),
        ("---\nmemory:\n  embedding: >-\n    none\n", "refused"),
        ("{memory: {embedding: none}}", "refused"),
        ("memory: null\n", "refused"),
        ("base: &base {url: x}\nmemory: *base\n", "refused"),
        ("queue: {}\n...\n", "refused"),
    ],
)
def test_a_section_gets_values(before: str, after: str | None) -> None:
    if after == "refused":
        with pytest.raises(InvalidSettingError, match=r"set by hand memory\.embedding: onnx"):
            with_values(before, "memory", NEW, "reverie.yaml")
        return
    edited = with_values(before, "memory", NEW)
    if after is not None:
        assert edited == after
    assert yaml.safe_load(edited)["memory"].items() >= NEW.items()
    assert edited.count("\r") == (edited.count("\n") if "\r" in before else 0)


def test_a_value_that_is_to_go_becomes_null_where_it_is_set() -> None:
    values = {"embedding": "none", "embedding_path": None}
    assert with_values("memory: {embedding: none}\n", "memory", {"embedding_path": None}).count("null") == 0
    edited = with_values("memory: {embedding: onnx, embedding_path: /x}\n", "memory", values)
    assert edited == "memory: {embedding: none, embedding_path: null}\n"


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_path_is_written_so_that_it_is_read_again(path: str) -> None:
    edited = with_values("memory: {embedding: none}\n", "memory", {"embedding_path": path})
    assert yaml.safe_load(edited)["memory"]["embedding_path"] == path
