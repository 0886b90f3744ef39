"""A program that fills the small file system it is given, and frees it again, under a running worker."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import apsw

from reverie import Done, Message, Remember, Scheduler
from reverie.base import service
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings

service.RESTART_DELAYS_S = (0.05, 0.05, 0.05)
service.BREAKER_PAUSE_S = 0.05
LEAST = 200
"""So many messages must be accepted before the disk is full."""


def main(folder: Path) -> dict[str, object]:
    settings = load_settings(data_dir=folder, queue={"url": f"sqlite:///{folder / 'reverie.db'}"})
    scheduler = Scheduler(settings=settings)

    @scheduler.handler("note")
    def note(message: Message) -> Done:
        return Done(effects=[Remember(memory_id=message.item_id, text=message.content)])

    accepted: list[str] = []

    def submit(number: int) -> None:
        content = f"{number} " + "x" * 2000
        scheduler.submit("note", user_id=f"u{number % 5}", item_id=f"n{number}", content=content)
        accepted.append(f"n{number}")

    numbers = itertools.count()
    for _ in range(LEAST):
        submit(next(numbers))
    with scheduler:
        filler = folder / "filler"
        fill(filler)
        refusal = ""
        try:
            while True:  # what the log file still has room for
                submit(next(numbers))
        except BackendUnavailableError as error:
            refusal = str(error)
        for _ in range(10):
            try:
                submit(next(numbers))
            except BackendUnavailableError as error:
                refusal = str(error)
        filler.unlink()
        for _ in range(LEAST):
            submit(next(numbers))
        for item in accepted:
            user = f"u{int(item[1:]) % 5}"
            assert scheduler.wait(item, user_id=user, timeout=60).status == "completed"
    file = apsw.Connection(str(folder / "reverie.db"))
    return {
        "refusal": refusal.replace(str(folder), "…"),
        "accepted": len(accepted),
        "remembered": file.execute("SELECT count(*) FROM memory_items").get,
        "statuses": dict(file.execute("SELECT status, count(*) FROM pending_messages GROUP BY 1")),
        "running": file.execute("SELECT sum(running) FROM lanes").get,
        "losses": file.execute("SELECT sum(losses) FROM pending_messages").get,
        "integrity": file.execute("PRAGMA integrity_check").get,
    }


def fill(path: Path) -> None:
    """Write until nothing fits any more."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    size = 65536
    while size:
        try:
            os.write(descriptor, b"\0" * size)
        except OSError:
            size //= 2
    os.close(descriptor)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
