"""The pinned requirements are names and versions: nothing that only one machine has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements/*.txt")), ids=lambda path: path.name)
def test_every_line_is_a_pin(path: Path) -> None:
    lines = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if line and not line.lstrip().startswith("#")
    ]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .*)?", line)] == []
