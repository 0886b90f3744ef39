"""The intake: the one way in for all messages from outside.

HTTP, Python, the shell and the spool all hand their messages over here. The intake checks them, gives them to
the queue (or keeps them on disk while the backend is away), records the accepted ones as events, and notes
the activity of their users.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

import msgspec

from reverie.backends.interface import SubmitsHere
from reverie.backends.limits import unknown_parent
from reverie.backends.moves import Submitted
from reverie.backends.views import StatusQuery
from reverie.base.failpoints import failpoint
from reverie.capture.hook_exclusions import is_excluded_tool
from reverie.capture.privacy import clean, clean_text, has_hints
from reverie.errors import BackendUnavailableError, IdempotencyError, InvalidMessageError, shown
from reverie.message import Key, Message, check_batch, check_message, current_ids
from reverie.observe.tracing import current_trace_id
from reverie.principal import Role, current_principal
from reverie.turn import Turn, read_turns, write_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reverie.backends.interface import Queue, QueueViews
    from reverie.base.clock import Clock
    from reverie.capture.spool import Spool
    from reverie.message import MessageLimits
    from reverie.observe.recorder import Recorder
    from reverie.triggers.activity import ActivityNotes

__all__ = ["Intake", "Pushed", "add_message", "without_secrets"]

MOST_INFO_BYTES = 16 * 1024 * 1024
"""Bytes of `info` that the turns of one message may keep together."""
FEW_TURNS_CHARACTERS = 2000
"""A message with less content has so few turns that their copies of `info` are not counted."""
MOST_RECENT = 10_000
"""How many ids of the last messages are remembered with their users."""
MOST_USERS = 8
"""How many users are remembered for one id."""
MOST_PARENTS = 1000
"""Items that the messages of one submit may depend on, if the caller may touch only some cubes."""


def add_message(turns: str | Sequence[Turn], **fields: Any) -> Message:
    """The message that asks to remember `turns`; a plain text is one turn of the user.

    `fields` are those of `Message`: `user_id` is needed, the rest may be left out.
    """
    turns = [Turn(content=turns)] if isinstance(turns, str) else list(turns)
    if not any(turn.content.strip() for turn in turns):
        raise InvalidMessageError("messages", [turn.content for turn in turns], "has nothing to remember")
    try:
        content = write_turns(turns)
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            "messages", [turn.content for turn in turns], "is not valid Unicode text"
        ) from error
    return Message(label="add", content=content, **fields)


def without_secrets(message: Message) -> Message:
    """The message without private parts and secrets; most messages have none and stay as they are."""
    content, info = message.content, message.info
    if "\\u" in content or has_hints(content):  # an escape may hide a hint
        content = _clean_content(content)
    if info is not None and has_hints(msgspec.json.encode(info).decode()):
        info = clean(info)
    if content == message.content and info == message.info:
        return message
    return msgspec.structs.replace(message, content=content, info=info)


def _clean_content(content: str) -> str:
    """The content without private parts and secrets; JSON stays JSON."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return clean_text(content)
    if not isinstance(value, dict | list):
        return clean_text(content)
    cleaned = clean(value)
    return content if cleaned == value else msgspec.json.encode(cleaned).decode()


def _check_copies(message: Message) -> None:
    """Refuse a message whose turns would keep very much `info` together: each of them has a copy."""
    turns, size = len(read_turns(message.content)), len(msgspec.json.encode(message.info))
    if turns * size > MOST_INFO_BYTES:
        reason = (
            f"has {size} bytes, and each of the {turns} turns would keep a copy: together at most "
            f"{MOST_INFO_BYTES} bytes are allowed; send fewer turns at once, or say less in info"
        )
        raise InvalidMessageError("info", message.info, reason)


def _names_unchecked_parents(messages: Sequence[Message]) -> bool:
    """Whether a caller who may touch only some cubes names items that may be in any cube."""
    return current_principal.get().cubes is not None and any(message.depends_on for message in messages)


def _with_parents(message: Message, others: Mapping[Key, str]) -> Message:
    """The message with other ids for some of the items that it depends on."""
    parents = tuple(others.get(Key(message.user_id, parent), parent) for parent in message.depends_on)
    return message if parents == message.depends_on else msgspec.structs.replace(message, depends_on=parents)


