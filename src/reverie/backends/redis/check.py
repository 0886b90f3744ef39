"""Whether a server is fit to keep messages: its version, its persistence, and that it evicts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from redis.exceptions import ResponseError

from reverie.errors import ReverieError

if TYPE_CHECKING:
    from reverie.backends.redis.connection import Connections

__all__ = ["UnsafeServerError", "check_server"]

OLDEST = (7, 0)
"""The oldest Redis that has all we use: functions."""

Durability = Literal["always", "everysec", "none", "assumed"]


class UnsafeServerError(ReverieError):
    """The Redis server would not keep what it accepts."""

    def __init__(self, place: str, setting: str, value: str, remedy: str) -> None:
        """Name the server, what is wrong with it, and what to do."""
        self.place, self.setting, self.value, self.remedy = place, setting, value, remedy
        super().__init__(f"{place}: {setting} is {value!r}: {remedy}")


async def check_server(
    connections: Connections, *, allow_volatile: bool = False, durability_assumed: bool = False
) -> Durability:
    """Refuse a server that is too old, forgets or evicts; answer the durability it has."""
    await _check_version(connections)
    try:
        flat: list[bytes] = await connections.call(
            "CONFIG", "GET", "appendonly", "appendfsync", "maxmemory-policy"
        )
    except ResponseError as error:
        if durability_assumed:
            return "assumed"
        remedy = "its persistence cannot be seen; set durability_assumed if you know that it is safe"
        raise UnsafeServerError(connections.place, "CONFIG", str(error), remedy) from error
    names = (text.decode() for text in flat)
    config = dict(zip(names, names, strict=True))
    durability = _durability(config)
    if not allow_volatile:
        _check_persistence(connections.place, config, durability)
    return durability


async def _check_version(connections: Connections) -> None:
    info: bytes = await connections.call("INFO", "server")
    lines = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    version = lines.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        remedy = "Redis 7.0 or Valkey 7.2 or newer is needed"
        raise UnsafeServerError(connections.place, "redis_version", version, remedy)


def _durability(config: dict[str, str]) -> Durability:
    if config.get("appendonly") != "yes":
        return "none"
    match config.get("appendfsync"):
        case "always":
            return "always"
        case "everysec":
            return "everysec"
        case _:
            return "none"


def _check_persistence(place: str, config: dict[str, str], durability: Durability) -> None:
    or_else = "or set allow_volatile to accept the loss"
    policy = config.get("maxmemory-policy", "unknown")
    if policy != "noeviction":
        remedy = f"a full server would drop messages; set it to noeviction, {or_else}"
        raise UnsafeServerError(place, "maxmemory-policy", policy, remedy)
    if durability == "none":
        setting = "appendonly" if config.get("appendonly") != "yes" else "appendfsync"
        remedy = f"a restart would lose messages; set appendonly yes, appendfsync everysec, {or_else}"
        raise UnsafeServerError(place, setting, config.get(setting, "unknown"), remedy)
