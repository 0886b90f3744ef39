"""The event bus: carries events, in batches, from the code that publishes them to the listeners.

A publisher never waits for a listener. A listener that does not keep up loses the oldest events, and can see
how many.
"""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from reverie.base.logs import get_logger
from reverie.observe.events import encode_events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from reverie.backends.interface import Broadcast
    from reverie.observe.events import Event, EventName

__all__ = ["EventBus", "Subscription", "Wanted"]

log = get_logger(__name__)

GATHER_S = 0.1
"""The longest pause between two deliveries to a listener, in seconds: events of the pause are one batch."""
MOST_WAITING = 100_000
"""The most events that wait for a listener; older ones are dropped and counted."""
MOST_SHARED = 10_000
"""A joined batch of more events than this is not kept for other listeners."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a listener wants: those that match every field that is given."""

    events: frozenset[str] | None = None
    labels: frozenset[str] | None = None
    user_id: str | None = None
    item_id: str | None = None

    def sift(self, events: list[Event]) -> list[Event]:
        """Return the events that the listener wants."""
        if self.events is None and self.labels is None and self.user_id is None and self.item_id is None:
            return events
        return [
            event
            for event in events
            if (self.events is None or event.event in self.events)
            and (self.labels is None or event.label in self.labels)
            and self.user_id in {None, event.user_id}
            and self.item_id in {None, event.item_id}
        ]


