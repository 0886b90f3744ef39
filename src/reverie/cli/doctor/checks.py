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
from typing import TYPE_CHECKING

import apsw
import msgspec

from reverie.capture.spool import is_name
from reverie.cli.daemon.state import Daemon, whole_url
from reverie.cli.doctor.capture import hook_errors, hook_losses, hook_spool, hooks
from reverie.cli.doctor.finding import Finding, Level, Patient, a_note, a_warning, an_error, fine
from reverie.cli.doctor.language_model import language_model
from reverie.errors import (
    BackendUnavailableError,
    CorruptDatabaseError,
    MissingExtraError,
    NetworkFileSystemError,
    ReverieError,
    SchemaTooNewError,
    redacted,
)
from reverie.observe.rules import BUDGET_SPENT, OF_ONE_PROCESS, Alert
from reverie.storage.peers import peers_folder
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reverie.errors import AppNotFoundError
    from reverie.observe.health import Health
    from reverie.settings import Settings

__all__ = ["CHECKS", "Finding", "Level", "Patient", "app_findings", "settings_findings"]

LITTLE_SPACE_BYTES = 256 * 1024 * 1024
"""Less than this on the disk of the data folder is a warning."""
NO_SPACE_BYTES = 16 * 1024 * 1024
"""Less than this is an error, because SQLite needs some space to write its log back."""
PROBE_BYTES = 64 * 1024
PATIENCE_S = 2.0
"""The longest wait for a server's answer."""


def settings_findings(error: ReverieError) -> list[Finding]:
    """Findings about settings that cannot be read."""
    remedy = "correct it there, and see whether all is right then: `reverie config check`"
    return [an_error("settings", line, remedy) for line in str(error).splitlines()]


def app_findings(error: AppNotFoundError) -> list[Finding]:
    """Findings about an app that the settings name and that cannot be loaded."""
    remedy = "correct the setting app (REVERIE_APP), or run this in the folder of the app"
    return [an_error("app", str(error), remedy)]


def versions(patient: Patient) -> list[Finding]:
    """Report the versions in use and the queue's URL."""
    what = (
        f"Reverie {__version__}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, "
        f"queue {redacted(patient.url)}"
    )
    return [fine("versions", what)]


