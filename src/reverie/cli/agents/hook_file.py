"""`hook.json` in the configuration folder: the few settings that hooks read."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.cli.agents.edits import Edit, write_whole
from reverie.cli.agents.errors import AgentFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie.settings import Settings

__all__ = ["HookFile"]

VERSION = 1


class HookFile:
    """The file. What `reverie capture off` has switched off stays off when the rest is written anew."""

    def __init__(self) -> None:
        from reverie.capture.hook_settings import FILE_NAME, config_folder

        self.path = Path(config_folder()) / FILE_NAME

    def read(self) -> dict[str, Any]:
        """The fields of the file; none if there is no file."""
        try:
            fields = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise AgentFileError(self.path, f"cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise self._broken(str(error)) from error
        if not isinstance(fields, dict):
            raise self._broken("it is no object")
        for name, kind in (("enabled", bool), ("off_projects", list)):
            if not isinstance(fields.get(name, kind()), kind):
                raise self._broken(f"{name} is wrong")
        return fields

    def planned(self, settings: Settings) -> Edit:
        """The change of the file that `update` would make."""
        fields = self.read()
        before = self.path.read_bytes() if fields else None
        return Edit(self.path, before, _written({**fields, **_fields_of(settings)}))

    def update(self, settings: Settings) -> None:
        """Write what these settings say."""
        with self.changing() as fields:
            fields.update(_fields_of(settings))

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The fields to change; they are written at the end of the block, while nobody else writes them."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.parent, os.O_RDONLY)
        except OSError as error:
            raise AgentFileError(self.path, f"cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fields = self.read()
            yield fields
            write_whole(self.path, _written(fields), 0o600)
        except OSError as error:
            raise AgentFileError(self.path, f"cannot be written: {error.strerror or error}") from error
        finally:
            os.close(lock)

    def _broken(self, reason: str) -> AgentFileError:
        return AgentFileError(
            self.path,
            f"is broken ({reason}), so hooks capture nothing: correct it, or remove it; without it, projects "
            "that were off are captured again",
        )


def _written(fields: dict[str, Any]) -> bytes:
    text = json.dumps({"version": VERSION, **fields}, ensure_ascii=False, indent=2)
    return text.encode(errors="surrogateescape") + b"\n"


def _fields_of(settings: Settings) -> dict[str, Any]:
    """The fields of the file that settings decide."""
    capture = settings.capture
    most_bytes = min(settings.limits.max_content_bytes, settings.spool.max_file_bytes)
    return {
        "data_dir": str(settings.data_dir.expanduser().resolve()),
        "spool_dir": str(settings.spool_dir),
        "exclude_tools": capture.exclude_tools,
        "exclude_projects": [
            str(Path(name).expanduser()) if name.startswith("~") else name
            for name in capture.exclude_projects
        ],
        "hook_max_bytes": min(capture.hook_max_bytes, most_bytes),  # what is larger would be refused
        "context_budget_ms": capture.context_budget_ms,
        "start_worker": capture.start_worker,
        "python": sys.executable,
        "worker_idle_exit_s": capture.worker_idle_exit_s,
    }
