"""Metrics in the format of Prometheus. Their labels are bounded: no label contains a user."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from reverie.base.escapes import escape
from reverie.observe.bus import Wanted
from reverie.observe.events import EventName
from reverie.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from reverie.backends.views import LabelState
    from reverie.observe.bus import EventBus
    from reverie.observe.events import Event
    from reverie.observe.health import Health
    from reverie.observe.rules import Alert

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS_MS = (
    1,
    2.5,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1000,
    2500,
    5000,
    10_000,
    30_000,
    60_000,
    300_000,
    3_600_000,
)
OTHER = "other"
"""The name under which all labels beyond the first `metric_labels` are counted."""


class Metrics:
    """Counts durations from events, and renders them together with the state of the queue."""

    def __init__(self, bus: EventBus, most_labels: int) -> None:
        """Subscribe to finish events; `most_labels` is how many labels are told apart."""
        self._most_labels = most_labels
        self._known: dict[str, str] = {}
        self._waits = _Durations("reverie_queue_wait_seconds", "From coming into the queue to the claim.")
        self._runs = _Durations("reverie_exec_seconds", "How long handlers took.")
        self._subscription = bus.subscribe(self._hear, Wanted(events=frozenset({EventName.FINISH})))

    def close(self) -> None:
        """End the subscription."""
        self._subscription.close()

    def render(
        self,
        labels: list[LabelState],
        health: Health,
        alerts: Iterable[Alert],
        *,
        abandoned: int = 0,
        damaged_removed: int = 0,
    ) -> bytes:
        """Render all metrics as a Prometheus scraper reads them.

        In this process, `abandoned` threads hang, and `damaged_removed` damaged files of the spool were
        removed.
        """
        registry = CollectorRegistry(auto_describe=False)
        families = [*self._queue(labels), *_state(health, alerts), *self._own(abandoned, damaged_removed)]
        registry.register(_Collector(families))
        return generate_latest(registry)

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            label = self._name(event.label)
            if event.queue_wait_ms is not None:
                self._waits.observe(label, event.queue_wait_ms)
            if event.exec_duration_ms is not None:
                self._runs.observe(label, event.exec_duration_ms)

    def _name(self, label: str) -> str:
        """The name to count a label under: the label, escaped, or `other` if there are too many."""
        if label not in self._known and len(self._known) < self._most_labels:
            self._known[label] = escape(label)
        return self._known.get(label, OTHER)

    def _queue(self, labels: list[LabelState]) -> Iterator[Metric]:
        messages = GaugeMetricFamily("reverie_messages", "Messages by status.", labels=["label", "status"])
        completed = CounterMetricFamily("reverie_completed", "Messages completed so far.", labels=["label"])
        failed = CounterMetricFamily(
            "reverie_failed", "Messages that failed for good so far.", labels=["label"]
        )
        counts: dict[tuple[str, str], int] = {}
        ever: dict[str, tuple[int, int]] = {}
        for state in labels:
            name = self._name(state.label)
            for status in ("waiting", "in_progress", "completed", "failed", "cancelled"):
                counts[name, status] = counts.get((name, status), 0) + getattr(state, status)
            done, lost = ever.get(name, (0, 0))
            ever[name] = (done + state.completed_ever, lost + state.failed_ever)
        for key, value in counts.items():
            messages.add_metric(key, value)
        for name, (done, lost) in ever.items():
            completed.add_metric([name], done)
            failed.add_metric([name], lost)
        yield from (messages, completed, failed)

    def _own(self, abandoned: int, damaged_removed: int) -> Iterator[Metric]:
        yield self._waits.family()
        yield self._runs.family()
        hanging = GaugeMetricFamily(
            "reverie_abandoned_threads", "Threads of sync handlers that hang in this process."
        )
        hanging.add_metric([], abandoned)
        yield hanging
        removed = CounterMetricFamily(
            "reverie_spool_damaged_removed", "Damaged files of the spool that were removed to make room."
        )
        removed.add_metric([], damaged_removed)
        yield removed
        dropped = CounterMetricFamily("reverie_events_dropped", "Events that metrics have missed.")
        dropped.add_metric([], self._subscription.dropped)
        yield dropped
        build = GaugeMetricFamily("reverie_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build


class _Histogram:
    """The counts by bucket and the sum of the durations of one label."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_s = 0.0


class _Durations:
    """One histogram for each label. One thread observes, others read: no reader sees half a histogram."""

    def __init__(self, name: str, meaning: str) -> None:
        self._name = name
        self._meaning = meaning
        self._by_label: dict[str, _Histogram] = {}

    def observe(self, label: str, milliseconds: float) -> None:
        histogram = self._by_label.get(label)
        if histogram is None:
            histogram = self._by_label[label] = _Histogram()
        histogram.counts[bisect_left(BOUNDS_MS, milliseconds)] += 1
        histogram.total_s += milliseconds / 1000

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._meaning, labels=["label"])
        bounds = [*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf"]
        for label, histogram in list(self._by_label.items()):
            buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
            family.add_metric([label], buckets, histogram.total_s)
        return family


class _Collector:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _state(health: Health, alerts: Iterable[Alert]) -> Iterator[Metric]:
    for name, meaning, value in (
        (
            "reverie_oldest_waiting_seconds",
            "Age of the oldest message that could run.",
            health.oldest_waiting_age,
        ),
        ("reverie_oldest_in_progress_seconds", "Age of the oldest claim.", health.oldest_processing_age),
        ("reverie_workers", "Workers that are alive.", health.workers),
        ("reverie_unhandled_labels", "Labels with work that nobody handles.", len(health.unhandled_labels)),
    ):
        family = GaugeMetricFamily(name, meaning)
        family.add_metric([], value)
        yield family
    raised = GaugeMetricFamily("reverie_alerts", "Alerts that hold now.", labels=["rule", "level"])
    counts: dict[tuple[str, str], int] = {}
    for alert in alerts:
        counts[alert.rule, alert.level] = counts.get((alert.rule, alert.level), 0) + 1
    for key, count in counts.items():
        raised.add_metric(key, count)
    yield raised
