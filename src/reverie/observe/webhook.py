"""Sending alerts to an address of yours: signed, retried, never in the way of anything else.

The headers follow the convention of Standard Webhooks: `webhook-id` is the same for all tries of a delivery,
`webhook-signature` is `v1,` and the Base64 of HMAC-SHA256 over `id.timestamp.body`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import queue
import random
import secrets
import ssl
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from reverie.errors import InvalidSettingError
from reverie.logs import get_logger
from reverie.version import __version__

if TYPE_CHECKING:
    from reverie.observe.rules import Alert
    from reverie.observe.settings import AlertSettings

__all__ = ["Webhook", "signature"]

log = get_logger(__name__)

MOST_WAITING = 100
"""Deliveries that wait at most; a later one is dropped, and the log says so."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def signature(secret: str, delivery_id: str, timestamp: int, body: bytes) -> str:
    """What a receiver compares with the header `webhook-signature`."""
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest()).decode()


class Webhook:
    """Delivers on a thread of its own, one after the other."""

    def __init__(self, settings: AlertSettings, first_pause_s: float = 1.0) -> None:
        """`first_pause_s` is the pause after the first try that failed; it doubles."""
        assert settings.webhook_url is not None
        self._url = urlsplit(settings.webhook_url)
        if self._url.scheme != "https" and not (
            self._url.scheme == "http" and self._url.hostname in LOOPBACK
        ):
            raise InvalidSettingError(
                "alerts.webhook_url", settings.webhook_url, "must be https://…, or http:// on this machine"
            )
        self._secret = settings.webhook_secret
        self._attempts = settings.webhook_attempts
        self._timeout_s = settings.webhook_timeout_s
        self._first_pause_s = first_pause_s
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def send(self, at: int, state: str, alerts: list[Alert]) -> None:
        """Let this be delivered soon."""
        body = msgspec.json.encode({"type": f"alert.{state}", "at": at, "alerts": alerts})
        try:
            self._waiting.put_nowait(body)
        except queue.Full:
            log.warning("webhook.dropped", waiting=MOST_WAITING, hint="the receiver does not answer")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver_all, name="reverie-webhook", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give up what is not delivered yet. Idempotent."""
        self._closed.set()

    def _deliver_all(self) -> None:
        while not self._closed.is_set():
            try:
                body = self._waiting.get(timeout=1)
            except queue.Empty:
                continue
            self._deliver(body)

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
            pause *= 2
        log.error("webhook.given_up", host=self._url.hostname, attempts=self._attempts)

    def _try(self, delivery_id: str, body: bytes) -> str | None:
        """None if it was taken, else what went wrong."""
        timestamp = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": f"reverie/{__version__}",
            "webhook-id": delivery_id,
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = signature(self._secret, delivery_id, timestamp, body)
        connection = self._connection()
        try:
            path = self._url.path or "/"
            connection.request(
                "POST", f"{path}?{self._url.query}" if self._url.query else path, body, headers
            )
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            connection.close()
        return None if 200 <= status < 300 else f"answered {status}"

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
