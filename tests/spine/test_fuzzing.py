"""schemathesis asks a server whatever its OpenAPI document allows, and what it does not allow.

All checks are on. No answer is a 5xx but a documented 503 or 501, and none is undocumented.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reverie.api.routes import ROUTES
from support.places import PATHS, Place, sqlite
from support.scale import SCALE, SEED, evidence, scaled

CONFIGURATION = Path(__file__).parents[1] / "support" / "fuzzing.toml"
EXAMPLES = 200
"""Generated requests of one route, at most; beside these come the examples of the document."""
QUIETLY = {"REVERIE_ALERTS__CHECK_S": "3600"}
"""Nobody reads the log: what is submitted has labels of all kinds, and each would be an alert."""


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_a_server_holds_to_its_document_whatever_it_is_asked(tmp_path: Path) -> None:
    with evidence("fuzzing") as figures, sqlite(tmp_path) as place:
        with place.scheduler() as scheduler:
            key = scheduler.keys.create("admin", "admin").token
        with place.server(**QUIETLY) as server:
            report = fuzz(place, f"{server.client.base_url}/openapi.json", key)
        cases = report["test_cases"]["generated"]
        figures |= {"routes": len(ROUTES), "cases": cases, "schemathesis": report["schemathesis_version"]}
        assert report["operations"]["selected"] == len(ROUTES)
        assert report["warnings"]["missing_auth"] == report["warnings"]["method_not_allowed"] == []
        assert cases >= scaled(EXAMPLES) * len(ROUTES) // 4


def fuzz(place: Place, address: str, key: str) -> dict[str, Any]:
    """Run schemathesis; the answer is its report."""
    phases = ["examples", "coverage", "fuzzing", "stateful"] if SCALE == 1 else ["examples", "fuzzing"]
    report = place.folder / "report.json"
    command = [Path(sys.executable).with_name("st"), "--config-file", CONFIGURATION, "run", address]
    command += ["--checks", "all", "--exclude-checks", "negative_data_rejection"]  # support.fuzzing has it
    command += ["--phases", ",".join(phases), "--max-examples", str(scaled(EXAMPLES)), "--workers", "2"]
    command += ["--seed", str(SEED), "--request-timeout", "60", "--continue-on-failure", "--no-color"]
    command += ["--header", f"Authorization: Bearer {key}", "--generation-database", "none"]
    command += ["--report-json-path", str(report)]
    shown = subprocess.run(
        command,
        env=place.environment | PATHS | {"SCHEMATHESIS_HOOKS": "support.fuzzing"},
        cwd=place.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return json.loads(report.read_text())
