"""Checks of this machine: one small function for each thing that can be wrong.

Each takes the `Patient` and returns its findings; `CHECKS` is their order. The rules that every process can
check are in `reverie.observe.rules`; the check `queue` reports their alerts here.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import shutil
import socket
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import apsw
import msgspec

from reverie.capture.spool import NAME
from reverie.cli.daemon.state import Daemon, whole_url
from reverie.errors import (
    BackendUnavailableError,
    CorruptDatabaseError,
    MissingExtraError,
    NetworkFileSystemError,
    ReverieError,
    SchemaTooNewError,
    redacted,
)
from reverie.observe.rules import OF_ONE_PROCESS, Alert
from reverie.storage.peers import peers_folder
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.errors import AppNotFoundError
    from reverie.observe.health import Health
    from reverie.settings import Settings

__all__ = ["CHECKS", "Finding", "Level", "Patient", "app_findings", "settings_findings"]

Level = Literal["ok", "note", "warning", "error"]

LITTLE_SPACE_BYTES = 256 * 1024 * 1024
"""Less than this on the disk of the data folder is a warning."""
NO_SPACE_BYTES = 16 * 1024 * 1024
"""Less than this is an error, because SQLite needs some space to write its log back."""
PROBE_BYTES = 64 * 1024
PATIENCE_S = 2.0
"""The longest wait for a server's answer."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was checked, and its condition."""

    check: str
    level: Level
    what: str
    remedy: str = ""
    """What to do; commands are in backticks."""


class Patient(NamedTuple):
    """The queue and the data folder that are checked."""

    settings: Settings
    """The settings of the queue that is checked."""
    folder: Path
    """The data folder of this command line, to which the worker in the background belongs."""

    @property
    def url(self) -> str:
        """The queue's URL."""
        return self.settings.queue_url

    @property
    def file(self) -> Path | None:
        """The queue's file, if it has one."""
        path = self.url.removeprefix("sqlite:///")
        return Path(path).expanduser().resolve() if path != self.url else None


def settings_findings(error: ReverieError) -> list[Finding]:
    """Findings about settings that cannot be read."""
    remedy = "correct it there, and see whether all is right then: `reverie config check`"
    return [_error("settings", line, remedy) for line in str(error).splitlines()]


def app_findings(error: AppNotFoundError) -> list[Finding]:
    """Findings about an app that the settings name and that cannot be loaded."""
    remedy = "correct the setting app (REVERIE_APP), or run this in the folder of the app"
    return [_error("app", str(error), remedy)]


def versions(patient: Patient) -> list[Finding]:
    """Report the versions in use and the queue's URL."""
    what = (
        f"Reverie {__version__}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, "
        f"queue {redacted(patient.url)}"
    )
    return [_ok("versions", what)]


def data_folder(patient: Patient) -> list[Finding]:
    """Check that the data folder can be written."""
    folder = patient.folder
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return [_note("data_folder", f"{folder} does not exist yet; it is made with the first message")]
        what = f"the data folder {folder} does not exist, and cannot be made in {above}"
        return [_error("data_folder", what, _other_folder())]
    if not folder.is_dir():
        return [_error("data_folder", f"the data folder {folder} is a file", _other_folder())]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _unwritable(folder, error)
    return [_ok("data_folder", f"{folder} can be written")]


def _unwritable(folder: Path, error: OSError) -> list[Finding]:
    what = f"nothing can be written in the data folder {folder} by user {os.geteuid()}: {error.strerror}"
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        command = f"chmod u+rwx {shlex.quote(str(folder))}"
        remedy = f"let it write there: `{command}` (or chown); or {_other_folder()}"
        return [_error("data_folder", what, remedy)]
    if shutil.disk_usage(folder).free < NO_SPACE_BYTES:
        return []  # the check `disk` reports it
    return [_error("data_folder", what, f"free space or raise the quota there; or {_other_folder()}")]


def disk(patient: Patient) -> list[Finding]:
    """Check how much space is left where data is written."""
    folders = {patient.folder, *([patient.file.parent] if patient.file else [])}
    existing = {next(path for path in (folder, *folder.parents) if path.exists()) for folder in folders}
    devices = {path.stat().st_dev: path for path in sorted(existing)}
    return [_space(path) for path in devices.values()]


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    what = f"{free // 1024**2} MB are free on the disk of {folder}"
    remedy = (
        f"free space there; see what takes it: `du -xh -d 1 {shlex.quote(str(folder))}`. Nothing that was "
        "accepted is lost, and work goes on by itself"
    )
    if free < NO_SPACE_BYTES:
        return _error("disk", f"the disk is full: {what}", remedy)
    if free < LITTLE_SPACE_BYTES:
        return _warning("disk", f"little space is left: {what}", remedy)
    return _ok("disk", what)


