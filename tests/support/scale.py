"""How large the chaos and load tests are, and where their figures are kept.

`make test` runs a twentieth of the numbers that a test names, `make soak` (REVERIE_TEST_SCALE=1) all of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import time
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SCALE = Fraction(os.environ.get("REVERIE_TEST_SCALE", "1/20"))
SEED = int(os.environ.get("REVERIE_TEST_SEED", random.SystemRandom().randrange(2**32)))
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def scaled(number: int) -> int:
    """As many of these as this run has; at least one."""
    return max(1, math.ceil(number * SCALE))


@contextmanager
def evidence(name: str) -> Iterator[dict[str, Any]]:
    """A dictionary for the figures of one test; a full run that passes keeps them as a file."""
    figures: dict[str, Any] = {}
    began = time.monotonic()
    print(f"{name}: REVERIE_TEST_SEED={SEED}")
    yield figures
    print(f"{name}: {figures}")
    if SCALE == 1:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout
        summary = {
            "test": name,
            "commit": commit.strip(),
            "duration_s": round(time.monotonic() - began, 1),
            "seed": SEED,
            "figures": figures,
        }
        (EVIDENCE / f"{name}.json").write_text(json.dumps(summary, indent=2) + "\n")
