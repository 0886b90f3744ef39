"""When the writer of an SQLite file begins its next transaction, and what shares it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reverie.storage import patience, writer
from reverie.storage.patience import CONTENDED_S, LONGEST_REST_S, TELL_AGAIN_S, WAY, YIELD_S, Patience
from reverie.storage.sqlite import Database

if TYPE_CHECKING:
    import apsw

LONG_S = 3600.0
"""Longer than any test waits."""


class Commits:
    """A database that counts its commits."""

    def __init__(self, path: str) -> None:
        self.count = 0
        self.database = Database(path)
        self.database.open()
        self.database.submit(self._watch).result()
        self.count = 0

    def _watch(self, connection: apsw.Connection) -> None:
        connection.execute("CREATE TABLE t (n INTEGER)")
        connection.set_commit_hook(self._committed)

    def _committed(self) -> bool:
        self.count += 1
        return False


def insert(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (1)")


@pytest.fixture
def commits(tmp_path):
    commits = Commits(str(tmp_path / "r.db"))
    yield commits
    commits.database.close()


# -- patient jobs ------------------------------------------------------------------------------------


def test_patient_jobs_share_the_commit_of_the_next_one(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENT_S", LONG_S)
    patient = [commits.database.submit(insert, patient=True) for _ in range(3)]
    commits.database.submit(insert).result(30)
    assert [future.result(30) for future in patient] == [None] * 3
    assert commits.count == 1


def test_patient_jobs_do_not_wait_for_ever(commits: Commits) -> None:
    commits.database.submit(insert, patient=True).result(30)
    assert commits.count == 1


def test_the_end_does_not_wait_for_patient_jobs(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENT_S", LONG_S)
    patient = commits.database.submit(insert, patient=True)
    commits.database.close()
    assert patient.result(30) is None


# -- who goes first ----------------------------------------------------------------------------------


class Resting(Patience):
    """Lets other work than intake rest as if another process wanted the lock all the time."""

    def rest_s(self, *, intake: bool) -> float:
        return 0.0 if intake else LONG_S


@pytest.fixture
def contended(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> Commits:
    monkeypatch.setattr(Patience, "rest_s", Resting.rest_s)
    return commits


def test_intake_does_not_rest_and_takes_along_what_waits(contended: Commits) -> None:
    waiting = [contended.database.submit(insert, patient=patient) for patient in (False, True)]
    contended.database.submit(insert, intake=True).result(30)
    assert [future.result(30) for future in waiting] == [None] * 2
    assert contended.count == 1


def test_a_caller_that_writes_by_itself_has_jobs_written_that_came_meanwhile(contended: Commits) -> None:
    waiting = []

    def job(connection: apsw.Connection) -> None:
        insert(connection)
        waiting.append(contended.database.submit(insert))

    contended.database.run_here(job)
    contended.database.submit(insert, intake=True).result(30)
    assert waiting[0].result(30) is None


def test_the_end_does_not_rest(contended: Commits) -> None:
    waiting = contended.database.submit(insert)
    contended.database.close()
    assert waiting.result(30) is None


class Clock:
    """The time that `Patience` reads."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    return clock


def rests(waits: Patience) -> tuple[float, float]:
    return round(waits.rest_s(intake=True), 6), round(waits.rest_s(intake=False), 6)


def test_a_process_alone_never_rests(clock: Clock) -> None:
    waits = Patience(10)
    waits.note_end(1.0, intake=False)
    assert rests(waits) == (0, 0)


def test_a_long_transaction_leaves_the_lock_free_for_a_moment(clock: Clock) -> None:
    waits = Patience(10)
    waits.wait(0)
    waits.note_end(0.001, intake=False)
    assert rests(waits) == (0, 0)
    waits.note_end(0.010, intake=False)
    assert rests(waits) == (YIELD_S, YIELD_S)
    clock.now += YIELD_S
    assert rests(waits) == (0, 0)


def test_the_background_rests_long_while_intake_of_another_process_waits(clock: Clock, tmp_path) -> None:
    background, intake = (Patience(10, str(tmp_path / "sign")) for _ in range(2))
    background.wait(0)
    background.note_end(0.010, intake=False)
    assert rests(background) == (YIELD_S, YIELD_S)  # nobody has told that intake waits
    intake.wait(0)
    intake.note_end(0.001, intake=True)
    background.note_end(0.010, intake=False)
    assert rests(background) == (YIELD_S, WAY * 0.010)
    background.note_end(5.0, intake=False)
    assert rests(background) == (YIELD_S, LONGEST_REST_S)
    background.note_end(0.010, intake=True)
    assert rests(background) == (YIELD_S, YIELD_S)


def test_intake_that_waits_no_longer_is_forgotten(clock: Clock, tmp_path) -> None:
    background, intake = (Patience(10, str(tmp_path / "sign")) for _ in range(2))
    intake.wait(0)
    intake.note_end(0.001, intake=True)
    clock.now += CONTENDED_S
    intake.note_end(0.001, intake=True)  # it got the lock at once
    background.wait(0)
    background.note_end(0.010, intake=False)
    assert rests(background) == (YIELD_S, YIELD_S)


def test_intake_that_waits_on_and_on_is_heard_on_and_on(clock: Clock, tmp_path) -> None:
    background, intake = (Patience(10, str(tmp_path / "sign")) for _ in range(2))
    for _ in range(10):
        intake.wait(0)
        intake.note_end(0.001, intake=True)
        clock.now += TELL_AGAIN_S
    background.wait(0)
    background.note_end(0.010, intake=False)
    assert rests(background) == (YIELD_S, WAY * 0.010)


def test_a_sign_that_cannot_be_written_or_read_disturbs_nobody(clock: Clock, tmp_path) -> None:
    waits = Patience(10, str(tmp_path / "missing" / "sign"))
    waits.wait(0)
    waits.note_end(0.010, intake=True)
    waits.note_end(0.010, intake=False)
    assert rests(waits) == (YIELD_S, YIELD_S)
    waits.close()


def test_the_sign_is_removed_with_the_database(tmp_path) -> None:
    database = Database(str(tmp_path / "r.db"))
    database.open()
    sign = tmp_path / "r.db-intake"
    sign.touch()
    database.close()
    assert not sign.exists()


def test_nobody_rests_when_the_others_have_gone(clock: Clock) -> None:
    waits = Patience(10)
    waits.wait(0)
    clock.now += CONTENDED_S
    waits.note_end(0.010, intake=False)
    assert rests(waits) == (0, 0)


def test_a_wait_for_the_lock_ends_with_the_time_limit(clock: Clock) -> None:
    waits, began, tries = Patience(10), clock.now, 0
    while waits.wait(tries):
        tries += 1
    assert clock.now - began == pytest.approx(10, abs=0.01)
