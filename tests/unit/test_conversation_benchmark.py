"""The benchmark of conversations runs, and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.conversation import Report, _median_in_flight, _recovered_s, _timeline

ROOT = Path(__file__).parents[2]


def test_a_small_run_gives_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
    command = [sys.executable, "-m", "benchmarks", "conversation", "--json", "--scale", "0.01"]
    shown = subprocess.run(
        [*command, "--rounds", "1"],
        cwd=ROOT,
        env=environment | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout.splitlines()[-1])
    rates = ["fast_path_turns_per_s", "fast_path_turns_per_s_without_buffer", "fast_path_ratio"]
    for name in (*rates, "cpu_share"):
        assert figures[name] > 0, name
    for name in ("extraction_turns_per_s", "tokens_per_turn", "llm_calls_per_turn", "refused_calls"):
        assert figures[name] >= 0, name
    assert 0 <= figures["calls_in_flight"] <= figures["max_concurrency"]
    assert "recovered_s" in figures
    assert set(figures["targets"]) <= set(figures)
    assert len(figures["concurrency_timeline"]) >= 5


def test_the_timeline_counts_calls_and_their_mean_in_flight() -> None:
    seen = Report(in_flight=[(10.0, 1), (10.5, 2), (11.0, 1), (12.5, 0)])
    assert _timeline(seen, [11.0, 12.5], 10.0, 3) == [[0, 1.5, 1], [1, 1.0, 0], [2, 0.5, 1]]
    assert _median_in_flight(seen, 10.0, 13.0) == 1


def test_a_rate_has_come_back_at_the_end_of_the_first_window_with_most_of_the_former_rate() -> None:
    before = [float(second) for second in range(1, 11)]
    after = [30.0 + second for second in range(1, 31)]
    assert _recovered_s([*before, *after], 0.0, 10.0, 20.0, 40.0) == pytest.approx(15, abs=1)
    assert _recovered_s(before, 0.0, 10.0, 20.0, 40.0) is None
