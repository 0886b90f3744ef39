"""The hook: whatever it is given and whatever is broken, it ends well, and keeps what it can."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from reverie.capture.hook import CONTEXT_EVENTS, KEPT_EVENTS
from reverie.capture.hook_errors import TABLE, class_of, class_of_status
from reverie.capture.hook_log import losses, recent_problems
from reverie.capture.hook_record import HookRecord, captured
from reverie.capture.protocol import AnswerError, socket_path
from reverie.capture.spool import is_name
from reverie.failures import FailureKind
from reverie.message import MessageLimits, check_message
from support.hooks import CONTEXT, INPUTS, PROGRAM, HookHome
from support.small_disk import run_on_small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-ant-api03-a1B2c3D4e5F6g7H8i9J0k1L2m3N4"


@pytest.fixture
def home(tmp_path: Path) -> HookHome:
    return HookHome(tmp_path)


@contextmanager
def listening(home: HookHome, *answers: bytes | None) -> Iterator[list[dict]]:
    """A worker's socket that gives these answers to questions, None for silence; yields what it was asked."""
    path = Path(socket_path(str(home.data)))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    asked: list[dict] = []
    left = list(answers)
    with ExitStack() as opened:
        server = opened.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                connection = opened.enter_context(server.accept()[0])
                line = b""
                while not line.endswith(b"\n"):
                    part = connection.recv(65536)
                    if not part:
                        return  # the end of the test
                    line += part
                asked.append(json.loads(line))
                given = left.pop(0) if asked[-1]["ask"] == "context" else b""
                if given is not None:  # else it is open until the end
                    with suppress(BrokenPipeError, ConnectionResetError):
                        connection.sendall(given)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()
            path.unlink()


def answer(context: object = "Facts.", notice: object = None, version: int = 1) -> bytes:
    return json.dumps({"v": version, "context": context, "notice": notice}).encode() + b"\n"


# -- what is kept ----------------------------------------------------------------------------------------


def test_the_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="reverie-hook")
    assert command.value == "reverie.capture.hook:main"


def test_the_inputs_of_these_tests_are_those_of_all_events() -> None:
    assert set(INPUTS) == KEPT_EVENTS
    assert set(CONTEXT) == CONTEXT_EVENTS


@pytest.mark.parametrize("event", INPUTS)
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
def test_an_event_becomes_one_file(home: HookHome, event: str, agent: str) -> None:
    before = time.time_ns()
    assert home.run(event, agent=agent) == b""
    (record,) = home.records()
    (path,) = (home.data / "spool").iterdir()
    assert is_name(path.name)
    assert path.name.startswith(f"{record['at']:020d}-")
    assert path.stat().st_mode & 0o777 == 0o600
    assert before < record.pop("at") < time.time_ns()
    assert len(record.pop("item_id")) == 32
    assert record == {
        "hook": 1,
        "agent": agent,
        "event": event,
        "user_id": "ann",
        "project": {"name": "project", "keys": [f"folder:{home.project}"]},
        "cwd": str(home.project),
        "input": home.input(event),
    }


@pytest.mark.parametrize("event", ["UserPromptExpansion", "PreToolUse", "Nonsense", ""])
def test_other_events_leave_nothing(home: HookHome, event: str) -> None:
    assert home.run(event) == b""
    assert not home.data.exists()


def test_a_changed_folder_is_that_of_the_new_project(home: HookHome, tmp_path: Path) -> None:
    home.run("CwdChanged", home.input("CwdChanged", old_cwd="/", new_cwd=str(tmp_path)))
    assert home.records()[0]["cwd"] == str(tmp_path)


def test_a_missing_folder_is_that_of_the_process(home: HookHome) -> None:
    home.run("Stop", {"session_id": "s1"})
    assert home.records()[0]["cwd"] == str(home.project)
    home.run("Stop", {"session_id": "s1", "cwd": "no/such\0"})
    assert home.records()[1]["cwd"] == str(home.project)


