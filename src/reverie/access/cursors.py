"""Sealed cursors: a cursor has the place of a row among the rows of all users, which is nobody's business.

Callers whose keys are bound to some users or cubes get cursors that only the servers of this queue can read.
Their length tells almost nothing, and each works only for the key that it was given to.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING

from reverie.backends.records import Record
from reverie.errors import InvalidSelectionError
from reverie.principal import current_principal

if TYPE_CHECKING:
    from reverie.backends.interface import Records

__all__ = ["Cursors"]

META, CURSORS = "meta", "cursors"
"""The record that has the secret."""
PREFIX = "s1_"
TAG_BYTES = 16
BLOCK_BYTES = 64
"""A cursor is filled up to whole blocks, and mixed block by block."""
END = b"\xff"
"""The byte behind a cursor, before what fills it up. UTF-8 has no such byte."""


class Cursors:
    """Seals and opens the cursors of the present caller."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._secret: bytes | None = None

    async def seal(self, cursor: str | None) -> str | None:
        """The cursor as the caller may see it."""
        principal = current_principal.get()
        if cursor is None or not principal.is_bound:
            return cursor
        secret, text = await self._load_secret(), cursor.encode() + END
        plain = text.ljust(-(-len(text) // BLOCK_BYTES) * BLOCK_BYTES, b"\0")
        tag = _tag(secret, principal.key, plain)
        return PREFIX + urlsafe_b64encode(tag + _mix(secret, tag, plain)).decode().rstrip("=")

    async def open(self, cursor: str | None) -> str | None:
        """The cursor that `seal` was given for this key; `InvalidSelectionError` if it is no such cursor."""
        principal = current_principal.get()
        if cursor is None or not principal.is_bound:
            return cursor
        secret = await self._load_secret()
        try:
            sealed = urlsafe_b64decode(cursor.removeprefix(PREFIX) + "==")
        except (binascii.Error, ValueError):
            sealed = b""
        tag = sealed[:TAG_BYTES]
        plain = _mix(secret, tag, sealed[TAG_BYTES:])
        text, end, _ = plain.partition(END)
        if not hmac.compare_digest(tag, _tag(secret, principal.key, plain)) or not end:
            raise InvalidSelectionError(f"cursor={cursor[:80]!r}: give the `next` of the page before")
        return text.decode()

    async def _load_secret(self) -> bytes:
        """The secret of the queue, which is made when it is first needed."""
        if self._secret is None:
            record = await self._records.get(META, CURSORS)
            if record is None:
                made = Record(kind=META, id=CURSORS, value={"secret": secrets.token_hex(32)})
                await self._records.change([made])
                record = await self._records.get(META, CURSORS) or made  # another process may have made one
            self._secret = bytes.fromhex(record.value["secret"])
        return self._secret


def _tag(secret: bytes, key_id: str, plain: bytes) -> bytes:
    return hmac.digest(secret, b"tag " + key_id.encode() + b"\0" + plain, hashlib.sha256)[:TAG_BYTES]


def _mix(secret: bytes, tag: bytes, text: bytes) -> bytes:
    """The text, mixed with bytes that only the secret and the tag yield; a second time, the text again."""
    blocks = range(-(-len(text) // BLOCK_BYTES))
    stream = b"".join(hmac.digest(secret, b"mix %d " % block + tag, hashlib.sha512) for block in blocks)
    return bytes(one ^ other for one, other in zip(text, stream, strict=False))
