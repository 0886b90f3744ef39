"""The door for what hooks have told: each record gets the cube of its project, and its session is noted.

Python and HTTP come in by the same door, with records of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reverie.capture.hook_exclusions import Exclusions, is_excluded, without_excluded_calls
from reverie.capture.hook_record import Captured, captured
from reverie.errors import InvalidMessageError, NotSupportedError, UnknownSessionError
from reverie.memory.sessions import KeepsSessions
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reverie.capture.hook_record import HookRecord
    from reverie.memory.interface import MemoryStore
    from reverie.memory.sessions import SessionNote
    from reverie.message import Message

__all__ = ["WAITS_FOR_SESSION", "HookDoor"]

WAITS_FOR_SESSION = frozenset({"summary", "session_complete"})
"""The labels whose messages wait until the earlier messages of their session are settled."""
PROJECTS_KNOWN = 10_000
"""The most projects whose cubes are remembered; all are forgotten when there are more."""


class HookDoor:
    """Makes messages of records, and notes their sessions in the store."""

    def __init__(
        self,
        store: MemoryStore,
        on_noted: Callable[[SessionNote], None] = lambda _: None,
        excludes: Exclusions | None = None,
    ) -> None:
        """`on_noted` is called with each note that is kept; `excludes` is what nobody may tell."""
        self._store = store if isinstance(store, KeepsSessions) else None
        self._on_noted = on_noted
        self._excludes = excludes or Exclusions()
        self._cubes: dict[tuple[str, tuple[str, ...]], str] = {}

    @property
    def sessions(self) -> KeepsSessions:
        """The store; an error if it keeps no sessions."""
        if self._store is None:
            raise NotSupportedError("capture", "this memory store keeps no sessions")
        return self._store

    async def captured(self, records: Sequence[HookRecord]) -> list[Captured]:
        """What records become, in their order; nothing, if they are excluded.

        Messages that end a session wait for its earlier ones.
        """
        told = [await self._captured(record) for record in records]
        return [
            Captured(messages, note)
            for messages, note in zip(
                await self.waiting([one.messages for one in told]), (one.note for one in told), strict=True
            )
        ]

    async def check_project(self, user_id: str, cube: str) -> None:
        """Raise `InvalidMessageError` if the project of this cube is excluded."""
        if self._excludes.exclude_projects:
            keys = await self.sessions.project_keys(user_id, cube)
            if is_excluded(self._excludes, keys, "", {}):
                reason = (
                    "belongs to a project that is excluded by capture.exclude_projects, so it is not kept"
                )
                raise InvalidMessageError("mem_cube_id", cube, reason)

    async def waiting(self, groups: Sequence[Sequence[Message]]) -> list[tuple[Message, ...]]:
        """The same messages; summaries and ends of sessions depend on the earlier messages of their session.

        An end goes to the cube in which the session began. `UnknownSessionError` if the caller may not touch
        that cube.

        A lane keeps its order, so the last message of each lane of the session is enough. What others have
        told of a session in cubes that the caller may not touch is not waited for. A session may know these
        messages already, from a call that is repeated: they do not wait for each other again.
        """
        principal = current_principal.get()
        given = {message.item_id for messages in groups for message in messages}
        last: dict[tuple[str, str], dict[str, str]] = {}
        cubes: dict[tuple[str, str], str] = {}
        answer = []
        for messages in groups:
            group = []
            for message in messages:
                session = (message.user_id, message.session_id or "")
                if session not in last:
                    known = await self.sessions.session(*session)
                    items = {} if known is None else known.last_items
                    last[session] = {lane: item for lane, item in items.items() if item not in given}
                    cubes[session] = message.mem_cube_id if known is None else known.mem_cube_id
                    if not principal.may_touch(message.user_id, cubes[session]):
                        raise UnknownSessionError(session[1])
                if message.label == "session_complete":
                    message = msgspec.structs.replace(message, mem_cube_id=cubes[session])  # noqa: PLW2901
                lane = f"{message.mem_cube_id}/{message.label}"
                if message.label in WAITS_FOR_SESSION:
                    others = {
                        item
                        for name, item in last[session].items()
                        if name != lane and principal.may_touch(message.user_id, name.rpartition("/")[0])
                    }
                    message = msgspec.structs.replace(  # noqa: PLW2901
                        message,
                        depends_on=tuple(sorted(others - {message.item_id})),
                        if_dependency_fails="run",
                    )
                last[session][lane] = message.item_id
                group.append(message)
            answer.append(tuple(group))
        return answer

    async def note(self, notes: Sequence[SessionNote]) -> None:
        """Keep what records tell about their sessions, after their messages were accepted."""
        if notes:
            await self.sessions.note_sessions(notes)
            for note in notes:
                self._on_noted(note)

    async def _captured(self, record: HookRecord) -> Captured:
        """What a record becomes. The hook may have been told of fewer exclusions than this worker."""
        given = without_excluded_calls(record.input, self._excludes.exclude_tools)
        if given is None or is_excluded(self._excludes, record.project.keys, record.cwd, given):
            return Captured((), None)
        if given is not record.input:
            record = msgspec.structs.replace(record, input=given)
        return captured(record, await self._cube(record))

    async def _cube(self, record: HookRecord) -> str:
        project = (record.user_id, record.project.keys)
        if project not in self._cubes:
            if len(self._cubes) >= PROJECTS_KNOWN:
                self._cubes.clear()
            self._cubes[project] = await self.sessions.project_cube(*project, record.project.name)
        return self._cubes[project]