def test_excluded_tools_and_projects_leave_nothing(home: HookHome, tmp_path: Path) -> None:
    home.settings(start_worker=False, exclude_tools=["Bash", "mcp__*"])
    home.run("PostToolUse")
    home.run("PostToolUse", home.input("PostToolUse", tool_name="mcp__mail__read"))
    home.run("PostToolBatch")
    assert not home.data.exists()
    calls = [{"tool_name": name, "tool_use_id": name} for name in ("Bash", "Read", "mcp__a", "Grep")]
    home.run("PostToolBatch", home.input("PostToolBatch", tool_calls=calls))
    home.run("PostToolUse", home.input("PostToolUse", tool_name="Read"))
    batch, single = home.records()
    assert [call["tool_name"] for call in batch["input"]["tool_calls"]] == ["Read", "Grep"]
    assert single["input"]["tool_name"] == "Read"
    for excluded in ([str(home.project)], [str(tmp_path)], ["/other", f"{tmp_path}/project/"]):
        home.settings(start_worker=False, exclude_projects=excluded)
        for event in INPUTS:
            assert home.run(event) == b""
    assert len(home.records()) == 2


def test_a_project_that_is_switched_off(home: HookHome) -> None:
    subprocess.run(["git", "init", "--quiet", home.project], check=True)
    remote = ["git", "-C", home.project, "remote", "add", "origin", "https://example.org/ann/app.git"]
    subprocess.run(remote, check=True)
    for off in (
        {"off_projects": ["remote:example.org/ann/app"]},
        {"exclude_projects": ["example.org/ann/*"]},
        {"exclude_projects": ["*"]},
        {"enabled": False},
    ):
        home.settings(start_worker=False, **off)
        home.run("Stop")
    home.settings(start_worker=False, exclude_projects=["example.org/bob/*"], off_projects=["folder:/x"])
    home.run("Stop")
    assert [record["project"]["name"] for record in home.records()] == ["app"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff", b'{"exclude_tools": "Bash"}', b'{"enabled": 1}', b'{"data_dir": "x"}'],
)
def test_nothing_is_captured_while_its_settings_cannot_be_read(home: HookHome, damage: bytes) -> None:
    (home.folder / "config" / "reverie" / "hook.json").write_bytes(damage)
    assert home.run("Stop", REVERIE_DATA_DIR=str(home.data)) == b""
    assert home.records() == []
    assert "hook.json" in home.log()
    told = json.loads(home.run("SessionStart", REVERIE_DATA_DIR=str(home.data)))
    assert list(told) == ["systemMessage"]
    assert "hook.json" in told["systemMessage"]


# -- privacy and size ------------------------------------------------------------------------------------


def test_nothing_private_reaches_the_disk(home: HookHome) -> None:
    given = home.input(
        "PostToolUse",
        tool_input={"command": f"curl -H 'x-api-key: {KEY}' <private>9f3a</private>", "password": "hunter2"},
        tool_response=f"export TOKEN={KEY}\n<private>9f3a",
        **{f"field {KEY}": 1},
    )
    home.run("PostToolUse", given)
    home.run("UserPromptSubmit", home.input("UserPromptSubmit", prompt="Use <private>9f3a</private> this"))
    found = b"".join(path.read_bytes() for path in home.data.rglob("*") if path.is_file())
    for secret in (KEY.encode(), b"hunter2", b"9f3a"):
        assert secret not in found
    assert home.records()[1]["input"]["prompt"] == "Use  this"


def test_a_secret_across_the_cut_leaves_no_half(home: HookHome) -> None:
    home.settings(start_worker=False, hook_max_bytes=5000)
    for length in range(3000, 5200, 150):
        home.run(
            "PostToolUse", home.input("PostToolUse", tool_response="x" * length + f" {KEY} " + "y" * 20_000)
        )
    for record in home.records():
        assert "a1B2" not in json.dumps(record)
        assert "tool_response" in record["cut"]


