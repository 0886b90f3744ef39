"""Building the parts of a process from its settings.

A part that has several kinds has a table of them: `BACKENDS` and `STORES` by URL scheme, `EMBEDDERS`,
`RERANKERS`, `LANGUAGE_MODELS` and `PLACES` by name. Users name a part of their own by its import path,
`module:attribute`. A new kind is an entry in its table.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from reverie.access.governance import AllowAll
from reverie.backends.durability import replicas_of
from reverie.backends.memory import MemoryBackend
from reverie.backends.sqlite import SqliteBackend
from reverie.backends.sqlite.control import blank_turn
from reverie.backends.sqlite.mend import QUEUE_ROOM
from reverie.dispatch.options import HandlerOptions
from reverie.dispatch.processes import ProcessExecutor
from reverie.dispatch.registry import Registry
from reverie.dispatch.settings import LabelSettings
from reverie.errors import InvalidSettingError, UnknownSchemeError
from reverie.handlers.catalogue import CATALOGUE
from reverie.handlers.mem_read import lack_of_room
from reverie.memory.extraction import Extraction
from reverie.memory.housekeeping import retention_rules
from reverie.memory.interface import SharesDatabase
from reverie.memory.sqlite.mend import MEMORY_ROOM
from reverie.memory.sqlite.store import SqliteMemoryStore
from reverie.models.interface import Models
from reverie.models.onnx import OnnxEmbedder
from reverie.models.openai import OpenAIEmbedder
from reverie.models.openai_chat import PRESETS, OpenAIChat
from reverie.models.wordllama import WordLlamaEmbedder
from reverie.principal import Role
from reverie.storage.location import IN_MEMORY, sqlite_path
from reverie.storage.sqlite import Database
from reverie.triggers.settings import TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from reverie.access.governance import Governance
    from reverie.backends.interface import Backend
    from reverie.base.clock import Clock
    from reverie.base.service import Service
    from reverie.dispatch.interface import Executor
    from reverie.memory.interface import MemoryStore
    from reverie.models.interface import Embedder, LanguageModel, Reranker
    from reverie.settings import Settings
    from reverie.webhooks.settings import WebhookSettings

__all__ = [
    "BACKENDS",
    "EMBEDDERS",
    "LANGUAGE_MODELS",
    "PLACES",
    "RERANKERS",
    "ROOMS",
    "STORES",
    "Databases",
    "Modules",
    "handler_options",
    "new_backend",
    "new_governance",
    "new_models",
    "new_place",
    "new_registry",
    "new_services",
    "new_store",
    "trigger_options",
    "webhook_options",
]


DAY_MS = 24 * 3600 * 1000


class Modules(NamedTuple):
    """Components that a program brings as objects, in place of those that the settings name."""

    store: MemoryStore | None = None
    embedder: Embedder | None = None
    reranker: Reranker | None = None
    language_model: LanguageModel | None = None


ROOMS = (QUEUE_ROOM, MEMORY_ROOM)
"""The rooms that an SQLite file may have."""


class Databases:
    """The SQLite databases of a process. Rooms in the same file share one `Database`, its single writer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.queue
        self._by_path: dict[str, Database] = {}

    def at(self, url: str) -> Database:
        """The database of a URL. All spellings of one file share one `Database`."""
        path = sqlite_path(url)
        database = self._by_path.get(path)
        if database is None:
            database = self._by_path[path] = Database(
                path,
                self._settings.sqlite_durability,
                busy_timeout_s=self._settings.busy_timeout_s,
                read_timeout_s=self._settings.read_timeout_s,
                allow_network_fs=self._settings.allow_network_fs,
                reserve_bytes=self._settings.reserve_bytes,
            )
        return database

    @property
    def files(self) -> list[Database]:
        """The databases that are files, not in memory."""
        return [database for path, database in self._by_path.items() if path != IN_MEMORY]


# -- backends: URL scheme → queue, views, triggers -------------------------------------------------------


def _memory_backend(settings: Settings, clock: Clock, _: Databases, __: MemoryStore) -> Backend:
    return MemoryBackend(clock, settings.queue.limits())


def _sqlite_backend(settings: Settings, clock: Clock, databases: Databases, store: MemoryStore) -> Backend:
    database = databases.at(settings.queue_url)
    effects = store.effects_within(database) if isinstance(store, SharesDatabase) else None
    if effects is not None and isinstance(store, SharesDatabase):
        store.forget_turn = blank_turn
    of_labels = {name: own.max_attempts for name, own in settings.labels.items() if own.max_attempts}
    limits = msgspec.structs.replace(
        settings.queue.limits(), max_attempts=settings.worker.max_attempts, label_attempts=of_labels
    )
    return SqliteBackend(database, clock, limits, effects)


