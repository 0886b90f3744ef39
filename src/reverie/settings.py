"""All settings of a process: defaults, `reverie.yaml`, `REVERIE_*` variables, arguments; the later wins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import platformdirs
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from reverie.backends.settings import QueueSettings
from reverie.capture.settings import SpoolSettings
from reverie.dispatch.settings import LabelSettings, WorkerSettings
from reverie.errors import InvalidSettingError
from reverie.memory.settings import MemorySettings
from reverie.message import MessageLimits

__all__ = [
    "LimitSettings",
    "ServerSettings",
    "Settings",
    "environment_of",
    "load_settings",
    "scheduler_enabled",
]

FILE_NAME = "reverie.yaml"


class ServerSettings(BaseModel):
    """The HTTP server."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field(
        "127.0.0.1", description="address to listen on; only loopback is allowed without API keys"
    )
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1, description="bytes of one request; more is refused")


class LimitSettings(BaseModel):
    """What a message may be at most."""

    model_config = ConfigDict(extra="forbid")

    max_content_bytes: int = Field(1024 * 1024, ge=1, description="bytes of a message's content")
    max_json_depth: int = Field(32, ge=1, description="levels of objects and lists inside each other")
    max_id_bytes: int = Field(512, ge=1, description="bytes of any id, label, name or key")
    max_dependencies: int = Field(100, ge=0, description="items that one message may depend on")

    def for_messages(self) -> MessageLimits:
        """The same as the message's own value."""
        return MessageLimits(**self.model_dump())


class Settings(BaseSettings):
    """Everything that can be set. In the environment `REVERIE_QUEUE__URL` is `queue: {url: …}`."""

    model_config = SettingsConfigDict(env_prefix="REVERIE_", env_nested_delimiter="__", extra="forbid")

    app: str | None = Field(None, description="module:attribute of the scheduler that holds your handlers")
    scheduler_startup_mode: Literal["thread", "process"] = Field(
        "thread", description="where a scheduler that is started runs its handlers: here, or in processes"
    )
    data_dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("reverie")),
        description="folder of reverie.db; default: the platform's user data folder",
    )
    queue: QueueSettings = Field(default_factory=QueueSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    spool: SpoolSettings = Field(default_factory=SpoolSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    labels: dict[str, LabelSettings] = Field(
        default_factory=dict, description="how the messages of a label are run"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given wins over the environment, that over the file."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, settings_file())

    @property
    def queue_url(self) -> str:
        """Where messages wait."""
        return self.queue.url or self._default_url

    @property
    def memory_url(self) -> str:
        """Where memories are kept."""
        if self.memory.url:
            return self.memory.url
        same = self.queue_url.startswith(("sqlite:", "memory:"))
        return self.queue_url if same else self._default_url

    @property
    def spool_dir(self) -> Path:
        """Where captured messages wait while the backend is away."""
        return (self.spool.dir or self.data_dir / "spool").expanduser().resolve()

    @property
    def _default_url(self) -> str:
        return f"sqlite:///{self.data_dir.expanduser().resolve() / 'reverie.db'}"


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment in which another process, in the same folder, reads these very settings."""
    ours = tuple(f"REVERIE_{name.upper()}" for name in Settings.model_fields)
    others = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
    given = {name: value for name, value in settings.model_dump(mode="json").items() if value is not None}
    return others | {
        f"REVERIE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }


def settings_file() -> Path | None:
    """The file in force: in the working folder, else in the configuration folder, else none."""
    candidates = (Path(FILE_NAME), Path(platformdirs.user_config_dir("reverie")) / FILE_NAME)
    return next((path for path in candidates if path.is_file()), None)


def load_settings(**given: Any) -> Settings:
    """Read all settings; a bad one is refused with its place, its value and what is allowed."""
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidSettingError(where, first.get("input"), first["msg"]) from error
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise InvalidSettingError(str(settings_file()), "", f"cannot be read as settings: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidSettingError(str(settings_file()), "", f"is not YAML: {error}") from error


def scheduler_enabled() -> bool:
    """Whether the server runs a worker of its own: `API_SCHEDULER_ON`, default true."""
    value = os.environ.get("API_SCHEDULER_ON", "true").strip().lower()
    if value not in {"true", "false", "1", "0", "yes", "no", "on", "off"}:
        raise InvalidSettingError("API_SCHEDULER_ON", value, "must be true or false")
    return value in {"true", "1", "yes", "on"}
