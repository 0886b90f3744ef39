"""The benchmark of hooks runs, and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import hook

ROOT = Path(__file__).parents[2]
WORST = ("hook_p50_ms", "hook_p99_ms", "context_p50_ms", "context_p99_ms")


@pytest.mark.skipif(not hook.COMMAND.exists(), reason="reverie-hook is missing: install the package")
def test_a_small_run_gives_every_figure(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
    command = [sys.executable, "-m", "benchmarks", "hook", "--json", "--scale", "0.01"]
    shown = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout.splitlines()[-1])
    assert figures["states"].keys() == {"up", "hung", "absent"}
    for name in WORST:
        assert figures[name] == max(found[name] for found in figures["states"].values()) > 0
    ratios = [found["ratio"] for found in figures["states"].values()]
    assert figures["ratio_to_bare_interpreter"] == max(ratios)
    assert min(ratios) > 1  # a hook does more than nothing
    up, hung = figures["states"]["up"], figures["states"]["hung"]
    assert hung["context_p50_ms"] >= figures["context_budget_ms"] > up["bare_p50_ms"]
    assert figures["mcp_search_p50_ms"] > 0
    assert figures["targets"].keys() == {"ratio_to_bare_interpreter", "hook_p99_ms", "context_p99_ms"}