def test_the_response_is_cut_first_and_the_record_fits(home: HookHome) -> None:
    home.settings(start_worker=False, hook_max_bytes=20_000)
    given = home.input(
        "PostToolUse",
        tool_input={"file_path": "/a/b.py", "content": "é" * 3000},
        tool_response={"type": "text", "lines": ["ü" * 500] * 100},
    )
    home.run("PostToolUse", given)
    home.run("PostToolUse", given | {"tool_input": {"file_path": "/a/b.py", "content": "é" * 30_000}})
    home.run("PostToolUse", given | {"prompt_id": "p" * 50_000})
    home.run("PostToolUse", given | {"tool_response": [{}] * 90_000})
    for path in (home.data / "spool").glob("*.json"):
        assert path.stat().st_size <= 20_000
    first, second, third, fourth = home.records()
    assert first["cut"] == ["tool_response"]
    assert first["input"]["tool_input"] == given["tool_input"]
    assert first["input"]["tool_response"]["type"] == "text"
    assert second["cut"] == ["tool_input", "tool_response"]
    assert second["input"]["tool_input"]["file_path"] == "/a/b.py"
    assert set(third["cut"]) == {"prompt_id", "tool_response"}
    assert third["input"]["tool_input"] == given["tool_input"]
    assert fourth["cut"] == ["tool_response"]
    assert third["input"]["session_id"] == "s1"


@pytest.mark.parametrize("event", ["PostToolUse", "PostToolBatch"])
def test_what_is_nested_too_deeply_for_a_message_is_cut(home: HookHome, event: str) -> None:
    deep: dict[str, object] = {"is": "the end"}
    for _ in range(50):
        deep = {"is": [deep]}
    call = {"tool_name": "Deep", "tool_input": deep, "tool_use_id": "t1"}
    given = call if event == "PostToolUse" else {"tool_calls": [call]}
    home.run(event, home.input(event, **given))
    (record,) = home.records()
    (message,) = captured(msgspec.convert(record, HookRecord), "app").messages
    check_message(message, MessageLimits())
    assert record["cut"] == ["tool_input" if event == "PostToolUse" else "tool_calls"]


def test_fifty_megabytes(home: HookHome) -> None:
    begun = time.monotonic()
    home.run("PostToolUse", home.input("PostToolUse", tool_response="line\n" * 10_000_000))
    assert time.monotonic() - begun < 20
    (record,) = home.records()
    assert record["cut"] == ["tool_response"]
    assert len(record["input"]["tool_response"]) > 200_000
    (path,) = (home.data / "spool").iterdir()
    assert path.stat().st_size <= 262_144


# -- whatever it is given --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b" \n", b"{", b'{"session_id": "s1", "prom', b"[]", b"null", b'"text"', b"{} {}", b"[" * 200_000,
     b"\x00\x01", b'{"a": ' * 50_000, b'{"n": ' + b"9" * 5000 + b"}"],
    ids=lambda data: repr(data[:12]),
)  # fmt: skip
@pytest.mark.parametrize("event", ["PostToolUse", "SessionStart"])
def test_bad_input_gives_no_file(home: HookHome, event: str, data: bytes) -> None:
    assert home.run(event, data) == b""
    assert home.records() == []
    assert f" error client {event}: the hook could not do its work (the input " in home.log()


def test_strange_input_is_kept(home: HookHome) -> None:
    home.run(
        "Stop", b'\xef\xbb\xbf {"a": "\xff", "b": "\\ud800", "c": NaN, "d": 1e999, "e": "\x01", "f": 12} '
    )
    (record,) = home.records()
    assert record["input"] == {"a": "�", "b": "?", "c": None, "d": None, "e": "\x01", "f": 12}


