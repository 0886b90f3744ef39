"""The webhook: sends alerts to an address of the user, signed and retried, without delaying other work."""

from __future__ import annotations

import random
import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from reverie.base.escapes import escape_json
from reverie.base.logs import get_logger
from reverie.base.posting import post
from reverie.errors import InvalidSettingError, redacted

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from reverie.observe.rules import Alert
    from reverie.observe.settings import AlertSettings

__all__ = ["Webhook"]

log = get_logger(__name__)

MOST_WAITING = 100
"""The most deliveries that wait; a further one is dropped, and the log says so."""
MAX_PAUSE_S = 60.0
"""The longest pause between two tries."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class Webhook:
    """Delivers alerts on a thread of its own, one delivery after the other."""

    def __init__(self, settings: AlertSettings, first_pause_s: float = 1.0) -> None:
        """`first_pause_s` is the pause after the first failed try; it doubles, up to a minute."""
        assert settings.webhook_url is not None
        self._url = _checked(settings.webhook_url)
        self._secret = settings.webhook_secret
        self._attempts = settings.webhook_attempts
        self._timeout_s = settings.webhook_timeout_s
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def send(self, at: int, state: str, alerts: list[Alert]) -> None:
        """Queue a delivery of alerts that have begun or are over."""
        body = escape_json(msgspec.json.encode({"type": f"alert.{state}", "at": at, "alerts": alerts}))
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                log.warning("webhook.dropped", waiting=MOST_WAITING, hint="the receiver does not answer")
                return
            self._waiting.append(body)
            if self._thread is None:
                thread = threading.Thread(target=self._deliver_all, name="reverie-webhook", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Give up what is not delivered yet. Idempotent."""
        self._closed.set()

    def _deliver_all(self) -> None:
        """Deliver until nothing waits."""
        while True:
            with self._lock:
                if not self._waiting or self._closed.is_set():
                    self._thread = None
                    return
                body = self._waiting.popleft()
            try:
                self._deliver(body)
            except Exception:  # the next delivery must still be tried
                log.exception("webhook.given_up", host=self._url.hostname)

    def _deliver(self, body: bytes) -> None:
        delivery_id = f"msg_{secrets.token_hex(12)}"
        pause = self._first_pause_s
        for attempt in range(1, self._attempts + 1):
            problem = self._try(delivery_id, body)
            if problem is None:
                return
            log.warning("webhook.failed", host=self._url.hostname, attempt=attempt, error=problem)
            if attempt == self._attempts or self._closed.wait(pause * random.uniform(0.5, 1)):  # noqa: S311
                break
            pause = min(2 * pause, MAX_PAUSE_S)
        log.error("webhook.given_up", host=self._url.hostname, attempts=self._attempts)

    def _try(self, delivery_id: str, body: bytes) -> str | None:
        """Try a delivery once; return None if the receiver accepted it, else what went wrong."""
        posted = post(
            self._url, body, delivery_id=delivery_id, secret=self._secret, timeout_s=self._timeout_s
        )
        return posted.problem


def _checked(address: str) -> SplitResult:
    """Parse the address; refuse one that alerts may not be sent to."""
    try:
        url = urlsplit(address)
        encrypted, here = url.scheme == "https", url.scheme == "http" and url.hostname in LOOPBACK
        allowed = bool(url.hostname) and url.port != 0 and address.isascii() and (encrypted or here)
    except ValueError:  # the port is not a number
        allowed = False
    if not allowed:
        reason = "must be https://…, or http:// on this machine"
        raise InvalidSettingError("alerts.webhook_url", redacted(address), reason)
    return url
