"""Administration, under `/admin`: API keys and the audit log, for callers with the role admin."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from reverie.access.keys import ApiKey, KeyLimits
from reverie.api.answers import AuditPage, KeyPage, MadeKey
from reverie.api.envelope import answer
from reverie.api.memory_models import Moment
from reverie.api.models import Cursor, PageLimit, Text
from reverie.api.routing import Example, Route
from reverie.backends.records import TooManyRecordsError
from reverie.backends.views import check_cursor
from reverie.errors import BackendUnavailableError, InvalidSelectionError, UnknownKeyError
from reverie.face.scheduler import AsyncScheduler
from reverie.principal import Role

__all__ = ["ROUTES"]


class LimitsModel(BaseModel):
    """What the owner of a key may do at most; what is missing follows the server's settings."""

    requests_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_body_bytes: int | None = Field(None, ge=1, le=2**53)
    max_json_depth: int | None = Field(None, ge=1, le=2**53)


class KeyRequest(BaseModel):
    """A key to make."""

    name: Text = Field(description="what people call the key")
    role: Text = Field("user", description="read-only, user, service or admin")
    users: list[Text] | None = Field(None, description="the users that it may touch; missing: all")
    cubes: list[Text] | None = Field(None, description="the cubes of these users; missing: all")
    attributes: dict[str, Any] = Field({}, description="further facts about the owner, for governance")
    limits: LimitsModel = LimitsModel()
    expires_at: Moment = Field(None, description="until when it is valid; missing: until it is revoked")


class RotateRequest(BaseModel):
    """How a key gets a new secret."""

    overlap_s: float = Field(
        0, ge=0, allow_inf_nan=False, description="seconds for which the old secret stays valid"
    )


async def create_key(scheduler: AsyncScheduler, request: KeyRequest) -> JSONResponse:
    """Make a key. `token` is what its owner sends; it is shown only here.

    From the first key on, every request needs one.
    """
    made = await scheduler.keys.create(
        request.name,
        request.role,
        users=request.users,
        cubes=request.cubes,
        attributes=request.attributes,
        limits=KeyLimits(**request.limits.model_dump()),
        expires_at=request.expires_at,
    )
    return answer(MadeKey(key=made.key, token=made.token))


async def list_keys(scheduler: AsyncScheduler, cursor: Cursor = None, limit: PageLimit = 100) -> JSONResponse:
    """List keys by their ids, without their secrets; revoked and expired ones, too."""
    keys = await scheduler.keys.page(after=cursor or "", limit=limit)
    return answer(KeyPage(keys=keys, next=keys[-1].id if len(keys) == limit else None))


async def revoke_key(scheduler: AsyncScheduler, key_id: str) -> JSONResponse:
    """Refuse a key from now on. Every server process follows within a second."""
    return answer(await scheduler.keys.revoke(key_id))


async def rotate_key(
    scheduler: AsyncScheduler, key_id: str, request: RotateRequest | None = None
) -> JSONResponse:
    """Give a key a new secret, which is shown only here."""
    overlap_s = 0.0 if request is None else request.overlap_s
    made = await scheduler.keys.rotate(key_id, overlap_s=overlap_s)
    return answer(MadeKey(key=made.key, token=made.token))


async def audit(
    scheduler: AsyncScheduler, user_id: str | None = None, cursor: Cursor = None, limit: PageLimit = 100
) -> JSONResponse:
    """Read who changed what, newest first; with `user_id`, only changes of the data of this user."""
    check_cursor("cursor", cursor)
    before = None if cursor is None else int(cursor)
    entries = await scheduler.audit.page(before=before, limit=limit, user_id=user_id)
    next_cursor = str(entries[-1].number) if len(entries) == limit else None
    return answer(AuditPage(entries=msgspec.to_builtins(entries), next=next_cursor))


KEY_ID = "0123456789ab"
UNKNOWN = (UnknownKeyError, InvalidSelectionError, BackendUnavailableError)

ROUTES = (
    Route(
        "POST",
        "/admin/keys",
        create_key,
        role=Role.ADMIN,
        reach="all",
        answer=MadeKey,
        errors=(InvalidSelectionError, TooManyRecordsError, BackendUnavailableError),
        example=Example(body={"name": "Ann's phone", "role": "user", "users": ["ann"]}),
    ),
    Route(
        "GET",
        "/admin/keys",
        list_keys,
        role=Role.ADMIN,
        reach="all",
        answer=KeyPage,
        example=Example(query={"limit": 10}),
    ),
    Route(
        "DELETE",
        "/admin/keys/{key_id}",
        revoke_key,
        role=Role.ADMIN,
        reach="all",
        answer=ApiKey,
        errors=UNKNOWN,
        example=Example(path={"key_id": KEY_ID}),
    ),
    Route(
        "POST",
        "/admin/keys/{key_id}/rotate",
        rotate_key,
        role=Role.ADMIN,
        reach="all",
        answer=MadeKey,
        errors=UNKNOWN,
        example=Example(path={"key_id": KEY_ID}, body={"overlap_s": 3600}),
    ),
    Route(
        "GET",
        "/admin/audit",
        audit,
        role=Role.ADMIN,
        reach="all",
        answer=AuditPage,
        errors=(InvalidSelectionError, BackendUnavailableError),
        example=Example(query={"user_id": "ann", "limit": 10}),
    ),
)
