"""Settings of the queue: where messages wait, for how long, and how many."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import quote

from pydantic import Field, field_validator

from reverie.backends.durability import WORDS, is_durability
from reverie.backends.moves import QueueLimits, ScopeLimits
from reverie.configuration.section import Section

__all__ = ["QueueSettings"]


class QueueSettings(Section):
    """The queue."""

    url: str | None = Field(
        None,
        description="sqlite:///path, redis://host:port/db, memory://; default: reverie.db in the data "
        "folder, or the server of the redis_* settings if use_redis_queue",
    )
    use_redis_queue: bool = Field(
        default=False,
        description="whether messages wait on Redis, where the redis_* settings say; url wins over it",
    )
    durability: str | None = Field(
        None,
        description="SQLite: full survives a power cut, normal the death of the process. Redis: everysec may "
        "lose two seconds with its server, always nothing, replicated(n) has n replicas confirm each submit; "
        "default: full, on Redis everysec",
    )
    replication_timeout_s: float = Field(
        3,
        gt=0,
        le=20,  # the client waits at most 30 s for an answer
        description="Redis: seconds in which the replicas must confirm, with replicated(n)",
    )
    busy_timeout_s: float = Field(
        10,
        ge=0,
        le=2_000_000,  # SQLite counts milliseconds in 31 bits
        description="SQLite: seconds that a writer of another process is waited for",
    )
    read_timeout_s: float = Field(
        30,
        gt=0,
        description="SQLite: seconds that one read may take, its wait for other reads included; "
        "searches have memory.search_timeout_s",
    )
    allow_network_fs: bool = Field(
        default=False, description="SQLite: open the file even on a network file system"
    )
    reserve_bytes: int = Field(
        1024 * 1024,
        ge=0,
        description="SQLite: bytes of the disk, in a file beside the database, that are kept for commands "
        "such as cancel; when the disk is full they use them, and other writes are refused; 0 keeps none",
    )
    max_losses: int = Field(
        5, ge=1, description="claims that may end without an outcome before a message is buried"
    )
    retention_s: float = Field(
        7 * 24 * 3600, ge=0, description="seconds that the status of completed and cancelled work is kept"
    )
    prune_s: float = Field(
        3600,
        gt=0,
        description="seconds between two passes in which a worker removes what ended work has left over: "
        "lanes without messages, rows of the inbox",
    )
    dead_retention_s: float | None = Field(
        None,
        ge=0,
        description="seconds that a dead letter is kept after its end; default: until a person deletes it",
    )
    max_wait_s: float = Field(
        60, gt=0, description="seconds that a lane waits for its turn before it counts as a level higher"
    )
    unknown_labels: Literal["keep", "refuse"] = Field(
        "keep", description="a label that no live worker handles: keep it until one does, or refuse it"
    )
    max_labels: int = Field(
        1000,
        ge=1,
        description="labels that messages are kept of; a submit of one more is refused",
    )
    max_depth: int | None = Field(
        1_000_000, ge=1, description="messages not ended, in all; a submit beyond it is refused"
    )
    max_depth_per_tenant: int | None = Field(
        None, ge=1, description="messages not ended, of each user's cube; a submit beyond it is refused"
    )
    max_rate: float | None = Field(
        None, gt=0, description="messages submitted per second, in all; a submit beyond it is refused"
    )
    max_rate_per_tenant: float | None = Field(
        None, gt=0, description="messages submitted per second, of each user's cube"
    )
    max_concurrency: int | None = Field(
        None, ge=1, description="messages in progress at once, in all workers; what is beyond it waits"
    )
    max_concurrency_per_tenant: int | None = Field(
        None, ge=1, description="messages in progress at once, of each user's cube; what is beyond it waits"
    )
    allow_volatile: bool = Field(
        default=False, description="Redis: accept a server that may forget (no persistence, or evicting)"
    )
    durability_assumed: bool = Field(
        default=False, description="Redis: trust a server whose CONFIG may not be read to be persistent"
    )

    redis_host: str = Field("localhost", min_length=1, description="Redis: name or address of the server")
    redis_port: int = Field(6379, ge=1, le=65535, description="Redis: port of the server")
    redis_db: int = Field(0, ge=0, le=2**31 - 1, description="Redis: number of the database")
    redis_username: str | None = Field(None, description="Redis: who we are on the server")
    redis_password: str | None = Field(None, description="Redis: the password for that")
    redis_ssl: bool = Field(default=False, description="Redis: whether to speak TLS")
    redis_prefix: str = Field(
        "scheduler:messages:stream:v2.0",
        min_length=1,
        description="Redis: what the keys of the queue begin with; queues with different ones are apart",
    )

    @field_validator("durability")
    @classmethod
    def _check_durability(cls, durability: str | None) -> str | None:
        if durability is not None and not is_durability(durability):
            raise ValueError(f"must be one of {WORDS}")
        return durability

    @property
    def sqlite_durability(self) -> Literal["full", "normal"]:
        """The durability of SQLite files, also of the memories beside a queue on Redis."""
        return "normal" if self.durability == "normal" else "full"

    @field_validator("redis_host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if re.search(r"[\s/@?#]", host) or host.count(":") == 1:
            raise ValueError(
                "must be a host only: its port has a setting of its own, and a whole address is url"
            )
        return host

    @property
    def redis_url(self) -> str:
        """The URL of the server that the `redis_*` settings name."""
        user, password = (quote(text or "", safe="") for text in (self.redis_username, self.redis_password))
        credentials = f"{user}{':' if password else ''}{password}@" if user or password else ""
        host = f"[{self.redis_host}]" if ":" in self.redis_host.strip("[]") else self.redis_host
        scheme = "rediss" if self.redis_ssl else "redis"
        return f"{scheme}://{credentials}{host}:{self.redis_port}/{self.redis_db}"

    def limits(self) -> QueueLimits:
        """These settings as the limits that the queue applies."""
        return QueueLimits(
            tenant=ScopeLimits(
                depth=self.max_depth_per_tenant,
                rate=self.max_rate_per_tenant,
                concurrency=self.max_concurrency_per_tenant,
            ),
            total=ScopeLimits(depth=self.max_depth, rate=self.max_rate, concurrency=self.max_concurrency),
            max_wait_ms=round(self.max_wait_s * 1000),
            refuse_unhandled=self.unknown_labels == "refuse",
            max_labels=self.max_labels,
            max_losses=self.max_losses,
            retention_ms=round(self.retention_s * 1000),
            dead_retention_ms=None if self.dead_retention_s is None else round(self.dead_retention_s * 1000),
        )
