"""What is measured: a scheduler of this process with a temporary store, or a server over HTTP."""

from __future__ import annotations

import http.client
import ipaddress
import json
import secrets
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from reverie.effect import Source
from reverie.errors import EvaluationError, InvalidSettingError
from reverie.face.scheduler import AsyncScheduler, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reverie.message import Message
    from reverie.settings import Settings

__all__ = ["Answer", "Subject", "check_server", "running_server", "temporary_store", "until_indexed"]

WAIT_S = 600.0
"""How long the messages of one user may take until they have ended; then the evaluation gives up."""


class Answer(NamedTuple):
    """The answer to one search."""

    sources: list[Sequence[Source]]
    """The sources of each hit, best hit first."""
    degraded: Sequence[str]
    """Why the search was not as good as it could be, one sentence each."""


class Subject(Protocol):
    """Takes in turns, and answers questions."""

    def user(self, name: str) -> str:
        """The id of the user that stands for a conversation."""
        ...

    def add(self, messages: Sequence[Message]) -> None:
        """Hand over messages of the label `add`."""
        ...

    def settle(self, users: Iterable[str]) -> None:
        """Wait until everything that these users have said can be found."""
        ...

    def search(self, question: str, user_id: str, limit: int) -> Answer:
        """Search the memories of one user."""
        ...


async def until_indexed(scheduler: AsyncScheduler) -> None:
    """Wait until nothing that was remembered is left to index."""
    indexed = getattr(scheduler.memory, "indexed", None)  # a store without vectors leaves nothing for later
    if indexed is not None:
        await indexed()


class _Here:
    """A scheduler of this process, with a worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._left: dict[str, list[str]] = {}
        """User → the ids of messages whose end was not awaited yet."""

    def user(self, name: str) -> str:
        return name

    def add(self, messages: Sequence[Message]) -> None:
        self.scheduler.submit_messages(messages)
        for message in messages:
            self._left.setdefault(message.user_id, []).append(message.item_id)

    def settle(self, users: Iterable[str]) -> None:
        for user in users:
            for item_id in self._left.pop(user, ()):
                item = self.scheduler.wait(item_id, user_id=user, timeout=WAIT_S)
                if item.status != "completed":
                    raise EvaluationError(f"a message was not remembered: {item.status}, {item.error}")
        self.scheduler.run(until_indexed(self.scheduler.asynchronous))

    def search(self, question: str, user_id: str, limit: int) -> Answer:
        found = self.scheduler.memory.search(question, user_id=user_id, limit=limit)
        return Answer([hit.sources for hit in found], getattr(found, "degraded", ()))


@contextmanager
def temporary_store(settings: Settings) -> Iterator[Subject]:
    """A store in a temporary folder, with the embedder and the limits of `settings`.

    The user's own queue, memories, handlers, services and alerts are left alone.
    """
    if settings.memory.store is not None:
        reason = "an evaluation writes only into a temporary store; take this setting away for it"
        raise InvalidSettingError("memory.store", settings.memory.store, reason)
    with tempfile.TemporaryDirectory(prefix="reverie-eval-") as folder:
        plain = type(settings)(data_dir=Path(folder))
        queue = plain.queue.model_copy(update={"url": f"sqlite:///{folder}/eval.db", "durability": "normal"})
        own = settings.model_copy(
            update={
                "data_dir": Path(folder),
                "queue": queue,
                "memory": settings.memory.model_copy(update={"url": None}),
                "upkeep": plain.upkeep.model_copy(update={"enabled": False}),  # no memory changes meanwhile
                **{name: getattr(plain, name) for name in ("app", "spool", "alerts", "scheduler", "events")},
                **{name: getattr(plain, name) for name in ("services", "labels", "scheduler_startup_mode")},
            }
        )
        with Scheduler(settings=own).used() as scheduler:
            scheduler.run(scheduler.runtime.start({"work"}))
            yield _Here(scheduler)


class _Server:
    """A running server, over its REST API, under user ids that nobody else has."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=WAIT_S + 30)
        self._address, self._base = address, parts.path.rstrip("/")
        self._prefix = f"eval-{secrets.token_hex(8)}"

    def user(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            body = {
                "user_id": message.user_id,
                "item_id": message.item_id,
                "session_id": message.session_id,
                "messages": json.loads(message.content),
            }
            self._ask("POST", "/product/add", body)

    def settle(self, users: Iterable[str]) -> None:
        for user in users:
            query = urlencode({"user_name": user, "timeout_seconds": WAIT_S, "poll_interval": 0.1})
            if self._ask("POST", f"/product/scheduler/wait?{query}")["timed_out"]:
                raise EvaluationError(
                    f"the server has not ended its work within {WAIT_S:g} s: has it a worker?"
                )
            states = self._ask("GET", f"/product/scheduler/status?{urlencode({'user_id': user})}")
            failed = [state["task_id"] for state in states if state["status"] != "completed"]
            if failed:
                raise EvaluationError(f"{len(failed)} messages were not remembered, the first is {failed[0]}")

    def search(self, question: str, user_id: str, limit: int) -> Answer:
        body = {"query": question, "user_id": user_id, "top_k": limit, "relativity": 0}
        found = self._ask("POST", "/product/search", body)
        memories = [memory["metadata"] for cube in found["text_mem"] for memory in cube["memories"]]
        sources = [msgspec.convert(memory["sources"], list[Source]) for memory in memories]
        return Answer(list(sources), found.get("degraded") or ())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, self._base + path, data, {"content-type": "application/json"})
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EvaluationError(f"{self._address} does not answer: {error}") from error
        if answer.status != 200:
            said = text.decode(errors="replace")[:300]
            raise EvaluationError(f"{self._address}{path} answered {answer.status}: {said}")
        return json.loads(text)["data"]


def check_server(address: str, *, anywhere: bool) -> None:
    """Refuse an address that is no web address, and one of another machine unless `anywhere` is allowed."""
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidSettingError("--server", address, "must be the address of a server, http://host:port")
    if not anywhere and not _is_loopback(parts.hostname):
        reason = "is not on this machine: --yes sends the conversations there all the same"
        raise InvalidSettingError("--server", address, reason)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def running_server(address: str) -> Iterator[Subject]:
    """A server at `http://host:port`; what is added stays there, under user ids that begin with `eval-`."""
    server = _Server(address)
    try:
        yield server
    finally:
        server.close()
