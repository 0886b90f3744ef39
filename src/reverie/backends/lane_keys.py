"""The names of lanes as users see them; on Redis they are the keys of streams.

Ids of letters, digits and `_.@-` are kept as they are. In other ids, every other byte is percent-encoded, so
that `:` always separates and two ids never share a key.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from reverie.message import Lane

__all__ = ["DEFAULT_PREFIX", "decode_id", "encode_id", "lane_key"]

DEFAULT_PREFIX = "scheduler:messages:stream:v2.0"

_is_plain = re.compile(r"[A-Za-z0-9_.@-]+").fullmatch


def encode_id(value: str) -> str:
    """Encode an id as one part of a key."""
    return value if _is_plain(value) else _encode(value)


@lru_cache(maxsize=8192)
def _encode(value: str) -> str:
    return quote(value, safe="@").replace("~", "%7E")


def decode_id(text: str) -> str:
    """Decode an id that `encode_id` has encoded."""
    return unquote(text)


def lane_key(lane: Lane, prefix: str = DEFAULT_PREFIX) -> str:
    """The name of a lane: `{prefix}:{user_id}:{mem_cube_id}:{label}`."""
    return f"{prefix}:{encode_id(lane.user_id)}:{encode_id(lane.mem_cube_id)}:{encode_id(lane.label)}"