class _OfTool(msgspec.Struct):
    """The part of an observation that names its tool."""

    type: str = ""


class Pushed(NamedTuple):
    """The answer to a push."""

    receipt: Submitted
    scheduled: bool = False
    """Whether the user's activity has scheduled a run of a trigger."""
    not_noted: str | None = None
    """Why the activity could not be noted; None if it was noted or there was none to note."""


class Opens(Protocol):
    """Connects the queue."""

    opened: bool

    async def open(self) -> None:
        """Connect the queue. Idempotent."""
        ...


class Intake:
    """Takes messages in for one process."""

    def __init__(
        self,
        queue: Queue,
        views: QueueViews,
        *,
        limits: MessageLimits,
        level_of: Callable[[str], int],
        clock: Clock,
        spool: Spool,
        recorder: Recorder,
        activity: ActivityNotes,
        role_of: Callable[[str], Role],
        role_to_submit: Callable[[str], Role],
        runtime: Opens,
        redacts: bool = True,
        exclude_tools: Sequence[str] = (),
    ) -> None:
        """`runtime` connects the queue on first use; `activity` notes the activity of users.

        `role_to_submit` is the weakest role that may submit a label with any content, and `role_of` the
        weakest one for which the server may make messages of it. With `redacts`, private parts and secrets
        are removed before anything is kept; observations of excluded tools are refused.
        """
        self._queue = queue
        self._views = views
        self._direct = queue if isinstance(queue, SubmitsHere) else None
        self._limits = limits
        self._level_of = level_of
        self._clock = clock
        self._spool = spool
        self._recorder = recorder
        self._activity = activity
        self._role_of = role_of
        self._role_to_submit = role_to_submit
        self._runtime = runtime
        self._redacts = redacts
        self._exclude_tools = exclude_tools
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        """Item id → the users of the last messages with it, the latest first."""

    @property
    def takes_from_threads(self) -> bool:
        """Whether the queue takes messages from threads without an event loop."""
        return self._direct is not None

    async def submit(
        self, messages: Sequence[Message], *, spools: bool = False, notes: bool = True, vetted: bool = False
    ) -> list[Submitted]:
        """Hand messages to the queue. All are accepted, or none if one is refused.

        With `spools`, messages are kept on disk if the backend is away, and answered `spooled`. With `notes`,
        the activity of their users is noted after the answer. `vetted` messages are made by the server, and
        name only memories that the caller may read.
        """
        messages = self._checked(messages)
        prepared, at = self._prepare(messages, vetted=vetted), self._clock.now()
        failpoint("before_accept")
        try:
            if not self._runtime.opened:
                await self._runtime.open()
            answers = await self._hand_over(prepared)
        except BackendUnavailableError:
            if not spools or _names_unchecked_parents(messages):
                raise
            await asyncio.to_thread(self._keep, messages)
            return [Submitted(message.item_id, "spooled") for message in messages]
        self._accepted(prepared, answers, at, notes=notes)
        return answers

    def recent_users(self, item_id: str) -> tuple[str, ...]:
        """The users of the last messages with an id that this process has taken in."""
        return self._recent.get(item_id, ())

    async def push(self, message: Message, *, spools: bool = False) -> Pushed:
        """Hand over a message from a chat, and note the activity of its user before returning."""
        (receipt,) = await self.submit([message], spools=spools, notes=False)
        if receipt.status != "accepted":
            return Pushed(receipt)
        return Pushed(receipt, *await self._activity.note_now(message))

    async def submit_directly(self, messages: Sequence[Message], *, spools: bool = False) -> list[Submitted]:
        """Like `submit`, but on the calling thread, which may block. It never waits for the event loop.

        It is not for callers who may touch only some cubes.
        """
        assert self._direct is not None
        messages = self._checked(messages)
        prepared, at = self._prepare(messages), self._clock.now()
        failpoint("before_accept")
        try:
            answers = self._direct.submit_here(prepared)
        except BackendUnavailableError:
            if not spools:
                raise
            self._keep(messages)
            return [Submitted(message.item_id, "spooled") for message in messages]
        self._accepted(prepared, answers, at, notes=True)
        return answers

    async def _hand_over(self, messages: Sequence[Message]) -> list[Submitted]:
        """Give messages to the queue. To a caller for some cubes, items of other cubes are unknown."""
        if not _names_unchecked_parents(messages):
            return await self._queue.submit(messages)
        nobody = await self._unknown_to_caller(messages)
        try:
            return await self._queue.submit([_with_parents(message, nobody) for message in messages])
        except InvalidMessageError as error:
            for (_, parent), unknown in nobody.items():
                if error.value == unknown:
                    raise unknown_parent(parent) from None
            raise

    async def _unknown_to_caller(self, messages: Sequence[Message]) -> dict[Key, str]:
        """Parents in cubes that the caller may not touch → an id that nobody has, to name in their place."""
        named = {Key(message.user_id, parent) for message in messages for parent in message.depends_on}
        if len(named) > MOST_PARENTS:
            reason = f"these are too many items for one submit: this key may name {MOST_PARENTS}"
            raise InvalidMessageError("depends_on", len(named), reason)
        principal, unknown = current_principal.get(), {}
        for key in named:
            found = await self._views.read(StatusQuery(user_id=key.user_id, item_id=key.item_id, limit=1))
            if any(not principal.may_touch(row.user_id, row.mem_cube_id) for row in found.rows):
                unknown[key] = uuid4().hex
        return unknown

    def _checked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Refuse messages that no backend should keep; the others come back without secrets."""
        for message in messages:
            check_message(message, self._limits)
            if message.info and message.label == "add" and len(message.content) > FEW_TURNS_CHARACTERS:
                _check_copies(message)
            if self._exclude_tools and message.label == "observation":
                self._check_tool(message.content)
        check_batch(messages)
        return [without_secrets(message) for message in messages] if self._redacts else messages

    def _check_tool(self, content: str) -> None:
        try:
            tool = msgspec.json.decode(content, type=_OfTool).type
        except msgspec.MsgspecError:
            return  # its handler says what is wrong with it
        if is_excluded_tool(self._exclude_tools, tool):
            raise InvalidMessageError("type", tool, "is excluded by capture.exclude_tools, so it is not kept")

    def _prepare(self, messages: Sequence[Message], *, vetted: bool = False) -> list[Message]:
        """Check the caller's role, and give each message the level of its label and the trace id."""
        trace_id = current_trace_id.get()
        levels = {label: self._level_of(label) for label in {message.label for message in messages}}
        principal = current_principal.get()
        if principal.role < Role.ADMIN:
            needed = self._role_of if vetted else self._role_to_submit
            for label in levels:
                principal.check_role(needed(label), f"the label {shown(label)}")
        return [
            msgspec.structs.replace(
                message, level=levels[message.label], trace_id=message.trace_id or trace_id
            )
            for message in messages
        ]

    def _accepted(
        self, messages: Sequence[Message], answers: Sequence[Submitted], at: int, *, notes: bool
    ) -> None:
        failpoint("after_accept")
        ids = current_ids.get()
        if ids is not None and any(
            ids.gave(answer.item_id) for answer in answers if answer.status == "conflict"
        ):
            raise IdempotencyError
        self._remember(messages)
        self._recorder.accepted(messages, answers, at)
        if notes:
            self._activity.note(messages, answers)

    def _remember(self, messages: Sequence[Message]) -> None:
        with self._lock:
            for message in messages:
                others = self._recent.pop(message.item_id, ())
                users = dict.fromkeys((message.user_id, *others))
                self._recent[message.item_id] = tuple(users)[:MOST_USERS]
            while len(self._recent) > MOST_RECENT:
                self._recent.popitem(last=False)

    def _keep(self, messages: Sequence[Message]) -> None:
        """Write messages to the spool, in their order; when this returns all of them are on disk."""
        trace_id = current_trace_id.get()
        for message in messages:
            fields = msgspec.to_builtins(message)
            self._spool.write(fields | {"trace_id": message.trace_id or trace_id})
