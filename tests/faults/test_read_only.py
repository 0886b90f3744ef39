"""Files and folders that may not be written: which one it is, and what to do.

Root may write everywhere, so a child process becomes someone else where the tests run as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reverie.errors import BackendUnavailableError
from reverie.storage.sqlite import Database

NOBODY = 65534

IMPORTS = """
import os, sys
from pathlib import Path
from reverie.errors import BackendUnavailableError
from reverie.storage.sqlite import Database
database, path = Database(sys.argv[1]), Path(sys.argv[1])
"""
CHILD = f"""{IMPORTS}
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})

def insert(n):
    return database.submit(lambda c: c.execute("INSERT INTO t VALUES (?)", (n,))).result()

def numbers():
    return database.submit(lambda c: [n for (n,) in c.execute("SELECT n FROM t ORDER BY n")]).result()

def refused(call, *arguments):
    try:
        call(*arguments)
    except BackendUnavailableError as error:
        return str(error)
"""


@pytest.fixture
def folder():
    """A folder that anybody may reach; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="reverie-") as name:
        folder = Path(name) / "data"
        Path(name).chmod(0o755)
        folder.mkdir()
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


@pytest.fixture
def file(folder: Path) -> Path:
    """A healthy file in it, which anybody may write."""
    path = folder / "r.db"
    database = Database(str(path))
    database.open()
    database.submit(lambda c: c.execute("CREATE TABLE t (n)")).result()
    database.close()
    path.chmod(0o666)
    return path


def child(path: Path, program: str) -> str:
    """Run a program as somebody whom permissions bind; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD + program, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_folder_that_may_not_be_written(folder: Path) -> None:
    folder.chmod(0o555)
    said = child(folder / "r.db", "print(refused(database.open))")
    assert said.startswith(f"{folder / 'r.db'}: the folder {folder} is read-only for user ")
    assert "let it write there (chmod, chown, mount), or use another folder" in said


def test_a_folder_that_may_not_be_created(folder: Path) -> None:
    folder.chmod(0o555)
    said = child(folder / "deeper" / "r.db", "print(refused(database.open))")
    assert f"the folder {folder / 'deeper'} does not exist: create it, or use another" in said


def test_a_file_that_may_not_be_written(file: Path) -> None:
    file.chmod(0o444)
    said = child(file, "print(refused(database.open))")
    assert said.startswith(f"{file}: the file is read-only for user ")
    assert "let it write there (chmod, chown), or use another file" in said


def test_a_file_that_may_be_written_in_a_folder_that_may_not(file: Path) -> None:
    file.parent.chmod(0o555)
    said = child(file, "print(refused(database.open))")
    assert f"the folder {file.parent} is read-only for user " in said
    assert "SQLite keeps files beside the database" in said


def test_a_file_that_becomes_read_only_while_it_is_used(folder: Path) -> None:
    """Whoever has it open may go on; who opens it later is told; nothing is lost."""
    said = child(
        folder / "r.db",
        """
database.open()
database.submit(lambda c: c.execute("CREATE TABLE t (n)")).result()
insert(1)
path.chmod(0o444)
insert(2)
database.close()
print(refused(database.open))
path.chmod(0o600)
database.open()
insert(3)
print(numbers())
database.close()
""",
    )
    refusal, numbers = said.splitlines()
    assert "the file is read-only for user " in refusal
    assert numbers == "[1, 2, 3]"


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="is a folder: name a file in it"):
        Database(str(tmp_path)).open()


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendUnavailableError, match="/file is a file, not a folder: use another path"):
        Database(str(tmp_path / "file" / "r.db")).open()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare"
)
def test_a_mount_that_may_not_be_written(file: Path) -> None:
    program = IMPORTS + "\ntry: database.open()\nexcept Exception as e: print(e)"
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3" "$4"'
    arguments = [str(file.parent), sys.executable, program, str(file)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "mount" in done.stderr:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    assert "the file is read-only for user 0" in done.stdout
