"""Who calls a tool, and whose memories the call is about: by the folder of the server, or by an API key."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

from pydantic import Field

from reverie.base.logs import get_logger
from reverie.errors import BackendUnavailableError, InvalidSelectionError
from reverie.mcp.tools import Reach
from reverie.message import check_ids
from reverie.principal import Principal, Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.face.scheduler import AsyncScheduler

__all__ = ["Caller", "Callers", "KeyCallers", "LocalCaller"]

log = get_logger(__name__)


class Caller(NamedTuple):
    """On whose behalf a tool runs, and whose memories it is about."""

    principal: Principal
    reach: Reach


class Callers(Protocol):
    """Finds the caller of each call of a tool."""

    parameters: Sequence[inspect.Parameter]
    """The arguments by which a call says whose memories it is about. Every tool takes them beside its own."""

    async def find(self, given: Mapping[str, str]) -> Caller:
        """The caller of the present call, by the values of these arguments."""
        ...


class LocalCaller:
    """The person on whose machine the server runs, in one project or in all."""

    parameters: Sequence[inspect.Parameter] = ()

    def __init__(
        self, scheduler: AsyncScheduler, user_id: str, keys: Sequence[str] | None, name: str = ""
    ) -> None:
        """`keys` and `name` are those of the project; without keys, all projects are meant."""
        check_ids(scheduler.runtime.limits, user_id=user_id)
        self._runtime = scheduler.runtime
        self._user_id = user_id
        self._keys = keys
        self._name = name
        self._cube: str | None = None

    async def find(self, given: Mapping[str, str]) -> Caller:  # noqa: ARG002
        """The person, who sees the own cube and the cube of the project, or all cubes."""
        user_id = self._user_id
        if self._keys is not None and self._cube is None:
            self._cube = await self._project_cube(self._keys)
        cubes = None if self._cube is None else frozenset({self._cube, user_id})
        return Caller(
            Principal(key="local", role=Role.USER, users=frozenset({user_id}), cubes=cubes),
            Reach(user_id=user_id, mem_cube_id=self._cube, beside=(user_id,), spools=True),
        )

    async def _project_cube(self, keys: Sequence[str]) -> str:
        """The cube of the project. One that nobody has worked in yet gets its cube now."""
        try:
            await self._runtime.open()
        except BackendUnavailableError as error:  # the store is open, if it is a database of its own
            log.warning("mcp.queue_away", error=str(error))
        store = self._runtime.door.sessions
        known = await store.known_project(self._user_id, keys)
        return known or await store.project_cube(self._user_id, keys, self._name)


class KeyCallers:
    """The owners of API keys. A call names its user, unless the key is for one user alone."""

    parameters: Sequence[inspect.Parameter] = tuple(
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default="",
            annotation=Annotated[str, Field(description=description)],
        )
        for name, description in (
            ("user_id", "whose memories; may be left out if the key is for one user"),
            ("mem_cube_id", "the cube of a project; without it, all cubes that the key may touch"),
        )
    )

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._runtime = scheduler.runtime

    async def find(self, given: Mapping[str, str]) -> Caller:
        """The owner of the key of the present request; an error if the key may not touch what is named."""
        principal = current_principal.get()
        user_id, cube = given["user_id"], given["mem_cube_id"]
        if not user_id:
            if principal.users is None or len(principal.users) != 1:
                raise InvalidSelectionError("say whose memories, with user_id: the key is not for one user")
            (user_id,) = principal.users
        if not cube and principal.cubes is not None and len(principal.cubes) == 1:
            (cube,) = principal.cubes
        check_ids(self._runtime.limits, user_id=user_id, mem_cube_id=cube or None)
        principal.check_touch(user_id, (cube,) if cube else ())
        spools = self._runtime.settings.spool.submits
        return Caller(principal, Reach(user_id=user_id, mem_cube_id=cube or None, spools=spools))