def data_folder(patient: Patient) -> list[Finding]:
    """Check that the data folder can be written."""
    folder = patient.folder
    if not folder.exists():
        above = next(parent for parent in folder.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return [a_note("data_folder", f"{folder} does not exist yet; it is made with the first message")]
        what = f"the data folder {folder} does not exist, and cannot be made in {above}"
        return [an_error("data_folder", what, _other_folder())]
    if not folder.is_dir():
        return [an_error("data_folder", f"the data folder {folder} is a file", _other_folder())]
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _unwritable(folder, error)
    return [fine("data_folder", f"{folder} can be written")]


def _unwritable(folder: Path, error: OSError) -> list[Finding]:
    what = f"nothing can be written in the data folder {folder} by user {os.geteuid()}: {error.strerror}"
    if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
        command = f"chmod u+rwx {shlex.quote(str(folder))}"
        remedy = f"let it write there: `{command}` (or chown); or {_other_folder()}"
        return [an_error("data_folder", what, remedy)]
    if shutil.disk_usage(folder).free < NO_SPACE_BYTES:
        return []  # the check `disk` reports it
    return [an_error("data_folder", what, f"free space or raise the quota there; or {_other_folder()}")]


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
        return an_error("disk", f"the disk is full: {what}", remedy)
    if free < LITTLE_SPACE_BYTES:
        return a_warning("disk", f"little space is left: {what}", remedy)
    return fine("disk", what)


def queue(patient: Patient) -> list[Finding]:
    """Check that the queue can be opened, and report its alerts."""
    from reverie.face.scheduler import Scheduler

    file = patient.file
    if file is not None and not file.exists():
        note = a_note("queue", f"there is no queue yet: {file} is made with the first message")
        return [note, *_no_worker(patient, 0)]
    if patient.url.startswith("memory:"):
        return [a_note("queue", "memory:// lives in one process: nobody else can look at it")]
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
        fine("queue", _about(health)),
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
        return [an_error("other_queue", f"{wait} here, and {other}", remedy)]
    if not pending:
        return []
    what = f"{wait} and no worker is running"
    return [an_error("no_worker", what, "start one: `reverie worker start` (or `reverie serve`)")]


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
    return an_error("queue", str(error), remedy)


def memory_index(patient: Patient) -> list[Finding]:
    """Check that all memories are indexed or a worker does it, and that the embedder is there.

    No model is loaded.
    """
    from reverie.cli.commands.embeddings import has_memories
    from reverie.cli.commands.index import index_progress
    from reverie.face.scheduler import Scheduler

    if patient.url.startswith("memory:") or not has_memories(patient.settings):
        return []
    try:
        with Scheduler(settings=patient.settings).used() as scheduler:
            progress, workers = index_progress(scheduler), scheduler.observe.health().workers
            embedder = scheduler.runtime.models.embedder_name
    except ReverieError:
        return []  # the check `queue` reports it
    if progress is None:
        return []
    findings = _embedder(patient.settings, embedder)
    if progress.left and not workers:
        many = "memory is" if progress.left == 1 else "memories are"
        what = f"{progress.left} {many} not indexed, and no worker is running; words find them meanwhile"
        remedy = "index now: `reverie index run`; or start a worker, which does it: `reverie worker start`"
        findings.append(a_warning("memory_index", what, remedy))
    done = f"{progress.total - progress.left} of {progress.total} memories"
    what = f"{done} are indexed, by {embedder or 'words alone'}"
    return findings or [fine("memory_index", what)]


def _embedder(settings: Settings, embedder: str | None) -> list[Finding]:
    """Findings about an embedder that cannot make vectors here."""
    from reverie.cli.commands.embeddings import embedder_in_use

    name, state, to_get = embedder_in_use(settings)
    memory = settings.memory
    has_key = memory.embedding_api_key or memory.embedding_url or os.environ.get("OPENAI_API_KEY")
    reason = remedy = ""
    if to_get:
        reason = state
        remedy = "; ".join(f"`{command}`" for command in to_get.split("; "))
    elif embedder is not None and embedder.startswith("onnx:") and embedder.endswith(":unknown"):
        reason = f"there is no model in {memory.embedding_path}"
        remedy = "choose another one: `reverie embeddings list`"
    elif memory.embedding == "openai" and not has_key:
        reason = "it has no API key"
        remedy = "set OPENAI_API_KEY or memory.embedding_api_key; or see others: `reverie embeddings list`"
    if not reason:
        return []
    what = f"the embedder {name} makes no vectors: {reason}; searches find by words alone"
    return [a_warning("memory_index", what, remedy)]


def daemon(patient: Patient) -> list[Finding]:
    """Check that the worker in the background is the one that its lock and its state file say."""
    daemon = Daemon(patient.folder)
    running, state, locked = daemon.running(), daemon.state(), daemon.is_locked
    if running is None and locked:
        lock = shlex.quote(str(daemon.lock_file))
        what = (
            f"{lock} is held, but not by the worker that is written down: one that starts, or was left behind"
        )
        return [a_warning("daemon", what, f"see which process holds it, and end it: `fuser -v {lock}`")]
    if running is None and state is not None:
        what = f"the worker in the background (process {state.pid}) has died without being stopped"
        return [
            a_warning(
                "daemon", what, "read why: `reverie worker logs`; start it again: `reverie worker restart`"
            )
        ]
    if running is None:
        return [fine("daemon", "no worker was started in the background")]
    findings = [
        Finding(check=alert.rule, level=alert.level, what=alert.message, remedy=alert.remedy)
        for alert in running.alerts
        if alert.rule != BUDGET_SPENT  # the check `language_model` reports it
    ]
    if running.ready_at is None:
        what = f"the worker in the background (process {running.pid}) is starting, and takes no work yet"
        findings.append(a_warning("daemon", what, "read what it waits for: `reverie worker logs`"))
    if running.version != __version__:
        what = f"the worker in the background is Reverie {running.version}, this is {__version__}"
        findings.append(a_warning("daemon", what, "let the new one run: `reverie worker restart`"))
    what = f"the worker in the background runs (process {running.pid}), its queue is {running.queue}"
    return findings or [fine("daemon", what)]


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
    return findings or [fine("sockets", f"all that listen in {folder} can be reached")]


def _hung(address: Path) -> Finding:
    pid = next((part for part in address.name.split("-") if part.isdigit()), "?")
    what = f"process {pid} does not hear that there is work ({address}): it may hang, or is stopped"
    return a_warning(
        "sockets", what, f"see what it does: `ps -l {pid}`; if it is the worker: `reverie worker restart`"
    )


def spool(patient: Patient) -> list[Finding]:
    """Report captured messages that wait for the queue, or that cannot be read."""
    folder = patient.settings.spool_dir
    if not folder.is_dir():
        return []
    waiting = _count(folder, is_name)
    damaged = _count(folder / "damaged", lambda name: not name.endswith(".reason"))
    findings = []
    if waiting:
        wait = "1 captured message waits" if waiting == 1 else f"{waiting} captured messages wait"
        what = f"{wait} in {folder} until a worker or a server takes {'it' if waiting == 1 else 'them'} in"
        remedy = (
            "start one: `reverie worker start` (or `reverie serve`); if one runs, its log says why they wait"
        )
        findings.append(a_warning("spool", what, remedy))
    if damaged:
        place = shlex.quote(str(folder / "damaged"))
        them = "1 captured message" if damaged == 1 else f"{damaged} captured messages"
        what = f"{them} in {place} cannot be read; beside each stands why"
        findings.append(
            a_warning(
                "spool", what, f"read why: `tail {place}/*.reason`; mend and move them back, or delete them"
            )
        )
    return findings or [fine("spool", f"nothing waits in {folder}")]


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
        own = [
            alert
            for alert in msgspec.convert(alerts, list[Alert])
            if alert.rule in OF_ONE_PROCESS - {BUDGET_SPENT}
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        return [
            a_note(
                "server",
                f"no server of Reverie answers on {address} ({reason}); that is fine if you run none",
            )
        ]
    findings = [
        Finding(check=one.rule, level=one.level, what=f"server: {one.message}", remedy=one.remedy)
        for one in own
    ]
    return findings or [fine("server", f"a server answers on {address}")]


CHECKS: tuple[Callable[[Patient], list[Finding]], ...] = (
    versions,
    data_folder,
    disk,
    queue,
    memory_index,
    language_model,
    daemon,
    sockets,
    spool,
    hooks,
    hook_spool,
    hook_losses,
    hook_errors,
    server,
)


def _other_folder() -> str:
    return "use another folder: set data_dir, or REVERIE_DATA_DIR=…"
