"""The few settings of hooks, and the folders that they use; only the standard library.

`reverie install` and `reverie capture` write them as `hook.json` into the configuration folder. A hook reads
no other settings: nothing of the agent's folder may decide what it does.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "DEFAULT_BUDGET_MS",
    "DEFAULT_MAX_BYTES",
    "FILE_NAME",
    "HookSettings",
    "config_folder",
    "load",
    "login_name",
    "read_settings",
]

FILE_NAME = "hook.json"
DEFAULT_MAX_BYTES = 262_144
DEFAULT_BUDGET_MS = 150
LARGEST_FILE = 1024 * 1024
MOST_BUDGET_MS = 10_000


class HookSettings:
    """Everything that a hook can be told."""

    __slots__ = (
        "context_budget_ms",
        "data_dir",
        "enabled",
        "exclude_projects",
        "exclude_tools",
        "hook_max_bytes",
        "off_projects",
        "problem",
        "python",
        "spool_dir",
        "start_worker",
    )

    def __init__(self, given: dict[str, Any], data_dir: str = "", problem: str = "") -> None:
        """Read the fields of `hook.json`; `data_dir` comes from the environment and wins.

        A field that cannot be right gets its default. If it decides what is kept, nothing is captured,
        because its default would keep too much.
        """
        bad: list[str] = []

        def one(name: str, kind: type, default: Any) -> Any:
            value = given.get(name)
            if value is None:
                return default
            if type(value) is kind:
                return value
            bad.append(name)
            return default

        def words(name: str) -> list[str]:
            value = given.get(name)
            if value is None:
                return []
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                return value
            bad.append(name)
            return []

        def folder(name: str) -> str:
            value: str = one(name, str, "")
            if value and not os.path.isabs(value):
                bad.append(name)
                return ""
            return value

        in_file = folder("data_dir")
        self.data_dir = os.path.realpath(data_dir or in_file or default_data_folder())
        spool = "" if data_dir and data_dir != in_file else folder("spool_dir")
        self.spool_dir = spool or os.path.join(self.data_dir, "spool")
        self.off_projects = words("off_projects")
        self.exclude_tools = words("exclude_tools")
        self.exclude_projects = words("exclude_projects")
        self.enabled: bool = one("enabled", bool, default=True) and not bad and not problem
        self.hook_max_bytes: int = max(1, one("hook_max_bytes", int, DEFAULT_MAX_BYTES))
        budget: int = one("context_budget_ms", int, DEFAULT_BUDGET_MS)
        self.context_budget_ms = min(max(0, budget), MOST_BUDGET_MS)
        self.start_worker: bool = one("start_worker", bool, default=True)
        self.python = folder("python") or sys.executable
        self.problem = problem or (f"{FILE_NAME}: these fields are wrong: {', '.join(bad)}" if bad else "")


def config_folder() -> str:
    """The configuration folder: `platformdirs.user_config_dir("reverie")`, without importing it."""
    return _platform_folder("XDG_CONFIG_HOME", ".config")


def default_data_folder() -> str:
    """The data folder if nothing sets another: `platformdirs.user_data_dir("reverie")`."""
    return _platform_folder("XDG_DATA_HOME", os.path.join(".local", "share"))


def login_name() -> str:
    """The name of the person, as `getpass.getuser` finds it; the number of the user if there is no name."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if name := os.environ.get(variable):
            return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def load() -> HookSettings:
    """Read the settings that are in force; never raises an error."""
    path = os.path.join(config_folder(), FILE_NAME)
    data_dir = os.path.expanduser(os.environ.get("REVERIE_DATA_DIR", ""))
    if not os.path.isabs(data_dir):
        data_dir = ""  # a relative one would be looked for in the agent's folder
    try:
        return HookSettings(read_settings(path), data_dir)
    except FileNotFoundError:
        return HookSettings({}, data_dir)
    except (OSError, ValueError, RecursionError) as error:
        return HookSettings({}, data_dir, f"{path} cannot be read, nothing is captured: {error}")


def read_settings(path: str) -> dict[str, Any]:
    """The fields of a file; raises `OSError` or `ValueError` if it cannot be read."""
    from reverie.capture.plain_json import decode

    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = os.read(file, LARGEST_FILE)
    finally:
        os.close(file)
    fields = decode(data.decode())
    if not isinstance(fields, dict):
        raise ValueError("it is no object")  # noqa: TRY004  the text is wrong, not a type of this program
    return fields


def _platform_folder(variable: str, below_home: str) -> str:
    if sys.platform == "darwin":
        below_home = os.path.join("Library", "Application Support")
    base = os.environ.get(variable, "").strip()
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), below_home)
    return os.path.join(base, "reverie")