def queue(patient: Patient) -> list[Finding]:
    """Check that the queue can be opened, and report its alerts."""
    from reverie.face.scheduler import Scheduler

    file = patient.file
    if file is not None and not file.exists():
        note = _note("queue", f"there is no queue yet: {file} is made with the first message")
        return [note, *_no_worker(patient, 0)]
    if patient.url.startswith("memory:"):
        return [_note("queue", "memory:// lives in one process: nobody else can look at it")]
    of_server = _redis(patient)
    try:
        with Scheduler(settings=patient.settings).used() as scheduler:
            health, alerts = scheduler.observe.health(), scheduler.observe.alerts()
    except ReverieError as error:
        told = any(finding.level == "error" for finding in of_server)
        return of_server if told else [*of_server, _unusable(patient, error)]
    findings = [
        Finding(check=alert.rule, level=alert.level, what=alert.message, remedy=alert.remedy)
        for alert in alerts
        if health.workers or alert.rule not in {"unhandled", "stalled"}  # `_no_worker` reports these
    ]
    return [
        _ok("queue", _about(health)),
        *of_server,
        *findings,
        *([] if health.workers else _no_worker(patient, health.pending)),
    ]


def _redis(patient: Patient) -> list[Finding]:
    """Report what `reverie redis check` says about the queue's server, if that is a Redis that answers."""
    import asyncio

    if not patient.url.startswith(("redis:", "rediss:", "unix:")):
        return []
    try:
        from reverie.backends.redis import examine_server

        queue = patient.settings.queue
        found = asyncio.run(
            examine_server(
                patient.url,
                prefix=queue.redis_prefix,
                allow_volatile=queue.allow_volatile,
                durability_assumed=queue.durability_assumed,
                durability=queue.durability,
            )
        )
    except ReverieError:
        return []  # opening the queue reports why
    levels: dict[str, Level] = {"ok": "ok", "advice": "note", "problem": "error"}
    return [
        Finding(
            check=one.check,
            level=levels[one.level],
            what=f"{one.check} {one.value}: {one.what}",
            remedy=one.advice,
        )
        for one in found
    ]


def _about(health: Health) -> str:
    return (
        f"{health.pending} wait, {health.processing} run, {health.failed} have failed; "
        f"{health.workers} worker{'' if health.workers == 1 else 's'}"
    )


def _no_worker(patient: Patient, pending: int) -> list[Finding]:
    """Findings about a queue that no worker uses."""
    wait = "1 message waits" if pending == 1 else f"{pending} messages wait"
    daemon = Daemon(patient.folder)
    running, ours = daemon.running(), whole_url(patient.url)
    if running is not None and running.queue and running.queue != ours:
        other = (
            f"the worker in the background works on another queue ({running.queue}), not on this one ({ours})"
        )
        look = _look_at(daemon, running.queue)
        remedy = f"look at that one: `{look}`; or set queue.url so that all use the same"
        if not pending:
            return [Finding(check="other_queue", level="note", what=other, remedy=remedy)]
        return [_error("other_queue", f"{wait} here, and {other}", remedy)]
    if not pending:
        return []
    what = f"{wait} and no worker is running"
    return [_error("no_worker", what, "start one: `reverie worker start` (or `reverie serve`)")]


def _look_at(daemon: Daemon, queue: str) -> str:
    """The command that looks at the queue of the worker in the background."""
    launch = daemon.last_launch()
    app = None if launch is None else launch.options.get("--app") or launch.environment.get("REVERIE_APP")
    return shlex.join(["reverie", "doctor", *(["--app", app] if app else ["--url", queue])])


def _unusable(patient: Patient, error: ReverieError) -> Finding:
    path = shlex.quote(str(patient.file))
    remedy = ""
    if isinstance(error, CorruptDatabaseError):
        remedy = f"stop all that use it; save what can be read: `reverie salvage {path} {path}.saved`"
    elif isinstance(error, SchemaTooNewError):
        remedy = "upgrade: `pip install --upgrade reverie`, or set queue.url to another file"
    elif isinstance(error, NetworkFileSystemError):
        remedy = "set data_dir (or queue.url) to a folder on a local disk: REVERIE_DATA_DIR=…"
    elif isinstance(error, MissingExtraError):
        remedy = (
            f"`pip install 'reverie[{error.extra}]'` (from a checkout: `pip install -e '.[{error.extra}]'`)"
        )
    elif isinstance(error, BackendUnavailableError) and "locked by another process" in str(error):
        remedy = f"see which process holds it: `fuser -v {path}`"
    elif isinstance(error, BackendUnavailableError) and patient.file is None:
        remedy = (
            "see whether the server runs and can be reached from here; queue.url says where it is looked for"
        )
    return _error("queue", str(error), remedy)


