"""The breaker around every run: it pauses a label whose credential is refused, and resumes it after a probe.

The breaker costs nothing while no credential is refused: workers do not ask the shared state. The first run
that fails for its credential is reported to the shared state, which answers how long to pause. After the
pause, one message of one worker tries the credential; if it is accepted, all workers go on. Messages that
meet a pause are handed back, and no attempt is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from reverie.backends.breaker_state import BreakerRules, Grant, Rules, Signal, SignalKind
from reverie.base.logs import get_logger
from reverie.dispatch.answers import Failed
from reverie.errors import ReverieError
from reverie.failures import FailureKind
from reverie.outcome import Snooze

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from reverie.backends.interface import SharedState
    from reverie.dispatch.interface import Batch
    from reverie.dispatch.middleware import Outcomes, Proceed
    from reverie.dispatch.pauses import Pauses
    from reverie.dispatch.registry import Handler
    from reverie.dispatch.settings import WorkerSettings
    from reverie.message import Key, Lane, Message
    from reverie.outcome import Outcome

__all__ = ["Breaker", "breaker_key", "rules_of"]

log = get_logger(__name__)

REFUSED = {FailureKind.QUOTA, FailureKind.CREDENTIALS}
PROBE_MARGIN_MS = 30_000
"""A probe is given up this long after its handler's time-out, because its worker must be dead."""


class _Probe(NamedTuple):
    """A message that tests whether its credential is accepted again."""

    credential: str
    permit: str


def rules_of(settings: WorkerSettings) -> Rules:
    """The breaker's rules, from the worker's settings."""
    pause_ms, longest_ms = round(settings.pause_s * 1000), round(settings.max_pause_s * 1000)
    return Rules(
        limiter=None, breaker=BreakerRules(pause_ms=pause_ms, max_pause_ms=max(pause_ms, longest_ms))
    )


def breaker_key(label: str, credential: str) -> str:
    """The key of the shared state of a credential of a label."""
    return f"breaker:{quote(label, safe='')}:{quote(credential, safe='')}"


