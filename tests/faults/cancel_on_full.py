"""A program that fills the small file system it is given, and then looks and cancels as a person would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults.full_file_system import fill
from reverie import Message, Scheduler
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings


def main(folder: Path) -> dict[str, object]:
    url = f"sqlite:///{folder / 'reverie.db'}"
    scheduler = Scheduler(settings=load_settings(data_dir=folder, queue={"url": url}))
    scheduler.handler("work")(lambda message: None)
    for number in (1, 2):
        scheduler.submit("later", user_id="ann", item_id=f"later-{number}")
    with scheduler:
        filler = folder / "filler"
        fill(filler)
        refused = 0
        for number in range(10_000):  # what the log file still has room for
            try:
                big = Message(user_id="ann", label="big", item_id=f"b{number}", content="x" * 50_000)
                scheduler.submit_messages([big])
            except BackendUnavailableError:
                refused = 1
                break
        cancelled = [reverie(url, "cancel", f"later-{number}", "--user", "ann", "--yes") for number in (1, 2)]
        status = reverie(url, "status", "later-1", "--user", "ann")[0]["status"]
        workers = max(row["workers"] for row in reverie(url, "queue"))
        filler.unlink()
        receipt = scheduler.submit("work", user_id="ann")
        after = scheduler.wait(receipt.item_id, user_id="ann").status
    return {
        "refused": refused,
        "cancelled": [key["item_id"] for answer in cancelled for key in answer["changed"]],
        "status": status,
        "workers": workers,
        "after": str(after),
    }


def reverie(url: str, *arguments: str) -> Any:
    """The answer of a command, in a process of its own."""
    command = [sys.executable, "-m", "reverie", *arguments, "--url", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