def daemon(patient: Patient) -> list[Finding]:
    """Check that the worker in the background is the one that its lock and its state file say."""
    daemon = Daemon(patient.folder)
    running, state, locked = daemon.running(), daemon.state(), daemon.is_locked
    if running is None and locked:
        lock = shlex.quote(str(daemon.lock_file))
        what = (
            f"{lock} is held, but not by the worker that is written down: one that starts, or was left behind"
        )
        return [_warning("daemon", what, f"see which process holds it, and end it: `fuser -v {lock}`")]
    if running is None and state is not None:
        what = f"the worker in the background (process {state.pid}) has died without being stopped"
        return [
            _warning(
                "daemon", what, "read why: `reverie worker logs`; start it again: `reverie worker restart`"
            )
        ]
    if running is None:
        return [_ok("daemon", "no worker was started in the background")]
    findings = [
        Finding(check=alert.rule, level=alert.level, what=alert.message, remedy=alert.remedy)
        for alert in running.alerts
    ]
    if running.ready_at is None:
        what = f"the worker in the background (process {running.pid}) is starting, and takes no work yet"
        findings.append(_warning("daemon", what, "read what it waits for: `reverie worker logs`"))
    if running.version != __version__:
        what = f"the worker in the background is Reverie {running.version}, this is {__version__}"
        findings.append(_warning("daemon", what, "let the new one run: `reverie worker restart`"))
    what = f"the worker in the background runs (process {running.pid}), its queue is {running.queue}"
    return findings or [_ok("daemon", what)]


def sockets(patient: Patient) -> list[Finding]:
    """Check that the processes that use the queue's file can reach each other."""
    folder = None if patient.file is None else peers_folder(str(patient.file))
    if folder is None or not folder.is_dir():
        return []
    old, deaf = [], []
    for address in sorted(folder.iterdir()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            mouth.setblocking(False)
            try:
                mouth.sendto(b"[]", str(address))  # an announcement of no messages
            except ConnectionRefusedError:
                old.append(address)
            except BlockingIOError:
                deaf.append(address)
            except OSError:
                continue  # its process has just ended
    findings = [_hung(address) for address in deaf]
    if old:
        are = (
            "1 socket in {} is of a process that has"
            if len(old) == 1
            else f"{len(old)} sockets in {{}} are of processes that have"
        )
        what = f"{are.format(folder)} died; the next submit removes {'it' if len(old) == 1 else 'them'}"
        remedy = f"or: `{shlex.join(['rm', *map(str, old)])}`"
        findings.append(Finding(check="sockets", level="note", what=what, remedy=remedy))
    return findings or [_ok("sockets", f"all that listen in {folder} can be reached")]


def _hung(address: Path) -> Finding:
    pid = next((part for part in address.name.split("-") if part.isdigit()), "?")
    what = f"process {pid} does not hear that there is work ({address}): it may hang, or is stopped"
    return _warning(
        "sockets", what, f"see what it does: `ps -l {pid}`; if it is the worker: `reverie worker restart`"
    )


def spool(patient: Patient) -> list[Finding]:
    """Report captured messages that wait for the queue, or that cannot be read."""
    folder = patient.settings.spool_dir
    if not folder.is_dir():
        return []
    waiting = _count(folder, NAME.fullmatch)
    damaged = _count(folder / "damaged", lambda name: not name.endswith(".reason"))
    findings = []
    if waiting:
        wait = "1 captured message waits" if waiting == 1 else f"{waiting} captured messages wait"
        what = f"{wait} in {folder} until the queue can be reached"
        remedy = "a running worker or server takes them in: `reverie worker start` (or `reverie serve`)"
        findings.append(_warning("spool", what, remedy))
    if damaged:
        place = shlex.quote(str(folder / "damaged"))
        them = "1 captured message" if damaged == 1 else f"{damaged} captured messages"
        what = f"{them} in {place} cannot be read; beside each stands why"
        findings.append(
            _warning(
                "spool", what, f"read why: `tail {place}/*.reason`; mend and move them back, or delete them"
            )
        )
    return findings or [_ok("spool", f"nothing waits in {folder}")]


def _count(folder: Path, wanted: Callable[[str], object]) -> int:
    with suppress(OSError):
        return sum(1 for path in folder.iterdir() if wanted(path.name) and path.is_file())
    return 0


def server(patient: Patient) -> list[Finding]:
    """Check whether a server answers at the address in the settings, and report its own alerts."""
    settings = patient.settings.server
    if settings.port == 0:
        return []
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}"
    try:
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with directly.open(f"{address}/alerts", timeout=PATIENCE_S) as answer:
            alerts = json.load(answer)["alerts"]
        own = [alert for alert in msgspec.convert(alerts, list[Alert]) if alert.rule in OF_ONE_PROCESS]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        return [
            _note(
                "server",
                f"no server of Reverie answers on {address} ({reason}); that is fine if you run none",
            )
        ]
    findings = [
        Finding(check=one.rule, level=one.level, what=f"server: {one.message}", remedy=one.remedy)
        for one in own
    ]
    return findings or [_ok("server", f"a server answers on {address}")]


CHECKS: tuple[Callable[[Patient], list[Finding]], ...] = (
    versions,
    data_folder,
    disk,
    queue,
    daemon,
    sockets,
    spool,
    server,
)


def _ok(check: str, what: str) -> Finding:
    return Finding(check=check, level="ok", what=what)


def _note(check: str, what: str) -> Finding:
    return Finding(check=check, level="note", what=what)


def _warning(check: str, what: str, remedy: str) -> Finding:
    return Finding(check=check, level="warning", what=what, remedy=remedy)


def _error(check: str, what: str, remedy: str) -> Finding:
    return Finding(check=check, level="error", what=what, remedy=remedy)


def _other_folder() -> str:
    return "use another folder: set data_dir, or REVERIE_DATA_DIR=…"
