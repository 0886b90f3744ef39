"""A new task type needs three keys of configuration, a function, and a line: the example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_keys.py"


def test_a_type_of_three_keys_runs_once_for_a_user_who_is_active_often(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "a new run was scheduled",
        "a run is scheduled already",
        "a run is scheduled already",
        "my_new_task runs for ann on phone with default",
    ]
    assert list(tmp_path.iterdir()) == []
