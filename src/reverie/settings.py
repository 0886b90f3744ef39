"""All settings of a process: defaults, `reverie.yaml`, `REVERIE_*` variables, arguments; the later wins."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import Field

from reverie.backends.settings import QueueSettings
from reverie.capture.settings import CaptureSettings, SpoolSettings
from reverie.configuration.fields import PREFIX, Place
from reverie.configuration.page import page
from reverie.configuration.reading import Reading, read
from reverie.configuration.section import Section
from reverie.configuration.sources import from_arguments, from_environment, from_file, from_names
from reverie.dispatch.settings import LabelSettings, WorkerSettings
from reverie.memory.buffers import BufferSettings
from reverie.memory.extraction import ExtractionSettings
from reverie.memory.settings import MemorySettings
from reverie.memory.upkeep import UpkeepSettings
from reverie.message import MessageLimits
from reverie.models.settings import LlmSettings
from reverie.observe.settings import AlertSettings, EventSettings
from reverie.storage.location import plain_url, sqlite_path
from reverie.triggers.settings import TriggerSettings
from reverie.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from reverie.configuration.sources import Source

__all__ = [
    "DEFAULT_NAMES",
    "OTHER_NAMES",
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "check_file",
    "default_settings_file",
    "environment_of",
    "load_own_settings",
    "load_settings",
    "read_settings",
    "settings_file",
    "settings_page",
]

FILE_NAME = "reverie.yaml"
DEFAULT_NAMES: dict[str, Place] = {"MEMSCHEDULER_STREAM_KEY_PREFIX": ("queue", "redis_prefix")}
"""Variables that replace a default: a file wins over them."""
OTHER_NAMES: dict[str, Place] = {
    "API_SCHEDULER_ON": ("server", "run_worker"),
    "MEMSCHEDULER_USE_REDIS_QUEUE": ("queue", "use_redis_queue"),
    "MEMSCHEDULER_REDIS_HOST": ("queue", "redis_host"),
    "MEMSCHEDULER_REDIS_PORT": ("queue", "redis_port"),
    "MEMSCHEDULER_REDIS_DB": ("queue", "redis_db"),
    "MEMSCHEDULER_REDIS_USERNAME": ("queue", "redis_username"),
    "MEMSCHEDULER_REDIS_PASSWORD": ("queue", "redis_password"),
    "MEMSCHEDULER_REDIS_SSL": ("queue", "redis_ssl"),
    "MEMSCHEDULER_REDIS_STREAM_KEY_PREFIX": ("queue", "redis_prefix"),
}
"""Variables without the prefix: they win over a file, and `REVERIE_*` variables win over them."""


class ServerSettings(Section):
    """The HTTP server."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; only loopback is allowed without API keys"
    )
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    run_worker: bool = Field(default=True, description="whether the server runs handlers too")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1, description="bytes of one request; more is refused")
    receive_timeout_s: float = Field(
        30,
        gt=0,
        description="seconds in which the headers of a request must arrive, and then its body; else it is "
        "refused and its connection closed",
    )
    allowed_hosts: list[str] = Field(
        [],
        description="names, besides loopback ones, under which requests and web pages may reach the server",
    )
    requests_per_s: float | None = Field(
        None,
        gt=0,
        description="requests a second of each API key in each server process; more are refused (429); "
        "unset: no limit; a key can have one of its own",
    )
    sync_timeout_s: float = Field(
        30,
        gt=0,
        description="seconds that a request which asks to wait (async_mode = sync) waits for its work; then "
        "it is answered, and the work goes on",
    )
    tls_certificate: Path | None = Field(
        None, description="file of the TLS certificate, with its chain, in PEM; unset: no TLS"
    )
    tls_key: Path | None = Field(
        None, description="file of the certificate's private key; unset: it is in the file of the certificate"
    )


class LimitSettings(Section):
    """What a message may be at most."""

    max_content_bytes: int = Field(1024 * 1024, ge=1, description="bytes of a message's content")
    max_info_bytes: int = Field(
        64 * 1024, ge=2, description="bytes of a message's info as JSON; each of its memories has a copy"
    )
    max_json_depth: int = Field(32, ge=1, description="levels of objects and lists inside each other")
    max_id_bytes: int = Field(512, ge=1, description="bytes of any id, label, name or key")
    max_dependencies: int = Field(100, ge=0, description="items that one message may depend on")

    def for_messages(self) -> MessageLimits:
        """These limits as the value that messages are checked with."""
        return MessageLimits(**self.model_dump())


