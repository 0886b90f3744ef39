"""The benchmark of the built-in handlers runs, and says what it found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import handlers

from reverie.handlers.catalogue import CATALOGUE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_small_run_gives_every_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(handlers, "DAYS", 6)
    said = [
        {"id": "t1", "speaker": "Ann", "text": "I bought a red car"},
        {"id": "t2", "speaker": "Ann", "text": "I bought a red car!"},
    ]
    asked = [{"question": "What did Ann buy?", "kind": "fact", "evidence": ["t1"]}]
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"conversations": [{"id": "c", "turns": said, "questions": asked}]}))
    figures = handlers.measure(0.05, path, lambda _: None)
    assert figures["items_per_s"].keys() == {entry.label for entry in CATALOGUE}
    assert min(figures["items_per_s"].values()) > 0
    assert figures["recall_kept"] == 1
    assert figures["compression_ratio"] > 1
    assert (figures["facts_lost"], figures["wrong_answers"]) == (0, 0)
    assert figures["targets"].keys() == {
        "compression_ratio", "facts_lost", "wrong_answers", "tokens_growth", "recall_kept",
    }  # fmt: skip
    assert len(figures["course"]["items"]) == figures["days"]
    json.dumps(figures)