def _redis_backend(settings: Settings, _: Clock, __: Databases, ___: MemoryStore) -> Backend:
    queue = settings.queue
    redis = import_module("reverie.backends.redis")  # an optional extra, imported only when used
    backend: Backend = redis.RedisBackend(
        settings.queue_url,
        queue.limits(),
        prefix=queue.redis_prefix,
        allow_volatile=queue.allow_volatile,
        durability_assumed=queue.durability_assumed,
        durability=queue.durability,
        replication_timeout_s=queue.replication_timeout_s,
    )
    return backend


BACKENDS: dict[str, Callable[[Settings, Clock, Databases, MemoryStore], Backend]] = {
    "sqlite": _sqlite_backend,
    "redis": _redis_backend,
    "rediss": _redis_backend,
    "unix": _redis_backend,
    "memory": _memory_backend,
}
LOCAL = frozenset({"sqlite", "memory"})
"""URL schemes of backends without a server, which have no replicas."""


def new_backend(settings: Settings, clock: Clock, databases: Databases, store: MemoryStore) -> Backend:
    """The backend that `queue.url` names."""
    scheme = urlsplit(settings.queue_url).scheme
    if scheme not in BACKENDS:
        known = ["sqlite:///", *(f"{name}://" for name in BACKENDS if name != "sqlite")]
        raise UnknownSchemeError(settings.queue_url, known)
    if scheme in LOCAL and replicas_of(settings.queue.durability):
        reason = "only a server has replicas: use full or normal, or a queue on Redis"
        raise InvalidSettingError("queue.durability", settings.queue.durability, reason)
    return BACKENDS[scheme](settings, clock, databases, store)


# -- memory stores: URL scheme → store -------------------------------------------------------------------


def _sqlite_store(settings: Settings, clock: Clock, databases: Databases, models: Models) -> MemoryStore:
    return SqliteMemoryStore(databases.at(settings.memory_url), clock, settings.memory, models)


STORES: dict[str, Callable[[Settings, Clock, Databases, Models], MemoryStore]] = {
    "sqlite": _sqlite_store,
    "memory": _sqlite_store,
}


def new_store(settings: Settings, clock: Clock, databases: Databases, models: Models) -> MemoryStore:
    """The store of `memory.store` if it is set, else the one that `memory.url` names."""
    if settings.memory.store is not None:
        bring = resolve("memory.store", settings.memory.store)
        return cast("MemoryStore", bring(settings, clock))
    scheme = urlsplit(settings.memory_url).scheme
    if scheme not in STORES:
        raise UnknownSchemeError(settings.memory_url, ["sqlite:///path/to/file.db", "memory://"])
    return STORES[scheme](settings, clock, databases, models)


# -- models: name → embedder, reranker, language model ---------------------------------------------------


def _wordllama(_: Settings) -> Embedder:
    return WordLlamaEmbedder()


def _onnx(settings: Settings) -> Embedder:
    path = settings.memory.embedding_path
    if path is None:
        reason = "names the folder or the jar of the model that memory.embedding = onnx uses: set it, or "
        raise InvalidSettingError("memory.embedding_path", path, f"{reason}type reverie embeddings list")
    return OnnxEmbedder(path)


def _openai(settings: Settings) -> Embedder:
    memory = settings.memory
    return OpenAIEmbedder(
        memory.embedding_model,
        url=memory.embedding_url,
        api_key=memory.embedding_api_key,
        timeout_s=memory.embedding_timeout_s,
    )


def _none(_: Settings) -> None:
    return None


EMBEDDERS: dict[str, Callable[[Settings], Embedder | None]] = {
    "wordllama": _wordllama,
    "onnx": _onnx,
    "openai": _openai,
    "none": _none,
}
RERANKERS: dict[str, Callable[[Settings], Reranker | None]] = {"none": _none}


def _openai_chat(settings: Settings) -> LanguageModel:
    return OpenAIChat(settings.llm)


LANGUAGE_MODELS: dict[str, Callable[[Settings], LanguageModel | None]] = {
    "none": _none,
    **dict.fromkeys(PRESETS, _openai_chat),
}


def new_models(settings: Settings, modules: Modules = Modules()) -> Models:  # noqa: B008  it is immutable
    """The models that handlers and searches may call. Building them loads nothing."""
    embedding, reranker = settings.memory.embedding, settings.memory.reranker
    make = EMBEDDERS.get(embedding) or resolve("memory.embedding", embedding, EMBEDDERS)
    make_reranker = RERANKERS.get(reranker) or resolve("memory.reranker", reranker, RERANKERS)
    return Models(
        embedder=modules.embedder or make(settings),
        language_model=modules.language_model or LANGUAGE_MODELS[settings.llm.preset](settings),
        reranker=modules.reranker or make_reranker(settings),
        setting=embedding if modules.embedder is None else "",
    )


# -- places: name → where handlers run -------------------------------------------------------------------

PLACES: dict[str, Callable[[], Executor]] = {"process": ProcessExecutor}
"""Places outside of the worker's process; `loop` and `thread` are inside of it."""


