"""A program for the environment of MemOS's client: it calls the client as standard input says.

A line is `{"method": name, "arguments": {…}}`. For each of them a line is printed: `{"answer": …}`, or
`{"error": words, "status": HTTP status}`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType


def client_class() -> type:
    """The published client. The package around it imports far more than the client needs: that stays out."""
    package = ModuleType("memos")
    package.__path__ = list(importlib.util.find_spec("memos").submodule_search_locations)
    sys.modules["memos"] = package
    models = ModuleType("transformers")
    models.DynamicCache = type("DynamicCache", (), {})
    sys.modules["transformers"] = models
    from memos.api.client import MemOSClient  # noqa: PLC0415  after what it would import is kept out

    return MemOSClient


def plain(answer: object) -> object:
    """An answer of the client as JSON has it."""
    if hasattr(answer, "model_dump"):
        return answer.model_dump()
    return answer if answer is None or isinstance(answer, dict) else list(answer)


def main() -> None:
    """Answer each line until there are no more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # the package logs to standard output
    base_url, api_key = sys.argv[1:]
    client = client_class()(api_key=api_key, base_url=base_url)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            told = {"answer": plain(getattr(client, call["method"])(**call["arguments"]))}
        except Exception as error:  # noqa: BLE001  the test judges it
            status = getattr(getattr(error, "response", None), "status_code", None)
            told = {"error": f"{type(error).__name__}: {error}", "status": status}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