class Breaker:
    """Watches the batches of a worker: `run` for labels that have pauses, `heed` after runs that failed."""

    def __init__(self, shared: SharedState, pauses: Pauses, rules: Rules) -> None:
        self._shared = shared
        self._pauses = pauses
        self._rules = rules

    async def run(self, batch: Batch, proceed: Proceed) -> Outcomes:
        """Run the messages that no pause holds back."""
        held, probes = await self._sift(batch)
        running = [index for index in range(len(batch.claims)) if index not in held]
        part = replace(batch, claims=[batch.claims[index] for index in running])
        outcomes: Outcomes = [None] * len(running)
        try:
            if running:
                outcomes = await proceed(part)
        finally:
            outcomes = await self.heed(part, outcomes, probes)
        answers = held | dict(zip(running, outcomes, strict=True))
        return [answers[index] for index in range(len(batch.claims))]

    async def _sift(self, batch: Batch) -> tuple[dict[int, Outcome | None], dict[Key, _Probe]]:
        """The outcomes of the messages that are held back, by index, and the probes."""
        held: dict[int, Outcome | None] = {}
        probes: dict[Key, _Probe] = {}
        stopped: set[Lane] = set()
        for index, message in enumerate(batch.messages):
            if message.lane in stopped:
                held[index] = None
                continue
            credential = _credential(batch.handler, message)
            left_ms = self._pauses.left_ms(batch.label, credential)
            if left_ms == 0:
                left_ms = await self._try(batch.handler, message, credential, probes)
            if left_ms is not None:
                reason = f"paused: the credential {credential!r} of the label {batch.label!r} is refused"
                held[index] = Snooze(after=left_ms / 1000, reason=reason)
                if batch.handler.ordered:
                    stopped.add(message.lane)
        return held, probes

    async def _try(
        self, handler: Handler, message: Message, credential: str, probes: dict[Key, _Probe]
    ) -> int | None:
        """Ask whether a message may run after a pause: None if it may, else the milliseconds to wait."""
        lease_ms = round(handler.timeout_s * 1000) + PROBE_MARGIN_MS
        key = breaker_key(handler.label, credential)
        grant = await self._answer(self._shared.acquire(key, 1, lease_ms, self._rules))
        if grant.is_probe:
            self._pauses.pause(handler, credential, self._rules.look_again_ms)  # for the other messages
            probes[message.key] = _Probe(credential, grant.permit)
            return None
        if grant.granted:
            self._resume(handler, credential)
            return None
        self._pauses.pause(handler, credential, grant.wait_ms)
        return grant.wait_ms

    async def heed(
        self, batch: Batch, outcomes: Outcomes, probes: dict[Key, _Probe] | None = None
    ) -> Outcomes:
        """Report what the outcomes say about credentials; turn refusals into snoozes."""
        probes = probes or {}
        waits: dict[str, int] = {}
        heeded = list(outcomes)
        for index, (message, outcome) in enumerate(zip(batch.messages, outcomes, strict=True)):
            probe = probes.get(message.key)
            if isinstance(outcome, Failed) and outcome.failure.kind in REFUSED:
                credential = outcome.failure.credential or _credential(batch.handler, message)
                if probe is not None and probe.credential != credential:
                    await self._tried(batch.handler, probe, None)
                    probe = None
                if credential not in waits or probe is not None:
                    waits[credential] = await self._refused(batch.handler, credential, outcome, probe)
                heeded[index] = Snooze(after=waits[credential] / 1000, reason=outcome.reason)
            elif probe is not None:
                await self._tried(batch.handler, probe, outcome)
        return heeded

    async def _refused(self, handler: Handler, credential: str, outcome: Failed, probe: _Probe | None) -> int:
        """Pause a label for a refused credential; the answer is the pause in milliseconds."""
        after_s = outcome.failure.retry_after_s
        signal = Signal(SignalKind.QUOTA, None if after_s is None else round(after_s * 1000))
        wait_ms = (
            await self._report(handler.label, credential, "" if probe is None else probe.permit, signal)
        ).wait_ms
        self._pauses.pause(handler, credential, wait_ms)
        log.warning(
            "label.paused",
            label=handler.label,
            credential=credential,
            kind=str(outcome.failure.kind),
            cause=outcome.failure.cause,
            pause_s=wait_ms / 1000,
        )
        return wait_ms

    async def _tried(self, handler: Handler, probe: _Probe, outcome: Outcome | None) -> None:
        """Report a probe whose credential was not refused."""
        kind = _verdict(outcome)
        grant = await self._report(handler.label, probe.credential, probe.permit, Signal(kind))
        if kind is SignalKind.SUCCESS:
            self._resume(handler, probe.credential)
        else:
            self._pauses.pause(handler, probe.credential, grant.wait_ms)

    def _resume(self, handler: Handler, credential: str) -> None:
        self._pauses.resume(handler, credential)
        log.info("label.resumed", label=handler.label, credential=credential)

    async def _report(self, label: str, credential: str, permit: str, signal: Signal) -> Grant:
        return await self._answer(
            self._shared.report(breaker_key(label, credential), permit, signal, self._rules)
        )

    async def _answer(self, asked: Awaitable[Grant]) -> Grant:
        """The answer of the shared state; if it does not answer, a pause of this worker's own."""
        try:
            return await asked
        except ReverieError as error:
            log.warning("breaker.alone", error=str(error))
            return Grant(now=0, retry_at=self._rules.breaker.pause_ms)


def _verdict(outcome: Outcome | None) -> SignalKind:
    """What an outcome other than a refusal says about the credential."""
    if outcome is None:
        return SignalKind.RELEASE  # the message was not run
    if isinstance(outcome, Failed):
        if outcome.failure.kind is FailureKind.TRANSIENT:
            return SignalKind.FAILURE
        if outcome.failure.kind is FailureKind.BUG:
            return SignalKind.RELEASE  # the handler may have failed before it used the credential
    return SignalKind.SUCCESS


def _credential(handler: Handler, message: Message) -> str:
    """The name of the credential that a message uses."""
    if not callable(handler.credential):
        return handler.credential
    try:
        return str(handler.credential(message))
    except Exception as error:  # noqa: BLE001  the message has to run all the same
        log.warning("credential.unknown", label=handler.label, item_id=message.item_id, error=repr(error))
        return handler.label
