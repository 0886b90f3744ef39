"""Breakers and limiters that workers share, in an SQLite file. A key in its default state has no row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.backends.breaker_state import Grant, SharedMachine, State, is_blank, opened
from reverie.storage.queries import load_queries

if TYPE_CHECKING:
    import apsw

    from reverie.backends.breaker_state import Step
    from reverie.base.clock import Clock
    from reverie.storage.sqlite import Database

__all__ = ["SqliteSharedState"]

SQL = load_queries(__package__ or "", "breaker_state.sql")

_decode = msgspec.json.Decoder(State).decode


class SqliteSharedState(SharedMachine):
    """See `reverie.backends.interface.SharedState`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def _move(self, key: str, step: Step) -> Grant:
        def job(connection: apsw.Connection) -> Grant:
            now = self._clock.now()
            connection.execute(SQL["forget_states"], {"now": now})
            text = connection.execute(SQL["read_state"], {"key": key}).get
            before = State() if text is None else _decode(text)
            state, grant = step(before, now)
            if not is_blank(state):
                written = msgspec.json.encode(state).decode()
                bindings = {"key": key, "state": written, "forget_at": state.forget_at}
                connection.execute(SQL["write_state"], bindings)
            elif text is not None:
                connection.execute(SQL["remove_state"], {"key": key})
            return grant

        # A state that a power cut loses is learned again within a few calls.
        return await self._database.write(job, durable=False)

    async def open_breakers(self) -> dict[str, int]:
        """See `SharedState.open_breakers`."""

        def job(connection: apsw.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(SQL["all_states"]).fetchall()

        rows = await self._database.read(job)
        return opened(((key, _decode(text)) for key, text in rows), self._clock.now())