class Settings(Section):
    """Everything that can be set. In the environment `REVERIE_QUEUE__URL` is `queue: {url: …}`."""

    app: str | None = Field(None, description="module:attribute of the scheduler that holds your handlers")
    scheduler_startup_mode: Literal["thread", "process"] = Field(
        "thread", description="where a scheduler that is started runs its handlers: here, or in processes"
    )
    data_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("reverie")),
        description="folder of reverie.db; default: the platform's user data folder",
    )
    documents_folder: Path | None = Field(
        None, description="folder of the text files that doc_path may name; unset: no file is read"
    )
    queue: QueueSettings = Field(default_factory=QueueSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    buffer: BufferSettings = Field(default_factory=BufferSettings)
    extraction: ExtractionSettings = Field(default_factory=ExtractionSettings)
    upkeep: UpkeepSettings = Field(default_factory=UpkeepSettings)
    llm: LlmSettings = Field(default_factory=LlmSettings)
    spool: SpoolSettings = Field(default_factory=SpoolSettings)
    capture: CaptureSettings = Field(default_factory=CaptureSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    events: EventSettings = Field(default_factory=EventSettings)
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings)
    scheduler: TriggerSettings = Field(default_factory=TriggerSettings)
    services: list[str] = Field(
        [],
        description="module:factory of services of yours, called without arguments; they run with the worker",
    )
    governance: str | None = Field(
        None,
        description="module:factory of what decides who may read which memory, called without arguments; "
        "unset: callers may read what their keys may touch",
    )
    labels: dict[str, LabelSettings] = Field(
        default_factory=dict, description="how the messages of a label are run"
    )

    @property
    def queue_url(self) -> str:
        """The URL of the queue, where messages wait."""
        if self.queue.url:
            return plain_url(self.queue.url)
        return self.queue.redis_url if self.queue.use_redis_queue else self._default_url

    @property
    def memory_url(self) -> str:
        """The URL of the store of memories."""
        if self.memory.url:
            return plain_url(self.memory.url)
        same = self.queue_url.startswith(("sqlite:", "memory:"))
        return self.queue_url if same else self._default_url

    @property
    def spool_dir(self) -> Path:
        """The folder where captured messages wait while the backend is away; each queue has its own."""
        if self.spool.dir is not None:
            folder = self.spool.dir
        elif self.queue_url.startswith("sqlite:///"):
            path = sqlite_path(self.queue_url)
            is_default = path == sqlite_path(self._default_url)
            folder = self.data_dir / "spool" if is_default else Path(f"{path}-spool")
        else:
            place = urlsplit(self.queue_url)
            name = f"{place.hostname}:{place.port}{place.path}#{self.queue.redis_prefix}"
            folder = self.data_dir / f"spool-{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"
        return folder.expanduser().resolve()

    @property
    def _default_url(self) -> str:
        return f"sqlite:///{self.data_dir.expanduser().resolve() / 'reverie.db'}"


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment in which another process in the same folder reads exactly these settings."""
    ours = tuple(f"{PREFIX}{name.upper()}" for name in Settings.model_fields)
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
    given = {name: value for name, value in settings.model_dump(mode="json").items() if value is not None}
    return others | {
        f"{PREFIX}{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }


def settings_file() -> Path | None:
    """The file in force: in the working folder, else in the configuration folder, else none."""
    candidates = (Path(FILE_NAME), default_settings_file())
    return next((path for path in candidates if path.is_file()), None)


def default_settings_file() -> Path:
    """The file in the configuration folder, whether it exists or not."""
    return Path(platformdirs.user_config_dir("reverie")) / FILE_NAME


def load_settings(**given: Any) -> Settings:
    """Read all settings; the error about invalid ones names the place, the value and what is allowed."""
    return read_settings(**given).settings


def read_settings(**given: Any) -> Reading[Settings]:
    """Read all settings, and where each comes from."""
    return _read(settings_file(), given)


def load_own_settings() -> Settings:
    """Read the settings as `load_settings` does, but never those of the working folder."""
    path = default_settings_file()
    return _read(path if path.is_file() else None, {}).settings


def _read(path: Path | None, given: dict[str, Any]) -> Reading[Settings]:
    file: list[Source] = [] if path is None else [from_file(path)]
    return read(
        Settings,
        [
            from_names(Settings, os.environ, DEFAULT_NAMES),
            *file,
            from_names(Settings, os.environ, OTHER_NAMES),
            from_environment(Settings, os.environ),
            from_arguments(given),
        ],
    )


def check_file(path: Path) -> Reading[Settings]:
    """Read the settings of one file, and nothing else."""
    return read(Settings, [from_file(path)])


def settings_page() -> str:
    """The page that names every setting: `make pages` writes it to `docs/settings.md`."""
    return page(Settings, OTHER_NAMES, DEFAULT_NAMES)