@pytest.mark.parametrize("words", [[], ["claude-code"], ["vim", "Stop"], ["codex", "Stop", "x"], ["--help"]])
def test_a_bad_command_line(home: HookHome, words: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, input=b"{}", env=home.environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "the command line is not <agent> <event>" in home.log()


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams(home: HookHome, closed: tuple[int, ...]) -> None:
    """The output must not go into a file that has the number of a closed stream."""
    shell = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    with listening(home, answer(), answer()):
        done = subprocess.run(
            [
                "/bin/sh",
                "-c",
                f'exec "$0" "$@" {shell}',
                sys.executable,
                "-c",
                PROGRAM,
                "codex",
                "SessionStart",
            ],
            env=home.environment,
            input=json.dumps(home.input("SessionStart")).encode(),
            capture_output=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(home.records()) == (0 if 0 in closed else 1)


def test_a_pipe_that_is_never_closed(home: HookHome) -> None:
    program = f"import reverie.capture.hook_input as i; i.READ_S = 1; {PROGRAM}"
    reading, writing = os.pipe()
    command = [sys.executable, "-c", program, "codex", "Stop"]
    try:
        done = subprocess.run(
            command, stdin=reading, env=home.environment, capture_output=True, timeout=60, check=False
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "did not end within 1 s" in home.log()


@pytest.mark.parametrize("broken", ["project_of", "clean_input", "fit"])
def test_our_own_bugs(home: HookHome, broken: str) -> None:
    module = {"project_of": "project", "clean_input": "hook_input", "fit": "hook_input"}[broken]
    program = f"""
import reverie.capture.{module} as module
def broken(*_): raise KeyError("{KEY}")
module.{broken} = broken
{PROGRAM}
"""
    assert home.run("Stop", program=program) == b""
    assert home.records() == []
    assert " error unknown Stop: " in home.log()
    assert KEY not in home.log()
    assert losses(str(home.data)) == (1 if broken == "fit" else 0)


def test_interrupts_end_it_well(home: HookHome) -> None:
    for error in ("KeyboardInterrupt", "SystemExit(2)", "MemoryError", "RecursionError"):
        program = f"""
import reverie.capture.hook_input as module
def broken(*_): raise {error}
module.read_input = broken
{PROGRAM}
"""
        assert home.run("Stop", program=program) == b""


# -- whatever is broken ----------------------------------------------------------------------------------

ON_DISK = """
import json, os, subprocess, sys
folder, how, program, given = sys.argv[1:]
data = folder + "/data"
os.makedirs(data + "/spool", mode=0o700)
open(data + "/hook-losses", "w").write("xx")  # its page has room for more
if how == "full":
    ballast = os.open(data + "/ballast", os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(ballast, b"x" * 4096)
    except OSError:
        pass
else:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
command = [sys.executable, "-c", program, "codex", "Stop"]
done = subprocess.run(command, input=given.encode(), capture_output=True)
left, losses = os.listdir(data + "/spool"), os.path.getsize(data + "/hook-losses")
print(json.dumps([done.returncode, done.stdout.decode(), done.stderr.decode(), left, losses]))
"""


@pytest.mark.parametrize(("how", "losses"), [("full", 3), ("read-only", 2)])
def test_a_disk_that_takes_nothing(home: HookHome, tmp_path: Path, how: str, losses: int) -> None:
    """A loss is counted where that is possible."""
    disk = tmp_path / "disk"
    disk.mkdir()
    home.settings(start_worker=True, python="/bin/false", data_dir=str(disk / "data"))
    arguments = [str(disk), how, PROGRAM, json.dumps(home.input("Stop"))]
    shown = run_on_small_disk(
        "256k", disk, sys.executable, "-c", ON_DISK, *arguments, environment=home.environment
    )
    assert json.loads(shown) == [0, "", "", [], losses]


def test_a_home_that_cannot_be_written(home: HookHome) -> None:
    home.folder.joinpath("data").write_text("a file is in the way")
    for event in INPUTS:
        assert home.run(event) == b""


def test_the_log_stays_small(home: HookHome) -> None:
    log = home.data / "logs" / "hook.log"
    log.parent.mkdir(parents=True)
    log.write_text("x" * 99 + "\n")
    os.truncate(log, 512 * 1024)
    for _ in range(2):
        home.run("Stop", b"")
    assert log.stat().st_size < 1000
    assert log.with_name("hook.log.1").stat().st_size == 512 * 1024
    assert len(home.log().splitlines()) == 2


def test_problems_are_told_for_a_day(home: HookHome) -> None:
    for _ in range(2):
        home.run("Stop", b"")
    home.run("SessionStart")  # no worker: that is no problem
    (told,) = recent_problems(str(home.data))
    assert told == "a hook failed: Stop: the hook could not do its work (the input is empty) (2 times)"
    log = home.data / "logs" / "hook.log"
    log.write_text(re.sub("^20", "19", log.read_text(), flags=re.MULTILINE))
    assert recent_problems(str(home.data)) == []
    assert recent_problems(str(home.folder)) == []


# -- context ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", CONTEXT)
def test_context_comes_from_the_worker(home: HookHome, event: str) -> None:
    text = 'Facts: "quoted", 你好, 🙂, \ud800.'
    with listening(home, answer(text, "Reverie: the key was refused")) as asked:
        output = home.run(event, home.input(event, prompt=f"Fix {KEY} it " + "x" * 9000, source="startup"))
    kept = text.encode(errors="replace").decode()
    assert output.isascii()
    assert json.loads(output) == {
        "hookSpecificOutput": {"hookEventName": event, "additionalContext": kept},
        "systemMessage": "Reverie: the key was refused",
    }
    question, look = asked
    assert look == {"v": 1, "ask": "look"}
    assert len(question["prompt"]) == 8000
    assert KEY not in question["prompt"]
    assert question | {"prompt": ""} == {
        "v": 1,
        "ask": "context",
        "event": event,
        "source": "startup",
        "user_id": "ann",
        "session_id": "s1",
        "agent": "claude-code",
        "project": {"name": "project", "keys": [f"folder:{home.project}"]},
        "prompt": "",
    }
    assert home.records()[0]["context"] == kept


@pytest.mark.parametrize("event", sorted(KEPT_EVENTS - CONTEXT_EVENTS))
def test_other_events_print_nothing(home: HookHome, event: str) -> None:
    with listening(home) as asked:
        assert home.run(event) == b""
    assert asked == [{"v": 1, "ask": "look"}]


@pytest.mark.parametrize(
    "bad",
    [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{}\n", answer(version=2), answer(context=7),
     answer(notice=["x"]), b"[1]\n", b'{"v": 1, "context": "x', b"x" * 2_000_000],
    ids=["silence", "closed", "http", "empty", "version", "context", "notice", "list", "cut", "endless"],
)  # fmt: skip
@pytest.mark.parametrize("event", CONTEXT)
def test_without_a_good_answer_the_block_is_used(home: HookHome, event: str, bad: bytes | None) -> None:
    folder = home.data / "context"
    folder.mkdir(mode=0o700, parents=True)
    key = f"folder:{home.project}".encode()
    (folder / f"{blake2b(key, digest_size=8).hexdigest()}.txt").write_text("The block." + "é" * 20_000)
    begun = time.monotonic()
    with listening(home, bad):
        output = home.run(event)
    assert time.monotonic() - begun < 5
    if event == "UserPromptSubmit":
        assert output == b""
        assert "context" not in home.records()[0]
    else:
        context = json.loads(output)["hookSpecificOutput"]["additionalContext"]
        assert context == "The block." + "é" * 8990
        assert home.records()[0]["context"] == context
    level = {None: "warning timeout", b"": "warning transport"}.get(bad, "error server")
    if not (bad and len(bad) > 1_000_000):
        assert f"{level} {event}: no context from a worker" in home.log()


def test_a_session_that_goes_on_is_told_the_same(home: HookHome) -> None:
    folder = home.data / "context"
    folder.mkdir(mode=0o700, parents=True)
    for name, text in ((f"folder:{home.project}", "now"), ("s1", "then")):
        prefix = "session-" if name == "s1" else ""
        path = folder / f"{prefix}{blake2b(name.encode(), digest_size=8).hexdigest()}.txt"
        path.write_text(text)
    for source, told in (("startup", "now"), ("resume", "then"), ("compact", "then"), ("clear", "now")):
        output = home.run("SessionStart", home.input("SessionStart", source=source))
        assert json.loads(output)["hookSpecificOutput"]["additionalContext"] == told


def test_problems_are_told_without_a_worker_too(home: HookHome) -> None:
    assert home.run("SessionStart") == b""
    home.run("Stop", b"no json")
    told = json.loads(home.run("SessionStart"))
    assert "the input is no JSON" in told["systemMessage"]
    assert "context" not in home.records()[0]
    assert home.run("UserPromptSubmit") == b""


def test_an_empty_answer_prints_nothing_and_a_resumed_session_gets_it_again(home: HookHome) -> None:
    with listening(home, answer("")):
        assert home.run("SessionStart") == b""
    assert home.records()[0]["context"] == ""
    folder = home.data / "context"
    folder.mkdir(mode=0o700, parents=True)
    for name, text in ((f"folder:{home.project}", "now"), ("s1", "")):
        prefix = "session-" if name == "s1" else ""
        path = folder / f"{prefix}{blake2b(name.encode(), digest_size=8).hexdigest()}.txt"
        path.write_text(text)
    assert home.run("SessionStart", home.input("SessionStart", source="resume")) == b""
    assert home.run("SessionStart") != b""


def test_the_block_of_a_folder_is_not_told_to_another_repository(home: HookHome) -> None:
    (home.project / ".git").mkdir()
    (home.project / ".git/HEAD").write_text("ref: refs/heads/main")
    (home.project / ".git/config").write_text('[remote "origin"]\nurl = https://host/two\n')
    folder = home.data / "context"
    folder.mkdir(mode=0o700, parents=True)
    for name in (f"folder:{home.project}", f"common:{home.project}/.git"):
        (folder / f"{blake2b(name.encode(), digest_size=8).hexdigest()}.txt").write_text("of another one")
    assert home.run("SessionStart") == b""
    (folder / f"{blake2b(b'remote:host/two', digest_size=8).hexdigest()}.txt").write_text("its own")
    assert b"its own" in home.run("SessionStart")


def test_a_long_data_folder_has_a_socket_elsewhere(tmp_path: Path) -> None:
    short, long = socket_path("/data"), socket_path(f"/{'x' * 100}")
    assert short == "/data/worker.sock"
    assert len(long) < 100
    assert long.startswith("/tmp/reverie-")


# -- the table of errors ---------------------------------------------------------------------------------


def test_the_table_of_errors() -> None:
    assert {name: (row.log_level, row.failure) for name, row in TABLE.items()} == {
        "transport": ("warning", "transient"),
        "client": ("error", "invalid"),
        "server": ("error", "transient"),
        "timeout": ("warning", "transient"),
        "unknown": ("error", "bug"),
    }
    assert all(FailureKind(row.failure) and row.agent_sees.startswith("nothing") for row in TABLE.values())
    assert [name for name, row in TABLE.items() if row.is_noticed] == ["client", "unknown"]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ConnectionRefusedError(), "transport"),
        (FileNotFoundError(), "transport"),
        (socket.gaierror(), "transport"),
        (TimeoutError(), "timeout"),
        (AnswerError("x"), "server"),
        (OSError(), "unknown"),
        (KeyError("x"), "unknown"),
    ],
)
def test_errors_have_a_class(error: BaseException, name: str) -> None:
    assert class_of(error) is TABLE[name]


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "client"), (401, "client"), (404, "client"), (408, "timeout"), (429, "server"), (500, "server"),
     (503, "server"), (302, "unknown")],
)  # fmt: skip
def test_statuses_have_a_class(status: int, name: str) -> None:
    error = RuntimeError()
    error.status_code = status  # type: ignore[attr-defined]
    assert class_of_status(status) is class_of(error) is TABLE[name]


# -- what it costs ---------------------------------------------------------------------------------------

FORBIDDEN = {
    "asyncio", "collections", "contextlib", "dataclasses", "datetime", "enum", "functools", "getpass",
    "hashlib", "importlib", "inspect", "json", "logging", "operator", "pathlib", "random", "re", "select",
    "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "types", "typing",
    "uuid", "warnings", "reverie.errors", "reverie.capture.hook_log", "reverie.capture.redaction",
    "reverie.capture.worker_start",
}  # fmt: skip


def test_a_plain_event_imports_little(home: HookHome) -> None:
    program = """
import sys
before = set(sys.modules)
import reverie.capture.hook as hook
hook._run(sys.argv[1:])
print(*sorted(set(sys.modules) - before), sep="\\n")
"""
    with listening(home, answer(), answer()):
        for event in ("PostToolUse", "SessionStart"):
            shown = home.run(event, program=program).decode().splitlines()
            names = set(shown[-40:])
            assert "reverie.capture.spool" in names
            assert not names & FORBIDDEN
            foreign = {name for name in names if "." not in name and name.isidentifier()} - {"reverie"}
            assert foreign <= sys.stdlib_module_names
    assert len(home.records()) == 2
