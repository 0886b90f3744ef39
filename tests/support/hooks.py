"""Hooks of an agent, as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = "from reverie.capture.hook import main; main()"
"""What the command `reverie-hook` runs."""
INPUTS: dict[str, dict[str, Any]] = {
    "SessionStart": {"source": "startup"},
    "UserPromptSubmit": {"prompt": "Fix the parser, please", "source": "user"},
    "PostToolUse": {
        "tool_name": "Bash",
        "tool_input": {"command": "make test"},
        "tool_response": {"stdout": "3 passed"},
        "tool_use_id": "toolu_1",
    },
    "PostToolUseFailure": {
        "tool_name": "Bash",
        "tool_input": {"command": "make test"},
        "error": "exit code 2",
        "tool_use_id": "toolu_2",
    },
    "PostToolBatch": {
        "tool_calls": [
            {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_response": "a", "tool_use_id": "t3"}
        ]
    },
    "SubagentStart": {"agent_id": "a1", "agent_type": "explorer"},
    "SubagentStop": {"agent_id": "a1", "agent_type": "explorer", "last_assistant_message": "Found it."},
    "Stop": {"stop_hook_active": False, "last_assistant_message": "It is fixed."},
    "StopFailure": {"error": "overloaded", "last_assistant_message": "API Error: overloaded"},
    "PreCompact": {"trigger": "auto"},
    "PostCompact": {"trigger": "auto", "compact_summary": "The parser was fixed."},
    "SessionEnd": {"reason": "other"},
    "CwdChanged": {},
}
"""What agents write beside the common fields."""
CONTEXT = ("SessionStart", "SubagentStart", "UserPromptSubmit")


class HookHome:
    """The home of a person, whose agent works in `project`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.project = folder / "project"
        self.project.mkdir()
        self.settings(start_worker=False)

    def settings(self, **fields: Any) -> None:
        """Write `hook.json`."""
        path = self.folder / "config" / "reverie" / "hook.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": 1, "data_dir": str(self.data), **fields}))

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("REVERIE_", "XDG_"))
        }
        return kept | {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "LOGNAME": "ann",
        }

    def input(self, event: str, **fields: Any) -> dict[str, Any]:
        """What an agent writes for an event."""
        return {
            "session_id": "s1",
            "transcript_path": str(self.folder / "transcript.jsonl"),
            "cwd": str(self.project),
            "hook_event_name": event,
            **INPUTS.get(event, {}),
            **fields,
        }

    def start(
        self,
        event: str,
        given: object = None,
        *,
        agent: str = "claude-code",
        program: str = PROGRAM,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start a hook. `given` is its input: bytes as they are, anything else as JSON."""
        data = given if isinstance(given, bytes) else json.dumps(given or self.input(event)).encode()
        process = subprocess.Popen(
            [sys.executable, "-c", program, agent, event],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.project,
            env=self.environment | environment,
        )
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, event: str, given: object = None, **options: Any) -> bytes:
        """Run a hook to its end, which must be good whatever it was given; the answer is its output."""
        process = self.start(event, given, **options)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        return output

    def records(self) -> list[dict[str, Any]]:
        """What hooks have left in the spool, in order."""
        return [json.loads(path.read_bytes()) for path in sorted((self.data / "spool").glob("*.json"))]

    def log(self) -> str:
        path = self.data / "logs" / "hook.log"
        return path.read_text() if path.exists() else ""
