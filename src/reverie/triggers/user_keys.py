"""User keys: the user, device and agent for whom a trigger runs, as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reverie.backends.lane_keys import decode_id, encode_id
from reverie.errors import InvalidMessageError
from reverie.triggers.settings import UserKeySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UserKeyBuilder"]


class UserKeyBuilder:
    """Builds and parses user keys: ids joined by ':'. Ids with unusual characters are encoded."""

    def __init__(self, config: Mapping[str, Any] | UserKeySettings | None = None) -> None:
        """`config` is `scheduler.user_key_config`."""
        self._config = config if isinstance(config, UserKeySettings) else UserKeySettings(**(config or {}))

    def build_key(self, user_id: str, device_id: str | None = None, agent_id: str | None = None) -> str:
        """The key of a user. A missing id has its default; ids that the settings do not use are left out."""
        if not user_id:
            raise InvalidMessageError("user_id", user_id, "must not be empty")
        config = self._config
        parts = [user_id]
        if config.use_device_id:
            parts.append(device_id or config.default_device_id)
        if config.use_agent_id:
            parts.append(agent_id or config.default_agent_id)
        return ":".join(encode_id(part) for part in parts)

    def parse_key(self, user_key: str) -> dict[str, str]:
        """The ids of a key, by name. A shorter key has the first ids only."""
        names, parts = self.get_key_dimensions(), user_key.split(":")
        if len(parts) > len(names) or not all(parts):
            raise InvalidMessageError("user_key", user_key, f"must have the parts {':'.join(names)}")
        return dict(zip(names, map(decode_id, parts), strict=False))

    def get_key_dimensions(self) -> list[str]:
        """The names of the ids that a key is made of, in their order."""
        used = {
            "user_id": True,
            "device_id": self._config.use_device_id,
            "agent_id": self._config.use_agent_id,
        }
        return [name for name, is_used in used.items() if is_used]
