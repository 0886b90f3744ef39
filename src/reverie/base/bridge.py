"""The bridge: the one way from blocking code into the async core."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from reverie.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["Bridge", "blocking", "run_here", "submitting"]

P = ParamSpec("P")
LAST_WAIT_S = 5.0
"""How long calls that a close cuts off have to clean up, in seconds."""
R = TypeVar("R")
Inner = TypeVar("Inner")


class Bridge:
    """An event loop on a thread of its own, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` on the loop and wait for it."""
        loop = self.loop()
        if threading.current_thread() is self._thread:
            work.close()
            raise ClosedError(
                "a blocking call was made on the scheduler's own thread: use AsyncScheduler there"
            )
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError as error:
            raise ClosedError("the scheduler was closed during this call") from error

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; it is started if it does not run yet."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="reverie-core", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the loop and its thread. Idempotent; a later `run` starts anew."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            if unfinished := asyncio.all_tasks(loop):  # calls of other threads that will get no answer
                for task in unfinished:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(unfinished, timeout=LAST_WAIT_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def run_here(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the calling thread without an event loop; it must never wait for one."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: R = done.value
        return answer
    work.close()
    raise RuntimeError("this work waits for an event loop")


class _Blocking(Protocol):
    """A public object whose calls block until the async object behind it has answered."""

    _inner: Any
    _bridge: Bridge


def blocking(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The blocking form of an async method: same name, same arguments, same answer."""

    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = getattr(self._inner, method.__name__)  # by name, so that a subclass may refine it
        answer: R = self._bridge.run(bound(*args, **kwargs))
        return answer

    return functools.update_wrapper(call, method)


class _Submitting(_Blocking, Protocol):
    """A public object some of whose calls may run on the calling thread."""

    def _direct(self) -> Any:
        """The async object whose calls never wait for an event loop; None while there is none."""
        ...


def submitting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The blocking form of an async method that submits: on the calling thread, if the backend allows it."""
    by_bridge = blocking(method)

    def call(self: _Submitting, /, *args: P.args, **kwargs: P.kwargs) -> R:
        direct = self._direct()
        if direct is None:
            return by_bridge(self, *args, **kwargs)
        answer: R = run_here(getattr(direct, method.__name__)(*args, **kwargs))
        return answer

    return functools.update_wrapper(call, method)
