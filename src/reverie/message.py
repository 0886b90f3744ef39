"""The message: one unit of memory work, its identity, and the checks it must pass."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import time
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from reverie.errors import InvalidMessageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "LABEL_LEVELS",
    "SYSTEM_USER",
    "DerivedIds",
    "Key",
    "Lane",
    "Level",
    "Message",
    "MessageLimits",
    "UniquePolicy",
    "check_batch",
    "check_ids",
    "check_info",
    "check_message",
    "check_name",
    "check_text",
    "content_text",
    "current_ids",
    "depth_exceeds",
    "derived_id",
    "level_of",
    "new_item_id",
]


SYSTEM_USER = "_system"
"""The user of work that belongs to no user. No client can name it: its id is reserved."""


class Level(IntEnum):
    """How soon work of a label should start."""

    AT_ONCE = 1
    SOON = 2
    BACKGROUND = 3


LABEL_LEVELS: dict[str, Level] = {
    "query": Level.AT_ONCE,
    "answer": Level.AT_ONCE,
    "add": Level.AT_ONCE,
    "observation": Level.SOON,
    "session_init": Level.SOON,
    "summary": Level.BACKGROUND,
    "session_complete": Level.BACKGROUND,
    "mem_update": Level.BACKGROUND,
    "mem_read": Level.BACKGROUND,
    "mem_organize": Level.BACKGROUND,
    "mem_archive": Level.BACKGROUND,
    "memory_compression": Level.BACKGROUND,
    "pref_add": Level.BACKGROUND,
    "mem_feedback": Level.BACKGROUND,
    "api_mix_search": Level.BACKGROUND,
    "data_cleanup": Level.BACKGROUND,
    "embedding_refresh": Level.BACKGROUND,
    "statistics_update": Level.BACKGROUND,
}
"""The labels that every installation knows. A label that is not listed is `Level.BACKGROUND`."""


def level_of(label: str) -> Level:
    """The level that a label has by default."""
    return LABEL_LEVELS.get(label, Level.BACKGROUND)


class Key(NamedTuple):
    """The identity of a message."""

    user_id: str
    item_id: str


class Lane(NamedTuple):
    """The unit of order and of fairness: one kind of work in one cube of one user."""

    user_id: str
    mem_cube_id: str
    label: str


class DerivedIds:
    """The ids of the messages of one request that may be repeated: the same each time, in the same order."""

    def __init__(self, *parts: object) -> None:
        """`parts` tell the request from all others."""
        self._parts = parts
        self._given: set[str] = set()
        self._is_over = False

    def next(self) -> str | None:
        """The next id; None when the request is over, though work that it has begun may go on."""
        if self._is_over:
            return None
        made = derived_id(*self._parts, len(self._given))
        self._given.add(made)
        return made

    def gave(self, item_id: str) -> bool:
        """Whether an id is one of these."""
        return item_id in self._given

    def close(self) -> None:
        """Give out no more ids."""
        self._is_over = True


current_ids: ContextVar[DerivedIds | None] = ContextVar("reverie_ids", default=None)
"""Where the ids of new messages come from; None: they are random."""


def new_item_id() -> str:
    """Make a fresh id for a message; within a request that may be repeated, the next of its ids.

    `uuid.uuid4` is slower: it asks the kernel each time, which hands the interpreter to another thread. The
    time is mixed in because two copies of one machine would go on with the same random numbers.
    """
    ids = current_ids.get()
    if ids is not None and (derived := ids.next()) is not None:
        return derived
    bits = (_random_bits(128) ^ time.time_ns()) & ~_VERSION_BITS | _VERSION_4
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def derived_id(*parts: object) -> str:
    """Make an id that is the same whenever it is derived from the same parts."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


_VERSION_BITS = 0xF000 << 64 | 0xC000 << 48
_VERSION_4 = 0x4000 << 64 | 0x8000 << 48
"""The bits of a UUID that tell its version, and their value for a random UUID."""
_RANDOM = random.Random()  # noqa: S311  ids must differ, they are no secrets
_random_bits = _RANDOM.getrandbits
os.register_at_fork(after_in_child=_RANDOM.seed)
_NAMESPACE = uuid.UUID("6b1d7b0e-6a53-5c0e-9a55-8f2f5f6c7a10")


