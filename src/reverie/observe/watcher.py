"""The alert watcher: checks the alert rules regularly, and tells when an alert begins or is over."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from reverie.base.logs import get_logger
from reverie.base.service import BREAKER_AFTER, LoopService
from reverie.errors import BackendUnavailableError
from reverie.observe.events import Event, EventName
from reverie.observe.health import Pace, look
from reverie.observe.rules import OF_ONE_PROCESS, SERVICE_FAILING, check, failing_services

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock
    from reverie.models.budgets import SpentBudget
    from reverie.observe.bus import EventBus
    from reverie.observe.health import Health
    from reverie.observe.rules import Alert
    from reverie.observe.settings import AlertSettings
    from reverie.observe.trigger_rules import TriggerHealth
    from reverie.observe.webhook import Webhook

__all__ = ["AlertWatcher"]

log = get_logger(__name__)


class AlertWatcher(LoopService):
    """Checks the alert rules for one process; the alerts that hold now are in `current`."""

    name = "alert watcher"

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        settings: AlertSettings,
        bus: EventBus,
        *,
        services: Callable[[], Iterable[LoopService]] = tuple,
        worker: Callable[[], str | None] = lambda: None,
        webhook: Webhook | None = None,
        triggers: Callable[[], Awaitable[TriggerHealth | None]] | None = None,
        abandoned: Callable[[], Alert | None] = lambda: None,
        spent: Callable[[], Sequence[SpentBudget]] = tuple,
        others: Callable[[], Sequence[Alert]] = tuple,
    ) -> None:
        """`services` returns the services of this process, which are watched as well.

        `worker` returns the name of its worker, `triggers` the health of the timed tasks, `abandoned` the
        alert about threads that hang in this process, if there are too many, `spent` the budgets of the
        language model that this process has found spent today, `others` further alerts. If several
        processes watch one queue, only the one with the first live worker tells of alerts; without a live
        worker, all do.
        """
        super().__init__()
        self._backend = backend
        self._clock = clock
        self._settings = settings
        self._bus = bus
        self._services = services
        self._webhook = webhook
        self._triggers = triggers
        self._abandoned = abandoned
        self._spent = spent
        self._others = others
        self._worker = worker
        self._pace = Pace()
        self.current: dict[str, Alert] = {}
        """Alert id → alert."""
        self._leads = True
        self._told: dict[str, Alert] = {}
        """Alert id → alert, for alerts that this process has told of."""

    async def look(self) -> tuple[Health, list[Alert]]:
        """Return the health of the queue now, and the alerts that hold."""
        health = await look(self._backend, self._clock, self._pace)
        now = self._clock.now()
        open_breakers = await self._backend.shared.open_breakers()
        breakers = {
            _breaker_name(key): max(0.0, (until - now) / 1000) for key, until in open_breakers.items()
        }
        triggers = None if self._triggers is None else await self._triggers()
        alerts = check(
            health,
            self._settings,
            breakers=breakers,
            services=self._failing(),
            triggers=triggers,
            abandoned=self._abandoned(),
            spent=self._spent(),
            others=self._others(),
        )
        return health, alerts

    async def _turn(self) -> None:
        await self.watch()
        await self._rest(self._clock, self._settings.check_s)

    async def watch(self) -> None:
        """Check the rules once, and tell which alerts have begun and which are over."""
        try:
            _, alerts = await self.look()
        except BackendUnavailableError:  # the queue is unknown, but the services of this process are not
            others = [alert for alert in self.current.values() if alert.rule != SERVICE_FAILING]
            self._compare([*others, *failing_services(self._failing())])
            raise
        workers = await self._backend.views.workers()
        self._leads = not workers or workers[0].worker == self._worker()
        self._compare(alerts)

    def _failing(self) -> dict[str, int]:
        return {one.name: one.failures for one in self._services() if one.failures >= BREAKER_AFTER}

    def _compare(self, alerts: list[Alert]) -> None:
        """Tell which alerts have begun and which are over.

        A process that begins to lead tells of all alerts that hold, because perhaps no other process has.
        """
        self.current = {alert.id: alert for alert in alerts}
        mine = {name: one for name, one in self.current.items() if self._leads or one.rule in OF_ONE_PROCESS}
        begun = [alert for name, alert in mine.items() if name not in self._told]
        over = [alert for name, alert in self._told.items() if name not in self.current]
        self._told = mine
        for alert in begun:
            say = log.error if alert.level == "error" else log.warning
            say("alert", rule=alert.rule, subject=alert.subject, message=alert.message, remedy=alert.remedy)
        for alert in over:
            log.info("alert.over", rule=alert.rule, subject=alert.subject)
        self._tell(begun, "begun")
        self._tell(over, "over")

    def _tell(self, alerts: list[Alert], state: str) -> None:
        if not alerts:
            return
        at = self._clock.now()
        if self._bus.active:
            events = [
                Event(EventName.ALERT, at, alert.subject, status=f"{alert.rule} {state}", error=alert.message)
                for alert in alerts
            ]
            self._bus.publish(events)
        if self._webhook is not None:
            self._webhook.send(at, state, alerts)


def _breaker_name(key: str) -> str:
    """Turn the shared key of a breaker into `label` or `label/credential`."""
    _, label, credential = (*map(unquote, key.split(":")), "", "")[:3]
    return label if credential in {"", label} else f"{label}/{credential}"
