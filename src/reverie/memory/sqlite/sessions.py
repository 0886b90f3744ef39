"""Sessions and the keys of projects on SQLite; `memory/sessions.py` says what each step means."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from reverie.errors import InvalidSelectionError
from reverie.memory.sessions import Session, SessionPage
from reverie.memory.sqlite.rows import item_of, load_statements, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from reverie.effect import PutSession
    from reverie.memory.item import MemoryItem
    from reverie.memory.sessions import SessionNote, SessionQuery
    from reverie.memory.sqlite.effects import EffectStep
    from reverie.storage.sqlite import Database

__all__ = ["SqliteSessions", "put_session"]

COLUMNS = (
    "user_id, memory_session_id, project_id, status, agent, title, prompts, created_at_epoch, "
    "updated_at_epoch, ended_at_epoch, completed_at_epoch, error, context, last_items"
)
"""The columns that `_session` reads, in this order; statements name them `session_columns`."""
SQL = {
    name: text.replace("session_columns", COLUMNS) for name, text in load_statements("sessions.sql").items()
}
LAST = 2**62
LONGEST_NAME = 40
"""Characters of a project's name that its cube takes over."""


def put_session(step: EffectStep, effect: PutSession) -> None:
    """Write the begin or the end of a session."""
    given = {"session_id": effect.session_id, "at": effect.at, "agent": effect.agent}
    step.run(SQL["begin"], **given)
    if effect.status != "created":
        step.run(SQL["put"], status=effect.status, error=effect.error, **given)


class SqliteSessions:
    """See `reverie.memory.sessions.KeepsSessions`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, notes: Sequence[SessionNote]) -> None:
        """See `KeepsSessions.note_sessions`."""
        rows = [
            {
                "user_id": note.user_id,
                "session_id": note.session_id,
                "project_id": note.mem_cube_id,
                "agent": note.agent,
                "prompt": note.prompt,
                "items": to_json(note.items),
                "context": note.context,
                "at": note.at,
                "is_end": note.is_end,
            }
            for note in notes
        ]
        if rows:
            await self._database.write(
                lambda connection: connection.executemany(SQL["note"], rows).fetchall()
            )

    async def session(self, user_id: str, session_id: str) -> Session | None:
        """See `KeepsSessions.session`."""
        rows = await self._rows("session", (user_id, session_id))
        return _session(rows[0]) if rows else None

    async def page(self, query: SessionQuery) -> SessionPage:
        """See `KeepsSessions.sessions`."""
        before, before_id = _place(query.after)
        rows = await self._rows(
            "sessions",
            {
                "user_id": query.user_id,
                "project_id": query.mem_cube_id,
                "status": query.status,
                "before": before,
                "before_id": before_id,
                "limit": query.limit,
            },
        )
        found = [_session(row) for row in rows]
        follows = f"{found[-1].updated_at}-{found[-1].session_id}" if len(found) == query.limit else None
        return SessionPage(sessions=found, next=follows)

    async def time_out(self, before: int, now: int, limit: int) -> list[Session]:
        """See `KeepsSessions.time_out_sessions`."""
        given = {"before": before, "now": now, "limit": limit}
        return await self._database.write(
            lambda connection: [_session(row) for row in connection.execute(SQL["time_out"], given)]
        )

    async def slow_ends(self, before: int, limit: int) -> list[Session]:
        """See `KeepsSessions.slow_ends`."""
        rows = await self._rows("slow_ends", {"before": before, "limit": limit})
        return [_session(row) for row in rows]

    async def forget(self, user_id: str, session_id: str) -> bool:
        """See `KeepsSessions.forget_session`."""
        return await self._database.write(
            lambda connection: bool(connection.execute(SQL["forget"], (user_id, session_id)).fetchall())
        )

    async def project_cube(self, user_id: str, keys: Sequence[str], name: str) -> str:
        """See `KeepsSessions.project_cube`."""

        def job(connection: apsw.Connection) -> str:
            given = {"user_id": user_id, "keys": to_json(keys)}
            known: str | None = connection.execute(SQL["aliases"], given).get
            cube = known or _new_cube(name, keys[0])
            connection.execute(SQL["add_aliases"], given | {"project_id": cube})
            return cube

        return await self._database.write(job)

    async def known_project(self, user_id: str, keys: Sequence[str]) -> str | None:
        """See `KeepsSessions.known_project`."""
        rows = await self._rows("aliases", {"user_id": user_id, "keys": to_json(keys)})
        return rows[0][0] if rows else None

    async def project_keys(self, user_id: str, cube: str) -> list[str]:
        """See `KeepsSessions.project_keys`."""
        return [key for (key,) in await self._rows("keys", (user_id, cube))]

    async def items(self, user_id: str, session_id: str, limit: int) -> list[MemoryItem]:
        """See `KeepsSessions.session_items`."""
        given = {"user_id": user_id, "session_id": session_id, "limit": limit}
        return [item_of(row) for row in reversed(await self._rows("session_items", given))]

    async def set_aside(self, user_id: str, label: str, hour: str, tokens: int, limit: int) -> bool:
        """See `KeepsSessions.set_aside`."""
        given = {"user_id": user_id, "label": label, "hour": hour, "tokens": tokens, "limit": limit}

        def job(connection: apsw.Connection) -> bool:
            connection.execute(SQL["forget_hours"], given)
            return bool(connection.execute(SQL["set_aside"], given).fetchall())

        return await self._database.write(job)

    async def _rows(self, statement: str, bindings: Any) -> list[tuple[Any, ...]]:
        return await self._database.read(
            lambda connection: connection.execute(SQL[statement], bindings).fetchall()
        )


def _new_cube(name: str, key: str) -> str:
    """A cube id for a new project: readable, and different for projects of the same name."""
    plain = re.sub(r"[^A-Za-z0-9.@-]+", "-", name).strip("-.")[:LONGEST_NAME] or "project"
    return f"{plain}-{hashlib.blake2b(key.encode(), digest_size=4).hexdigest()}"


def _session(row: tuple[Any, ...]) -> Session:
    (
        user_id, session_id, cube, status, agent, title, prompts, created, updated, ended, completed, error,
        context, last_items,
    ) = row  # fmt: skip
    return Session(
        user_id=user_id,
        session_id=session_id,
        mem_cube_id=cube,
        status=status,
        agent=agent,
        title=title,
        prompts=prompts,
        created_at=created,
        updated_at=updated,
        ended_at=ended,
        completed_at=completed,
        error=error,
        context=context,
        last_items=_decode_items(last_items),
    )


def _place(after: str | None) -> tuple[int, str]:
    """The time and the id of the last session of the page before."""
    if after is None:
        return LAST, ""
    updated_at, _, session_id = after.partition("-")
    if not updated_at.isascii() or not updated_at.isdigit() or len(updated_at) > len(str(LAST)) - 1:
        raise InvalidSelectionError(f"cursor={after[:80]!r}: must be the `next` of the page before")
    return int(updated_at), session_id


_decode_items = msgspec.json.Decoder(dict[str, str]).decode