def _present() -> datetime:
    """The present moment, to the millisecond, which every backend can keep.

    Messages that are made in the same millisecond share the value, because making it is slow.
    """
    global _last_moment  # noqa: PLW0603
    ms, moment = _last_moment
    if (now := time.time_ns() // 1_000_000) != ms:
        moment = datetime.fromtimestamp(now / 1000, UTC)
        _last_moment = (now, moment)
    return moment


_last_moment = (0, datetime.fromtimestamp(0, UTC))


UniquePolicy = Literal["skip", "replace", "extend", "sooner"]
"""What happens to a message whose unique key is taken; see `Message.unique_policy`."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One unit of work. Public alias: `ScheduleMessageItem`.

    Only `user_id` and `label` are required. The engine sets `level` when the message is submitted, and
    `attempts`, `losses`, `conflicts`, `redis_message_id` and `stream_key` when it is handed to a handler.
    """

    user_id: str
    label: str
    content: str = ""
    """JSON or plain text, whichever the label's handler expects."""
    item_id: str = msgspec.field(default_factory=new_item_id)
    mem_cube_id: str = ""
    """Default: the user's own cube, which is named like the user."""
    session_id: str | None = None
    task_id: str | None = None
    """The business task of the message; several messages may share one."""
    trace_id: str | None = None
    user_name: str | None = None
    info: dict[str, Any] | None = None
    timestamp: datetime | None = msgspec.field(default_factory=_present)
    """When the message was made, to the millisecond. None becomes the time of its acceptance."""
    due: datetime | None = None
    """The message does not run before this; default: at once. A moment without a zone is UTC."""
    deadline: datetime | None = None
    """A message not started by then fails with the reason `deadline`. A run that goes on is timed out."""
    depends_on: tuple[str, ...] = ()
    """Items of the same user that must end first; each is known already or part of the same submit."""
    if_dependency_fails: Literal["fail", "run"] = "fail"
    """What happens if one of them fails or is cancelled: the message fails, too, or runs anyway."""
    unique_key: str | None = None
    """At most one unsettled message of a lane has this key; see `unique_policy`."""
    unique_window_s: float = 0
    """Seconds after its acceptance in which the key stays taken, even if the message has ended."""
    unique_policy: UniquePolicy = "skip"
    """If another message has the key: `skip` answers with that message. `replace` cancels it if it still
    waits, and takes the key. `extend` moves its due time to that of the new message; `sooner` does so only if
    the new message is due earlier, and never to before the time of a retry. A running message is left alone:
    `replace` then accepts the new message as well, `extend` and `sooner` do if no other waits."""
    level: int | None = None
    """Set by the label; see `Level`."""
    attempts: int = 0
    """Runs so far that ended with an outcome."""
    losses: int = 0
    """Claims so far that ended without an outcome."""
    conflicts: int = 0
    """Runs in a row whose effects met another version of a memory item than they had read."""
    requeues: int = 0
    """How often a person has requeued the message after its end."""
    redis_message_id: str | None = None
    stream_key: str | None = None
    user_key: str | None = None
    """The user key of the trigger that made the message; see `backends/triggers.py`. Only triggers set it."""

    def __post_init__(self) -> None:
        """Put a message without a cube into the user's own cube."""
        if not self.mem_cube_id:
            msgspec.structs.force_setattr(self, "mem_cube_id", self.user_id)

    @property
    def key(self) -> Key:
        """The identity: (user_id, item_id)."""
        return _new_tuple(Key, (self.user_id, self.item_id))

    @property
    def tenant(self) -> tuple[str, str]:
        """Whose memory the message is about: (user_id, mem_cube_id)."""
        return self.user_id, self.mem_cube_id

    @property
    def lane(self) -> Lane:
        """The lane in which the message waits: (user_id, mem_cube_id, label)."""
        return _new_tuple(Lane, (self.user_id, self.mem_cube_id, self.label))

    def json(self) -> Any:
        """Decode the content as JSON."""
        return msgspec.json.decode(self.content)

    def fingerprint(self) -> str:
        """Hash the fields that tell whether two messages of one id are the same message or a conflict."""
        parts = (self.mem_cube_id, self.label, self.content, self.session_id, self.task_id, self.info)
        return hashlib.blake2b(_canonical(parts), digest_size=16).hexdigest()


_new_tuple = tuple.__new__
"""Makes a named tuple at a third of the cost: each message's key and lane are asked for several times."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_json = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a message."""

    max_content_bytes: int = 1024 * 1024
    """Bytes of UTF-8; default 1 MiB."""
    max_info_bytes: int = 64 * 1024
    """Bytes of `info` as JSON; default 64 KiB. Each turn of a message has a copy of it."""
    max_json_depth: int = 32
    """Levels of objects and lists inside each other; default 32."""
    max_id_bytes: int = 512
    """Bytes of any id, label, name or key; default 512."""
    max_dependencies: int = 100
    """Items that one message may depend on; default 100."""


FIRST_YEAR, LAST_YEAR = 1900, 9000
"""The years whose moments every backend can keep, in any zone."""
TURN_NUMBER_BYTES = 8
"""By how much the id of a memory may be longer than the id of the message that it comes from."""
_OF_MEMORY = frozenset({"memory_id", "successor", "source_id", "target_id"})
_REQUIRED = ("user_id", "mem_cube_id", "label", "item_id")
_OPTIONAL = ("session_id", "task_id", "trace_id", "user_name", "unique_key")


def content_text(content: Any, limits: MessageLimits) -> str:
    """The content of a message as text: text as it is, anything else as JSON."""
    if isinstance(content, str):
        return content
    if problem := _json_problem(content, limits.max_json_depth):
        raise InvalidMessageError("content", content, problem)
    return msgspec.json.encode(content).decode()


def check_message(message: Message, limits: MessageLimits, *, of_system: bool = False) -> None:
    """Refuse a message that no backend should keep; the error names the field and its value.

    Every message is checked, so rare fields cost nothing if they are not set. `of_system`: the message
    follows from work of the system, and may belong to `SYSTEM_USER` itself.
    """
    if not _has_short_names(message, limits.max_id_bytes):
        for field in (*_REQUIRED, *_OPTIONAL):
            value = getattr(message, field)
            if value is not None or field in _REQUIRED:
                check_name(field, value, limits)
    if (message.user_id[0] == "_" or message.mem_cube_id[0] == "_") and not (
        of_system and message.user_id == message.mem_cube_id == SYSTEM_USER
    ):
        field = "user_id" if message.user_id[0] == "_" else "mem_cube_id"
        raise InvalidMessageError(field, getattr(message, field), "ids that begin with _ are reserved")
    _check_content(message.content, limits)
    made = message.timestamp
    if type(made) is not datetime or not FIRST_YEAR <= made.year <= LAST_YEAR:
        _check_moment("timestamp", made)
    if message.due is not None or message.deadline is not None:
        _check_moment("due", message.due)
        _check_moment("deadline", message.deadline)
    if message.depends_on != () or message.if_dependency_fails != "fail":
        _check_choice(message, "if_dependency_fails", ("fail", "run"))
        _check_dependencies(message, limits)
    if message.unique_window_s != 0 or message.unique_policy != "skip":
        _check_choice(message, "unique_policy", get_args(UniquePolicy))
        _check_window(message.unique_window_s)
    if message.info is not None or message.user_key is not None:
        _check_rare(message, limits)


def _has_short_names(message: Message, most: int) -> bool:
    """Whether all names of a message are short ASCII, as nearly always: checking them together is quicker."""
    user, cube, label, item = message.user_id, message.mem_cube_id, message.label, message.item_id
    if not (
        type(user) is type(cube) is type(label) is type(item) is str and user and cube and label and item
    ):
        return False
    names = user + cube + label + item
    for optional in (
        message.session_id,
        message.task_id,
        message.trace_id,
        message.user_name,
        message.unique_key,
    ):
        if type(optional) is str:
            names += optional
        elif optional is not None:
            return False
    return names.isascii() and names.isprintable() and len(names) <= most


def _check_choice(message: Message, field: str, allowed: tuple[str, ...]) -> None:
    if getattr(message, field) not in allowed:
        raise InvalidMessageError(field, getattr(message, field), f"must be one of {', '.join(allowed)}")


def _check_rare(message: Message, limits: MessageLimits) -> None:
    if message.user_key is not None:
        raise InvalidMessageError("user_key", message.user_key, "is for messages that triggers make")
    if message.info is not None:
        check_info(message.info, limits)


def check_info(info: object, limits: MessageLimits) -> None:
    """Refuse further fields that are no JSON object, are nested too deeply, or are too long."""
    if not isinstance(info, dict):
        raise InvalidMessageError("info", info, "must be an object")
    if problem := _json_problem(info, limits.max_json_depth):
        raise InvalidMessageError("info", info, problem)
    if (size := len(_json(info))) > limits.max_info_bytes:
        reason = f"has {size} bytes as JSON, at most {limits.max_info_bytes} are allowed"
        raise InvalidMessageError("info", info, f"{reason} (limits.max_info_bytes)")


def check_batch(messages: Sequence[Message]) -> None:
    """Refuse messages of one submit that wait for each other in a circle."""
    waits = {message.key: message.depends_on for message in messages if message.depends_on}
    while waits:
        free = [k for k, parents in waits.items() if not any(Key(k.user_id, p) in waits for p in parents)]
        if not free:
            key, parents = next(iter(waits.items()))
            raise InvalidMessageError("depends_on", parents, f"item {key.item_id!r} would wait for itself")
        for key in free:
            del waits[key]


def _check_dependencies(message: Message, limits: MessageLimits) -> None:
    parents: Any = message.depends_on
    if not isinstance(parents, tuple) or not all(isinstance(parent, str) and parent for parent in parents):
        raise InvalidMessageError("depends_on", parents, "must be a tuple of item ids")
    if message.item_id in parents:
        raise InvalidMessageError("depends_on", message.item_id, "a message cannot depend on itself")
    for parent in parents:
        check_name("depends_on", parent, limits)
    if len(parents) > limits.max_dependencies:
        reason = f"names {len(parents)} items, at most {limits.max_dependencies} are allowed"
        raise InvalidMessageError("depends_on", parents, reason)


def _check_window(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e10:
        raise InvalidMessageError("unique_window_s", seconds, "must be a number of seconds, 0 or more")


def _check_moment(field: str, moment: object) -> None:
    if moment is None:
        return
    if not isinstance(moment, datetime):
        raise InvalidMessageError(field, moment, "must be a datetime; one without a zone is UTC")
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise InvalidMessageError(field, moment, f"must be between the years {FIRST_YEAR} and {LAST_YEAR}")


def _check_content(content: object, limits: MessageLimits) -> None:
    if not isinstance(content, str):
        raise InvalidMessageError("content", content, "must be text; give JSON as text")
    check_text("content", content, limits)
    brackets = content.count("[") + content.count("{")
    if brackets > limits.max_json_depth and _is_too_deep(content, limits.max_json_depth):
        reason = f"is JSON nested more than {limits.max_json_depth} deep"
        raise InvalidMessageError("content", content, reason)


def check_text(field: str, text: str, limits: MessageLimits) -> None:
    """Refuse a text that is too long, or is no Unicode."""
    size = len(text) if text.isascii() else len(_utf8(field, text))
    if size > limits.max_content_bytes:
        reason = f"has {size} bytes, at most {limits.max_content_bytes} are allowed"
        raise InvalidMessageError(field, text, reason)


def _is_too_deep(content: str, depth: int) -> bool:
    """Whether a text is JSON that is nested too deeply; other text may have any brackets."""
    if content.lstrip()[:1] not in {"[", "{"}:
        return False
    try:
        return depth_exceeds(msgspec.json.decode(content), depth)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False


def depth_exceeds(value: Any, depth: int) -> bool:
    """Whether a JSON value has more than `depth` levels of objects and lists inside each other."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not depth or any(depth_exceeds(item, depth - 1) for item in inner)


def check_name(field: str, value: object, limits: MessageLimits) -> None:
    """Refuse a value that cannot be an id, a label or a name.

    The id of a memory may be longer by the number of its turn.
    """
    most = limits.max_id_bytes + (TURN_NUMBER_BYTES if field in _OF_MEMORY else 0)
    if type(value) is str and value.isprintable() and value.isascii() and 0 < len(value) <= most:
        return
    if not isinstance(value, str):
        raise InvalidMessageError(field, value, "must be text")
    if not value and field not in _OPTIONAL:
        raise InvalidMessageError(field, value, "must not be empty")
    if "\x00" in value:
        raise InvalidMessageError(field, value, "must not contain a NUL character")
    if len(_utf8(field, value)) > most:
        raise InvalidMessageError(field, value, f"must be at most {most} bytes")


def check_ids(limits: MessageLimits, **ids: object) -> None:
    """Refuse a question about an id that nothing can have; an id that is None was not given."""
    for field, value in ids.items():
        if value is not None:
            check_name(field, value, limits)


def _json_problem(value: Any, depth: int) -> str | None:
    """Why a value would not come back from JSON as it was, or None."""
    if isinstance(value, (dict, list, tuple)):
        if not depth:
            return "is nested too deeply"
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            return "has a key that is not text"
        inner = chain(value, value.values()) if isinstance(value, dict) else value
        return next(filter(None, (_json_problem(item, depth - 1) for item in inner)), None)
    problem = None
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        problem = "is not valid Unicode text"
    elif isinstance(value, float) and not math.isfinite(value):
        problem = f"contains {value}, which JSON does not have"
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        problem = f"contains a {type(value).__name__}, which JSON does not have"
    return problem


def _utf8(field: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(field, value, "is not valid Unicode text") from error
