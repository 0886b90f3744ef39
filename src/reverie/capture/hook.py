"""`reverie-hook <agent> <event>`: keep what an agent tells, and give it context. Never blocks the agent.

The input is JSON on standard input. One file in the spool is written; a running worker is told, and asked for
context within a small budget. Whatever happens, the exit code is 0, and nothing is printed but the JSON of an
event that takes context. Only the standard library, and little of it, is imported: each event starts a new
interpreter.
"""

from __future__ import annotations

import os
import sys
import time

STARTED_NS = time.time_ns()
"""When this hook began: files of the spool are ordered by it."""

from reverie.capture import hook_settings  # noqa: E402  the time comes first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from reverie.capture.hook_settings import HookSettings
    from reverie.capture.project import Project
    from reverie.capture.protocol import Answer

__all__ = ["AGENTS", "CONTEXT_EVENTS", "KEPT_EVENTS", "main"]

AGENTS = frozenset({"claude-code", "codex"})
CONTEXT_EVENTS = frozenset({"SessionStart", "SubagentStart", "UserPromptSubmit"})
"""The events whose output the agent reads as context."""
KEPT_EVENTS = CONTEXT_EVENTS | {
    "PostToolUse", "PostToolUseFailure", "PostToolBatch", "SubagentStop", "Stop", "StopFailure", "PreCompact",
    "PostCompact", "SessionEnd", "CwdChanged",
}  # fmt: skip
SAME_AGAIN = frozenset({"resume", "compact"})
"""Begins of a session that goes on: it is told the same as at first."""
LARGEST_BLOCK = 64 * 1024


def main(words: list[str] | None = None) -> NoReturn:
    """Run the hook with these words, else those of the command line; the exit code is 0, whatever happens."""
    try:
        _run(sys.argv[1:] if words is None else words)
    finally:  # `_exit` also ends what an error would show, and takes no time to tidy up
        os._exit(0)


def _run(words: list[str]) -> None:
    _open_streams()
    settings = hook_settings.load()
    try:
        _handle(words, settings)
    except BaseException as error:  # noqa: BLE001  no error of a hook may reach the agent
        event = words[1] if len(words) == 2 else ""
        _log(settings, event, error, "the hook could not do its work")


def _handle(words: list[str], settings: HookSettings) -> None:
    from reverie.capture.hook_input import BadCallError, read_input

    given = read_input()
    if len(words) != 2 or words[0] not in AGENTS:
        raise BadCallError(f"the command line is not <agent> <event> with one of {sorted(AGENTS)}")
    if settings.problem:
        if words[1] == "SessionStart":
            _print(words[1], "", f"Reverie: {settings.problem}")
        raise BadCallError(settings.problem)
    agent, event = words
    if settings.enabled and event in KEPT_EVENTS:
        _Hook(settings, agent, event, given).run()