class _Joiner:
    """Joins batches into one that listeners of the same events share, because joining touches every event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: tuple[list[Event], ...] = ()
        self._events: tuple[Event, ...] = ()
        """The events of `_batches`, joined."""

    def join(self, batches: Collection[list[Event]]) -> tuple[int, tuple[Event, ...]]:
        """Join the first batches; return how many batches were joined, and their events."""
        with self._lock:
            known = self._batches
            if 0 < len(known) <= len(batches) and all(map(operator.is_, known, batches)):
                return len(known), self._events
            events = tuple(chain.from_iterable(batches))
            if len(events) <= MOST_SHARED:
                self._batches, self._events = tuple(batches), events
            return len(batches), events


class Subscription:
    """The events that wait for one listener. Safe from any thread."""

    def __init__(
        self,
        wanted: Wanted,
        most_waiting: int,
        joiner: _Joiner,
        wake: Callable[[], None],
        leave: Callable[[Subscription], None],
    ) -> None:
        """`wake` is called when events wait or the subscription is closed, `leave` when it is closed."""
        self._joiner = joiner
        self._leave = leave
        self.wanted = wanted
        self._most_waiting = most_waiting
        self._wake = wake
        self._lock = threading.Lock()
        self._batches: deque[list[Event]] = deque()
        self._waiting = 0
        self.dropped = 0
        """Events lost so far because the listener did not keep up."""
        self.closed = threading.Event()
        self._heard = threading.Event()
        self._heard.set()

    def put(self, events: list[Event]) -> None:
        """Add events for the listener; the oldest are dropped if too many wait."""
        if not (events := self.wanted.sift(events)):
            return
        with self._lock:
            first = not self._batches
            if first:
                self._heard.clear()
            self.dropped += max(0, len(events) - self._most_waiting)
            events = events[-self._most_waiting :]
            self._batches.append(events)
            self._waiting += len(events)
            while self._waiting > self._most_waiting and len(self._batches) > 1:
                lost = len(self._batches.popleft())
                self._waiting -= lost
                self.dropped += lost
        if first:  # otherwise the listener was woken before, and has not taken the earlier events yet
            self._wake()

    @property
    def is_empty(self) -> bool:
        """Whether no events wait."""
        return not self._batches

    def take(self) -> Sequence[Event]:
        """Take the events that wait, oldest first; the newest may be left for the next call."""
        with self._lock:
            taken, events = self._joiner.join(self._batches)
            for _ in range(taken):
                self._waiting -= len(self._batches.popleft())
            more = bool(self._batches)
        if more:
            self._wake()
        return events

    def took(self) -> None:
        """Note that the listener is done with the events it has taken."""
        with self._lock:
            if not self._batches:
                self._heard.set()

    def flush(self, seconds: float) -> bool:
        """Wait until the listener has heard everything published so far; return whether it has."""
        return self._heard.wait(seconds)

    def close(self) -> None:
        """End the subscription; events that wait are still delivered. Idempotent."""
        self._leave(self)
        self.closed.set()
        self._wake()


class EventBus:
    """The event bus of one process. Publishing costs nothing while nobody listens: check `active` first."""

    def __init__(self, broadcast: Broadcast) -> None:
        """`broadcast` carries the events to listeners in other processes."""
        self._broadcast = broadcast
        self._joiner = _Joiner()
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._outside: Subscription | None = None
        self._turning = threading.Lock()
        """Held while `_outside` changes."""

    @property
    def active(self) -> bool:
        """Whether anyone listens."""
        return bool(self._subscriptions) or self._broadcast.is_heard

    def wants(self, name: EventName) -> bool:
        """Whether anyone listens to events of this name; if not, they need not be built."""
        if self._broadcast.is_heard:
            return True
        wanted = [one.wanted.events for one in self._subscriptions]
        return any(names is None or name in names for names in wanted)

    def publish(self, events: list[Event]) -> None:
        """Hand events to all listeners. Never waits. Safe from any thread."""
        if self._broadcast.is_heard is (self._outside is None):
            self._follow_outside()
        for subscription in self._subscriptions:
            subscription.put(events)

    def subscribe(
        self,
        listener: Callable[[Sequence[Event]], object],
        wanted: Wanted | None = None,
        *,
        most_waiting: int = MOST_WAITING,
    ) -> Subscription:
        """Call `listener` with batches of events, on a thread of its own, until the subscription closes."""
        news = threading.Event()
        subscription = Subscription(wanted or Wanted(), most_waiting, self._joiner, news.set, self._remove)

        def deliver() -> None:
            while not subscription.closed.is_set():
                news.wait()
                news.clear()
                _call(listener, subscription)
                subscription.closed.wait(_rest_s())
            while not subscription.is_empty:
                _call(listener, subscription)

        self._add(subscription)
        threading.Thread(target=deliver, name="reverie-events", daemon=True).start()
        return subscription

    @asynccontextmanager
    async def stream(self, wanted: Wanted | None = None) -> AsyncIterator[AsyncIterator[Sequence[Event]]]:
        """Open a stream of batches of events; it ends when the context is left."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(news.set)

        subscription = Subscription(wanted or Wanted(), MOST_WAITING, self._joiner, wake, self._remove)
        self._add(subscription)
        try:
            yield _batches(subscription, news)
        finally:
            subscription.close()

    def flush(self, seconds: float) -> None:
        """Wait until all listeners have heard what was published so far, at most `seconds`."""
        until = time.monotonic() + seconds
        for subscription in self._subscriptions:
            subscription.flush(max(0.0, until - time.monotonic()))

    def rest(self) -> None:
        """Stop sending events to other processes, until the next event is published."""
        with self._turning:
            outside, self._outside = self._outside, None
            if outside is not None:
                outside.close()

    def _add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(one for one in self._subscriptions if one is not subscription)

    def _follow_outside(self) -> None:
        """Start or stop sending events to other processes, depending on whether one listens."""
        with self._turning:
            outside, heard = self._outside, self._broadcast.is_heard
            if outside is None and heard:
                self._outside = self.subscribe(lambda events: encode_events(events, self._broadcast.say))
            elif outside is not None and not heard:
                self._outside = None
                outside.close()


async def _batches(subscription: Subscription, news: asyncio.Event) -> AsyncIterator[Sequence[Event]]:
    while not subscription.closed.is_set():
        await news.wait()
        news.clear()
        if batch := subscription.take():
            subscription.took()
            yield batch
            await asyncio.sleep(_rest_s())


def _rest_s() -> float:
    """Seconds until all listeners wake together: the work is interrupted once, not once for each listener."""
    return GATHER_S - time.monotonic() % GATHER_S


def _call(listener: Callable[[Sequence[Event]], object], subscription: Subscription) -> None:
    try:
        if events := subscription.take():
            listener(events)
    except Exception:  # a failed call must not cost the listener its next events
        log.exception("event_listener.failed", listener=repr(listener))
    finally:
        subscription.took()
