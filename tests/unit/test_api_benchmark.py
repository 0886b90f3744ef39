"""The benchmark of the HTTP API runs, and says what it found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is missing: apt-get install wrk")
def test_a_small_run_gives_every_figure(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REVERIE_")}
    command = [sys.executable, "-m", "benchmarks", "api", "--json", "--scale", "0.01", "--rounds", "1"]
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
    names = [f"{name}_{part}" for name in ("add", "search") for part in ("rps", "p50_ms", "p99_ms")]
    for found in (figures, figures["bare"], *figures["sqlite"].values(), *figures["redis"].values()):
        assert all(found[name] > 0 for name in names), found
    for backend in ("sqlite", "redis"):
        assert set(figures[backend]) == {"outside", "inside"}
        assert all(found["add_ratio_to_bare"] > 0 for found in figures[backend].values())
    assert figures["ratio_to_bare"] == figures["sqlite"]["outside"]["add_ratio_to_bare"]
    assert set(figures["targets"]) == {
        f"{backend}_{name}"
        for backend in ("sqlite", "redis")
        for name in ("add_ratio_to_bare", "add_8_p99_ms")
    }