def new_place(name: str) -> Executor:
    """The executor of a place outside of the worker's own process."""
    return _find_place("place", name)()


def _find_place(setting: str, name: str) -> Callable[[], Executor]:
    return PLACES.get(name) or resolve(setting, name, ["loop", "thread", *PLACES])


def new_registry(settings: Settings) -> Registry:
    """A registry with the handlers of the catalogue; the user's handlers are added later."""
    registry = Registry(settings.worker, settings.labels, _find_place)
    for entry in CATALOGUE:
        task = settings.scheduler.tasks.get(entry.label)  # the built-in handlers of timed tasks
        timed = LabelSettings() if task is None else trigger_options(task)
        options = LabelSettings(
            level=entry.level or timed.level,
            timeout_s=entry.timeout_s or timed.timeout_s,
            max_attempts=entry.max_attempts or timed.max_attempts,
            backoff_s=timed.backoff_s,
            max_backoff_s=timed.max_backoff_s,
            credential=settings.llm.credential if entry.asks_model else None,
            batch=entry.batch_size,
            role=None if entry.role is Role.READ_ONLY else entry.role.title,
        )
        registry.add(entry.label, entry.function, batch=entry.batch, options=options)
    return registry


def handler_options(settings: Settings, models: Models) -> HandlerOptions:
    """The settings that built-in handlers heed; `InvalidSettingError` if they leave no room in a prompt."""
    compression = settings.scheduler.tasks.get("memory_compression") or TaskSettings()
    options = HandlerOptions(
        has_language_model=models.has_language_model,
        buffers=models.has_language_model,
        reads_buffers=models.has_language_model and settings.buffer.processor == "engine",
        buffer_tokens=settings.buffer.max_tokens,
        buffer_age_s=settings.buffer.max_age_s,
        buffer_failures=settings.buffer.max_failures,
        buffer_lease_s=settings.buffer.lease_s,
        window_tokens=settings.llm.window_tokens,
        max_output_tokens=settings.llm.max_output_tokens,
        working_limit=settings.memory.working_limit,
        retention=retention_rules(settings.memory.retention_s),
        long_term_limit=settings.memory.long_term_limit,
        archive_after_ms=round(settings.upkeep.archive_after_days * DAY_MS),
        similarity=settings.upkeep.similarity,
        upkeep_batch=settings.upkeep.batch,
        group_size=settings.upkeep.group_size,
        compression_interval_s=compression.interval_s,
        observation_tokens_per_hour=settings.capture.observation_tokens_per_hour,
        session_timeout_ms=round(settings.capture.session_timeout_s * 1000),
    )
    if models.has_language_model:
        for cube in ("", *settings.extraction.cubes):
            extraction = settings.extraction.of_cube(cube)
            problem = lack_of_room(options, extraction)
            if problem is not None and extraction != Extraction():
                place = f"extraction.cubes.{cube}" if cube else "extraction"
                raise InvalidSettingError(place, "…", problem)
    return options


def trigger_options(task: TaskSettings) -> LabelSettings:
    """The handler options for the runs of a trigger."""
    return LabelSettings(
        level=task.level,
        timeout_s=task.timeout,
        max_attempts=task.max_retries,
        backoff_s=task.retry.backoff_s,
        max_backoff_s=task.retry.max_backoff_s,
    )


def webhook_options(webhooks: WebhookSettings, concurrency: int) -> LabelSettings:
    """The handler options for deliveries to webhooks: the name is resolved, then the request is made."""
    return LabelSettings(
        concurrency=concurrency,
        timeout_s=2 * webhooks.timeout_s + WEBHOOK_SLACK_S,
        max_attempts=webhooks.attempts,
        backoff_s=webhooks.backoff_s,
        role="admin",
    )


WEBHOOK_SLACK_S = 30.0
"""Seconds that a delivery may take besides its two waits."""


# -- parts of the user's own -----------------------------------------------------------------------------


def new_services(settings: Settings) -> list[Service]:
    """The services that the setting `services` names, in its order."""
    return [cast("Service", resolve("services", path)()) for path in settings.services]


def new_governance(settings: Settings) -> Governance:
    """What decides who may read which memory."""
    if settings.governance is None:
        return AllowAll()
    return cast("Governance", resolve("governance", settings.governance)())


def resolve(setting: str, path: str, known: Any = ()) -> Callable[..., Any]:
    """The callable at an import path; `InvalidSettingError` if there is none."""
    names = f"{', '.join(known)}, or " if known else ""
    if ":" not in path:
        raise InvalidSettingError(setting, path, f"must be {names}an import path such as module:attribute")
    try:
        found: Callable[..., Any] = resolve_name(path)
    except Exception as error:
        raise InvalidSettingError(setting, path, f"cannot be imported: {error!r}") from error
    if not callable(found):
        raise InvalidSettingError(setting, path, "must be something that can be called to make one")
    return found