class _Hook:
    """One event of an agent."""

    def __init__(self, settings: HookSettings, agent: str, event: str, given: dict[str, Any]) -> None:
        from reverie.capture.project import project_of

        self.settings = settings
        self.agent = agent
        self.event = event
        self.given = given
        self.cwd = self._folder()
        self.project: Project = project_of(self.cwd)

    def run(self) -> None:
        """Clean the input, ask for context, keep the event, tell the worker, and print the context."""
        from reverie.capture.hook_exclusions import is_excluded, without_excluded_calls
        from reverie.capture.hook_input import clean_input

        if is_excluded(self.settings, self.project.keys, self.cwd, self.given):
            return
        given = without_excluded_calls(self.given, self.settings.exclude_tools)
        if given is None:
            return
        fields, cut = clean_input(given, self.settings.hook_max_bytes)
        answer = self._context(fields) if self.event in CONTEXT_EVENTS else None
        self._keep(fields, cut, answer)
        self._tell_worker()
        if answer is not None:
            _print(self.event, answer.context, answer.notice)
        if self.settings.start_worker:
            self._start_worker()

    def _folder(self) -> str:
        """The agent's folder; it follows worktrees, which the variables of agents do not."""
        for name in ("new_cwd", "cwd") if self.event == "CwdChanged" else ("cwd",):
            folder = self.given.get(name)
            if isinstance(folder, str) and os.path.isabs(folder) and "\0" not in folder:
                return folder
        try:
            return os.getcwd()
        except OSError:  # the folder was removed
            return "/"

    # -- context ----------------------------------------------------------------------------------------

    def _context(self, fields: dict[str, Any]) -> Answer:
        """The worker's answer within the budget, else the block that the worker has left in a file."""
        from reverie.capture.protocol import LONGEST_PROMPT, Answer, ask_context

        prompt, source = fields.get("prompt"), fields.get("source")
        session_id = fields.get("session_id")
        question = {
            "event": self.event,
            "source": source if isinstance(source, str) else "",
            "user_id": hook_settings.login_name(),
            "session_id": session_id if isinstance(session_id, str) else "",
            "agent": self.agent,
            "project": {"name": self.project.name, "keys": self.project.keys},
            "prompt": prompt[:LONGEST_PROMPT] if isinstance(prompt, str) else "",
        }
        try:
            return ask_context(self.settings.data_dir, question, self.settings.context_budget_ms / 1000)
        except (OSError, ValueError) as error:
            _log(self.settings, self.event, error, "no context from a worker")
        return Answer(self._block(question), self._notice() if self.event == "SessionStart" else None)

    def _notice(self) -> str | None:
        """What a person must know of; a worker that answers says it itself."""
        from reverie.capture.hook_log import recent_problems
        from reverie.capture.worker_start import start_problem

        lines = [*start_problem(self.settings.data_dir), *recent_problems(self.settings.data_dir)]
        return "Reverie: " + "\n".join(lines) if lines else None

    def _block(self, question: dict[str, Any]) -> str | None:
        from reverie.capture.protocol import LONGEST_CONTEXT, block_path, session_block

        if self.event == "UserPromptSubmit":
            return None
        keys = self.project.keys
        if any(
            key.startswith("remote:") for key in keys
        ):  # its folder may have been that of another repository
            keys = [key for key in keys if not key.startswith(("common:", "folder:"))]
        paths = [block_path(self.settings.data_dir, key) for key in keys]
        if question["source"] in SAME_AGAIN and question["session_id"]:
            paths.insert(0, session_block(self.settings.data_dir, question["session_id"]))
        for path in paths:
            try:
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                if os.fstat(file).st_uid == os.geteuid():
                    return os.read(file, LARGEST_BLOCK).decode(errors="replace")[:LONGEST_CONTEXT]
            except OSError:
                continue
            finally:
                os.close(file)
        return None

    # -- what is kept -----------------------------------------------------------------------------------

    def _keep(self, fields: dict[str, Any], cut: list[str], answer: Answer | None) -> None:
        """Write the file of this event; a loss is counted where `reverie doctor` shows it."""
        from reverie.capture.hook_input import fit
        from reverie.capture.spool import Spool

        record: dict[str, Any] = {
            "hook": 1,
            "item_id": os.urandom(16).hex(),
            "agent": self.agent,
            "event": self.event,
            "at": STARTED_NS,
            "user_id": hook_settings.login_name(),
            "project": {"name": self.project.name, "keys": self.project.keys},
            "cwd": self.cwd,
        }
        context = None if answer is None else answer.context
        if context or (context is not None and self.event == "SessionStart"):
            record["context"] = context
        if cut:
            record["cut"] = cut
        record["input"] = fields
        try:
            fit(record, self.settings.hook_max_bytes)
            Spool(self.settings.spool_dir).write_record(record, STARTED_NS)
        except Exception as error:  # noqa: BLE001  the context is given all the same
            from reverie.capture.hook_log import count_loss

            count_loss(self.settings.data_dir)
            _log(self.settings, self.event, error, "an event was lost")

    def _tell_worker(self) -> None:
        from reverie.capture.protocol import ask_look

        try:
            ask_look(self.settings.data_dir)
        except OSError:
            pass  # it looks by itself at intervals, or when it is started

    def _start_worker(self) -> None:
        from reverie.capture.worker_start import start_if_needed

        try:
            start_if_needed(self.settings.data_dir, self.settings.python)
        except (OSError, ValueError) as error:
            _log(self.settings, self.event, error, "the worker could not be started")


def _print(event: str, context: str | None, notice: str | None) -> None:
    """Answer the agent: context for it, and a notice for the person."""
    from reverie.capture.plain_json import encode

    output: dict[str, Any] = {}
    if context:
        output["hookSpecificOutput"] = {"hookEventName": event, "additionalContext": context}
    if notice:
        output["systemMessage"] = notice
    if output:
        data = encode(output, ascii_only=True).encode()
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            pass  # the agent does not listen


def _open_streams() -> None:
    """Have all three streams open: else a file that is opened later would take the place of the output."""
    try:
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(opened)
    except OSError:
        pass  # no descriptor is free, or there is no such device


def _log(settings: HookSettings, event: str, error: BaseException, what: str) -> None:
    from reverie.capture.hook_log import log_error

    try:
        log_error(settings.data_dir, event, error, what)
    except Exception:  # noqa: BLE001, S110  nothing is left to do
        pass


if __name__ == "__main__":
    main()
