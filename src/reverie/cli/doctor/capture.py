"""Checks of capture: the settings of hooks, lost events, errors of hooks, files that nobody takes in."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.capture import hook_settings
from reverie.capture.hook_log import log_path, losses, recent_problems
from reverie.capture.spool import is_name
from reverie.cli.doctor.finding import Finding, Patient, a_note, a_warning, an_error, fine

if TYPE_CHECKING:
    from reverie.capture.hook_settings import HookSettings

__all__ = ["hook_errors", "hook_losses", "hook_spool", "hooks"]


def hooks(patient: Patient) -> list[Finding]:
    """Check that the settings of hooks can be read, and that what they name is there."""
    path = _settings_file()
    if not path.exists():
        return [fine("hooks", f"no hooks are installed: there is no {path}")]
    settings = hook_settings.load()
    if settings.problem:
        what = settings.problem if str(path) in settings.problem else f"{path}: {settings.problem}"
        remedy = (
            f"correct {shlex.quote(str(path))}; or remove it and write it anew: "
            "`reverie install claude-code` (or codex). Then projects that were off are captured again"
        )
        return [an_error("hooks", f"hooks capture nothing: {what}", remedy)]
    findings = [*_folder(patient, settings), *_python(settings)]
    if not settings.enabled:
        findings.append(
            a_note("capture", "the capture of agents' work is off", "switch it on: `reverie capture on`")
        )
    off = len(settings.off_projects)
    what = f"hooks write to {settings.spool_dir}" + (f"; {off} names of projects are off" if off else "")
    return findings or [fine("hooks", what)]


def _folder(patient: Patient, settings: HookSettings) -> list[Finding]:
    """Findings about the data folder that hooks use: agents may not have this command's environment."""
    given = hook_settings.read_settings(str(_settings_file())).get("data_dir")
    folder = Path(given or hook_settings.default_data_folder()).resolve()
    if folder != patient.folder:
        what = f"hooks use the data folder {folder}, but this command uses {patient.folder}"
        remedy = f"let hooks use the data folder of the settings: `{_write_anew(settings)}`"
        return [a_warning("hooks", f"{what}: it does not see what agents do", remedy)]
    if given and not folder.is_dir():
        what = f"the data folder of hooks does not exist: {folder}"
        remedy = (
            f"bring it back; or, if data_dir is another folder now, tell hooks: `{_write_anew(settings)}`"
        )
        return [a_warning("hooks", what, remedy)]
    return []


def _python(settings: HookSettings) -> list[Finding]:
    """A finding if hooks cannot start the worker, because their interpreter is gone."""
    if not settings.start_worker or os.access(settings.python, os.X_OK):
        return []
    what = f"hooks cannot start a worker: there is no program {settings.python}"
    return [a_warning("hooks", what, f"let them use this one's: `{_write_anew(settings)}`")]


def hook_losses(patient: Patient) -> list[Finding]:
    """Report events of agents that hooks could not keep."""
    findings = []
    for folder in _data_folders(patient):
        count = losses(folder)
        if count:
            events = "1 event of an agent was" if count == 1 else f"{count} events of agents were"
            what = f"{events} lost, because the spool could not be written"
            log = shlex.quote(log_path(folder))
            forget = shlex.join(["rm", str(Path(folder) / "hook-losses")])
            remedy = f"read why: `tail {log}`; when that is mended, forget the count: `{forget}`"
            findings.append(a_warning("hook_losses", what, remedy))
    return findings


def hook_errors(patient: Patient) -> list[Finding]:
    """Report errors of hooks in the last day that a person must know of."""
    return [
        a_warning("hook_errors", problem, f"read more: `tail {shlex.quote(log_path(folder))}`")
        for folder in _data_folders(patient)
        for problem in recent_problems(folder)
    ]


def hook_spool(patient: Patient) -> list[Finding]:
    """Report events that hooks have written where no worker of this queue looks for them."""
    folder = Path(hook_settings.load().spool_dir)
    if folder.resolve() == patient.settings.spool_dir:
        return []  # the check `spool` reports it
    try:
        count = sum(is_name(path.name) for path in folder.iterdir())
    except OSError:
        count = 0
    if not count:
        return []
    wait = "1 event of an agent waits" if count == 1 else f"{count} events of agents wait"
    what = f"{wait} in {folder}, but the spool of this queue is {patient.settings.spool_dir}"
    remedy = (
        "run a worker with the settings that hooks were installed with, or let hooks use these settings: "
        f"`{_write_anew(hook_settings.load())}`, and move the files"
    )
    return [a_warning("hook_spool", what, remedy)]


def _settings_file() -> Path:
    return Path(hook_settings.config_folder()) / hook_settings.FILE_NAME


def _data_folders(patient: Patient) -> list[str]:
    """The data folders of hooks and of this command, which should be the same one."""
    return list(dict.fromkeys([hook_settings.load().data_dir, str(patient.folder)]))


def _write_anew(settings: HookSettings) -> str:
    """The command that writes the settings of hooks anew, and leaves capture on or off."""
    return f"reverie capture {'on' if settings.enabled else 'off'}"
