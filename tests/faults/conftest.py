"""A scheduler on an SQLite file, and what a test needs to break that file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.settings import load_settings
from reverie.storage.sqlite import Database

from .disk import Disk
from .two_servers import follow, quick_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.servers import Valkey


@dataclass
class Bench:
    """A scheduler whose handler remembers each message, and what can be said about its file."""

    path: Path
    scheduler: Scheduler
    ran: Counter[str] = field(default_factory=Counter)

    def submit(self, *contents: object) -> None:
        messages = [
            Message(label="note", user_id=f"u{int(content) % 3}", item_id=f"n{content}", content=str(content))
            for content in contents
        ]
        assert [answer.status for answer in self.scheduler.submit_messages(messages)] == ["accepted"] * len(
            contents
        )

    def wait(self, *contents: object) -> None:
        for content in contents:
            user = f"u{int(content) % 3}"
            assert self.scheduler.wait(f"n{content}", user_id=user, timeout=60).status == "completed"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What another program sees in the file."""
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(10_000)  # readers that were just closed may still be writing the log back
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def assert_each_once(self, *contents: object) -> None:
        """All of these ended, each had its effect once, and no counter is off."""
        expected = sorted(f"note-{content}" for content in contents)
        assert sorted(name for (name,) in self.rows("SELECT id FROM memory_items")) == expected
        assert self.rows("SELECT status, count(*) FROM pending_messages GROUP BY 1") == [
            ("completed", len(contents))
        ]
        assert self.rows("SELECT sum(running), sum(turn IS NOT NULL) FROM lanes") == [(0, 0)]
        assert self.rows("SELECT sum(losses), sum(claim_id IS NOT NULL) FROM pending_messages") == [(0, 0)]
        assert self.rows("PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.works()
    disk.unregister()


@pytest.fixture
def primary(unused_tcp_port_factory: Callable[[], int]) -> Iterator[Valkey]:
    with quick_server(unused_tcp_port_factory()) as server:
        yield server


@pytest.fixture
def replica(unused_tcp_port_factory: Callable[[], int], primary: Valkey) -> Iterator[Valkey]:
    with quick_server(unused_tcp_port_factory()) as server:
        follow(server, primary)
        yield server


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that fail pause only briefly."""
    monkeypatch.setattr("reverie.base.service.RESTART_DELAYS_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr("reverie.base.service.BREAKER_PAUSE_S", 0.01)


@pytest.fixture
def new_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief_pauses: None
) -> Iterator[Callable[..., Bench]]:
    """Builds a bench; the arguments are those of `Database`."""
    benches: list[Bench] = []

    def build(path: Path = tmp_path / "reverie.db", **options: Any) -> Bench:
        class Configured(Database):
            def __init__(self, path: str, durability: Any, **given: Any) -> None:
                super().__init__(path, durability, **{**given, **options})

        monkeypatch.setattr("reverie.assembly.Database", Configured)
        settings = load_settings(data_dir=path.parent, queue={"url": f"sqlite:///{path}"})
        bench = Bench(path, Scheduler(settings=settings))

        @bench.scheduler.handler("note")
        def note(message: Message) -> Done:
            bench.ran[message.item_id] += 1
            return Done(effects=[Remember(memory_id=f"note-{message.content}", text=message.content)])

        benches.append(bench)
        return bench

    yield build
    for bench in benches:
        bench.scheduler.close()


@pytest.fixture
def bench(new_bench: Callable[..., Bench], disk: Disk) -> Bench:
    """One on a disk that can be broken."""
    return new_bench(vfs=disk.name, busy_timeout_s=0.2)


@pytest.fixture
def database(tmp_path: Path, disk: Disk) -> Iterator[Database]:
    database = Database(str(tmp_path / "r.db"), vfs=disk.name, busy_timeout_s=0.2)
    database.open()
    database.submit(lambda c: c.execute("CREATE TABLE t (n INTEGER UNIQUE, filler TEXT)")).result()
    yield database
    disk.works()
    database.close()
