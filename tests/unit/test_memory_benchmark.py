"""The benchmark of memories runs, and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.memory_texts import questions, turns_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "conversations.json"


def test_a_small_run_gives_every_figure(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
    command = [sys.executable, "-m", "benchmarks", "memory", "--json", "--scale", "0.002", "--rounds", "1"]
    shown = subprocess.run(
        [*command, "--eval", str(EXAMPLE)],
        cwd=ROOT,
        env=environment | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout.splitlines()[-1])
    names = ["search", "search_1000", "search_100000", "search_small_tenant"]
    wanted = [f"{name}_{part}_ms" for name in names for part in ("p50", "p99")]
    for name in (*wanted, "add_turns_per_s", "search_ratio_alone", "bytes_per_small_tenant"):
        assert figures[name] > 0, name
    assert figures["recall_at_10"] >= 0.8
    assert set(figures["targets"]) <= set(figures)
    for name, found in figures["peers"].items():
        assert found or figures["peers_missing"][name]


def test_texts_are_the_same_in_every_run() -> None:
    turns = list(turns_of(3, 50))
    assert turns == list(turns_of(3, 50))
    assert turns[:20] != list(turns_of(4, 20))
    assert all(8 <= len(said.text.split()) <= 25 for said in turns)
    assert {said.session for said in turns} == {0, 1, 2}
    assert len({said.speaker for said in turns}) == 2
    assert questions(3, 5, 50) == questions(3, 5, 50)
