"""`mem_scheduler`: one scheduler for the whole process, ready to use without set-up.

It follows the settings of the process and starts a worker at the first submit. When the program ends, it
waits until the messages that this process has submitted are done.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  its exit hook must be registered before ours
import threading
from typing import TYPE_CHECKING

from reverie.base.logs import get_logger
from reverie.errors import ReverieError, UnknownItemError, WaitTimeoutError
from reverie.face.scheduler import AsyncScheduler, Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.backends.moves import Submitted
    from reverie.message import Key, Message
    from reverie.runtime import Runtime

__all__ = ["GlobalScheduler", "mem_scheduler"]

log = get_logger(__name__)

REMINDER_S = 10.0
"""How often a program that waits at its end logs which message it waits for, in seconds."""


class _LazyAsyncScheduler(AsyncScheduler):
    """Starts a worker at the first submit, and remembers submitted messages that have no later due time."""

    submitted: dict[Key, str]

    def _bind(self, runtime: Runtime) -> None:
        super()._bind(runtime)
        self._submit = self._start_and_submit

    async def _start_and_submit(
        self, messages: Sequence[Message], *, spools: bool = False
    ) -> list[Submitted]:
        await self.start()
        answers = await self.runtime.intake.submit(messages, spools=spools)
        self.submitted.update((message.key, message.label) for message in messages if message.due is None)
        return answers


class GlobalScheduler(Scheduler):
    """A scheduler that starts by itself and drains at exit."""

    _inner_class = _LazyAsyncScheduler
    _submits_directly = False

    def __init__(self, url: str | None = None) -> None:
        """See `Scheduler`."""
        super().__init__(url)
        self._submitted: dict[Key, str] = {}
        self._inner.submitted = self._submitted  # type: ignore[attr-defined]
        # atexit would be too late: by then the interpreter's thread pools, which handlers may use, are gone.
        threading._register_atexit(self._drain)  # type: ignore[attr-defined]  # noqa: SLF001

    def _drain(self) -> None:
        """Wait for the messages that this process has submitted and has handlers for, then stop cleanly."""
        try:
            for key, label in self._submitted.items():
                if self.runtime.registry.get(label) is not None:
                    self._wait_for(key)
        except KeyboardInterrupt:
            log.warning(
                "exit.interrupted", hint="what has not run stays in the queue and runs at the next start"
            )
        except ReverieError as error:
            log.warning("exit.not_drained", error=str(error))
        finally:
            if self._submitted:
                self.close()

    def _wait_for(self, key: Key) -> None:
        while True:
            try:
                self.wait(key.item_id, user_id=key.user_id, timeout=REMINDER_S)
            except WaitTimeoutError as waiting:
                log.warning(
                    "exit.waiting", item_id=key.item_id, status=waiting.status, hint="Ctrl-C leaves it queued"
                )
            except UnknownItemError:
                return  # the status has expired: the message ended long ago
            else:
                return


mem_scheduler = GlobalScheduler()
