"""The extra duties of a worker that runs in the background."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from reverie.cli.daemon.launch import here
from reverie.cli.daemon.log import keep_small
from reverie.cli.daemon.processes import start_of
from reverie.cli.daemon.state import Daemon, DaemonState, whole_url
from reverie.errors import DaemonError
from reverie.observe.events import EventName
from reverie.observe.rules import OF_ONE_PROCESS
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.cli.reload import Reloaded
    from reverie.dispatch.settings import WorkerSettings
    from reverie.face.scheduler import Scheduler
    from reverie.observe.events import Event

__all__ = ["Background", "tell_ready"]


class Background:
    """Writes down which process the worker is, when it takes work and when it ends; keeps its log small."""

    def __init__(self, given: str, options: dict[str, str]) -> None:
        """`given` comes from `worker start`: the lock, a pipe to report readiness, and the data folder."""
        lock, ready, folder = given.split(",", 2)
        self._lock, self._ready = int(lock), int(ready)
        self.inherit(False)
        self._daemon = Daemon(Path(folder))
        self._lock_of_state = threading.Lock()
        self._ended = False
        launch, pid = here(options), os.getpid()
        self._state = DaemonState(
            pid=pid,
            process_start=start_of(pid) or "",
            version=__version__,
            started_at=_now(),
            folder=launch.folder,
            options=launch.options,
            environment=launch.environment,
        )

    def __enter__(self) -> Self:
        try:
            self._daemon.write(self._state)
        except OSError as error:
            raise DaemonError(f"cannot write in the data folder {self._daemon.folder}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock_of_state:
            self._ended = True
            self._daemon.forget()

    def _write(self, **changes: Any) -> None:
        with self._lock_of_state, suppress(OSError):  # a full disk must not end the worker
            if not self._ended:
                self._state = msgspec.structs.replace(self._state, **changes)
                self._daemon.write(self._state)

    def keep_log(self, settings: WorkerSettings) -> None:
        """Keep the log as small as the settings say."""
        keep_small(self._daemon.log, settings.log_max_bytes, settings.log_files)

    def ready(self) -> None:
        """Write down and report that the worker takes work."""
        self._write(ready_at=_now())
        tell_ready(self._ready)

    def watch(self, scheduler: Scheduler) -> None:
        """Write down the worker's queue, and which of its own duties fail, for `reverie doctor`."""
        self._write(queue=whole_url(scheduler.runtime.settings.queue_url))
        watcher = scheduler.runtime.watcher

        def heard(_: Sequence[Event]) -> None:
            alerts = list(watcher.current.values())
            self._write(alerts=[alert for alert in alerts if alert.rule in OF_ONE_PROCESS])

        scheduler.observe.subscribe(heard, events=[EventName.ALERT])

    async def reload(self, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        """Read the settings anew, and write down the result for `reverie config reload`."""
        answer = await reload()
        self._write(reloads=self._state.reloads + 1, reloaded=answer)

    def inherit(self, yes: bool) -> None:
        """Say whether a process that this one becomes or starts gets the lock and the pipe."""
        for descriptor in (self._lock, self._ready):
            os.set_inheritable(descriptor, yes)


def tell_ready(descriptor: int) -> None:
    """Tell the process that started this one that it takes work."""
    with suppress(BrokenPipeError):  # the starter no longer waits, or this process was started anew
        os.write(descriptor, b"1")


def _now() -> int:
    return time.time_ns() // 1_000_000
