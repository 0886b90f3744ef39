"""`reverie doctor`: what is wrong, in words, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.options import App, Json, Url
from reverie.cli.output import no_logs, print_json, say

if TYPE_CHECKING:
    from reverie.cli.doctor.checks import Finding, Level

__all__ = ["doctor"]

EXIT_CODES: dict[Level, int] = {"ok": 0, "note": 0, "warning": 1, "error": 2}
COLOURS: dict[Level, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def doctor(
    url: Url = None,
    app: App = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what is fine, too.")] = False,
    json: Json = False,
) -> None:
    """Say what is wrong with the queue, its workers and this machine, and what to do.

    Exit code 0 if nothing is worse than a note, 1 if there is a warning, 2 if there is an error.

    Example: reverie doctor
    """
    with no_logs():  # the findings say what would be logged
        findings = _examine(url, app)
    worst = max((EXIT_CODES[one.level] for one in findings), default=0)
    if json:
        print_json(findings)
    else:
        shown = [one for one in findings if verbose or one.level != "ok"]
        for one in sorted(shown, key=lambda one: -EXIT_CODES[one.level]):
            _show(one)
        if worst == 0:
            say("nothing is wrong", fg="green")
    raise typer.Exit(worst)


def _examine(url: str | None, app: str | None) -> list[Finding]:
    from reverie.cli.app import scheduler_of
    from reverie.cli.doctor.checks import CHECKS, Finding, Patient, app_findings, settings_findings
    from reverie.errors import AppNotFoundError, ReverieError
    from reverie.settings import load_settings

    findings: list[Finding] = []
    try:
        settings = of_queue = load_settings()
    except ReverieError as error:
        return settings_findings(error)
    if url is not None:
        of_queue = settings.model_copy(update={"queue": settings.queue.model_copy(update={"url": url})})
    try:
        of_queue = scheduler_of(url, app).runtime.settings
    except AppNotFoundError as error:
        findings += app_findings(error)
    except ReverieError:
        pass  # the check of the queue reports it
    patient = Patient(of_queue, settings.data_dir.expanduser().resolve())
    for check in CHECKS:
        try:
            findings += check(patient)
        except (ReverieError, OSError) as error:
            findings.append(Finding(check=check.__name__, level="error", what=str(error)))
        except Exception as error:  # noqa: BLE001  one check that fails must not hide what the others see
            what = f"the check of the {check.__name__.replace('_', ' ')} itself failed: {error!r}"
            findings.append(Finding(check=check.__name__, level="error", what=what))
    return findings


def _show(finding: Finding) -> None:
    say(f"{finding.level}: {finding.what}", fg=COLOURS[finding.level])
    if finding.remedy:
        say(f"  → {finding.remedy}")
    say("")
