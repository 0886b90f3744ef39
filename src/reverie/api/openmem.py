"""`/api/openmem/v1`: the routes of MemOS's published Python client, which needs only another base address.

Each route does what one under `/product` does. Only its fields have other names, its answers another shape:
`conversation_id` is the session, `task_id` names a message and its users, and the `code` of a success is 0.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from reverie.api.adding import add_now, add_soon, messages_of, submit_new
from reverie.api.answers import ChatFrame
from reverie.api.chat import ERRORS as CHAT_ERRORS
from reverie.api.chat import chat_stream, talk
from reverie.api.envelope import Answer
from reverie.api.feedback import feedback_messages
from reverie.api.memories import delete_memories, find_memory
from reverie.api.memory_lists import Window, page_of
from reverie.api.openmem_models import (
    AddedTask,
    AddFeedbackRequest,
    AddMessageRequest,
    AskRequest,
    ChangedMemory,
    DeletedAll,
    DeleteMemoryRequest,
    DetailPage,
    FoundDetails,
    GetMemoryRequest,
    GetMessageRequest,
    MemoryDetail,
    MessageDetail,
    Messages,
    PreferenceDetail,
    SearchMemoryRequest,
    Spoken,
    StatusRequest,
    TaskState,
    TaskStatus,
    UpdateMemoryRequest,
    detail_of,
    memory_detail,
    message_detail,
    preference_detail,
)
from reverie.api.product import PREFERENCE_NOTE, find
from reverie.api.routing import Example, Route
from reverie.api.streams import unless_gone
from reverie.backends.moves import Status
from reverie.errors import (
    AmbiguousIdError,
    BackendUnavailableError,
    ForeignDataError,
    InvalidMessageError,
    InvalidSelectionError,
    ItemTakenError,
    MemoryDeletedError,
    NotSupportedError,
    NoWorkerError,
    QueueFullError,
    UnknownItemError,
    UnknownMemoryError,
    VersionConflictError,
)
from reverie.face.scheduler import AsyncScheduler
from reverie.message import new_item_id
from reverie.observe.status import business_status
from reverie.principal import Role, current_principal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from reverie.backends.views import ItemStatus
    from reverie.memory.item import MemoryItem
    from reverie.message import Message

__all__ = ["ROUTES"]

PREFIX = "/api/openmem/v1"
LAST_MESSAGES = 6
"""How many messages of a conversation are read, unless the request says how many."""
HISTORY = 20
"""How many of the last messages of a conversation the language model sees in a chat."""
STATES: dict[Status, TaskState] = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
"""Status of a message → status of a task; all others are running."""


async def add_message(scheduler: AsyncScheduler, client: Request, request: AddMessageRequest) -> JSONResponse:
    """Take in what was said in a conversation. It is on disk when this answers.

    Without `async_mode`, a search finds it when this answers, unless the status is still `running`.
    """
    messages: list[Message] = []
    item_id = new_item_id()
    for one in request.add_requests(item_id):
        messages += await messages_of(scheduler, one)
    if request.async_mode:
        added = await add_soon(scheduler, messages)
    else:
        added = await add_now(scheduler, client, messages, with_facts=True)
    state = _joined({entry["status"] for entry in added.entries})
    return success(_task(item_id, request.owners, state), added.message)


async def search_memory(
    scheduler: AsyncScheduler, client: Request, request: SearchMemoryRequest
) -> JSONResponse:
    """Find memories and preferences that fit a query, best first."""
    found = await unless_gone(client, find(scheduler, request.search_request()))
    data: FoundDetails = {
        "memory_detail_list": [memory_detail(hit.item, hit.score) for hit in found.hits],
        "preference_detail_list": [preference_detail(hit.item, hit.score) for hit in found.preferences],
        "message_detail_list": [],
        "tool_memory_detail_list": [],
        "skill_detail_list": [],
        "profile_detail_list": [],
        "event_detail_list": [],
        "preference_note": PREFERENCE_NOTE if found.preferences else "",
    }
    return success(data)


async def get_memory_by_id(
    scheduler: AsyncScheduler, memory_id: str, user_id: str | None = None
) -> JSONResponse:
    """Read one memory. Without `user_id`, it is the one that a user of the caller has under this id."""
    return success(detail_of(await _owned(scheduler, memory_id, user_id)))


async def get_memory(scheduler: AsyncScheduler, client: Request, request: GetMemoryRequest) -> JSONResponse:
    """One page of the memories of a user, and one of the preferences, in the order they were learned."""
    texts, preferences = await unless_gone(
        client,
        page_of(scheduler, request.owner, None, given=request.filter, page=request.page, size=request.size),
    )
    wanted = preferences if request.include_preference else Window(0, 0)
    total = max(texts.total, wanted.total)
    data: DetailPage = {
        "memory_detail_list": [memory_detail(item) for item in texts.items],
        "preference_detail_list": [preference_detail(item) for item in wanted.items],
        "tool_memory_detail_list": [],
        "skill_detail_list": [],
        "profile_detail_list": [],
        "event_detail_list": [],
        "total": total,
        "size": request.size,
        "current": request.page,
        "pages": math.ceil(total / request.size),
    }
    return success(data)


async def get_message(scheduler: AsyncScheduler, request: GetMessageRequest) -> JSONResponse:
    """Read the last messages of a conversation, oldest first."""
    limit = request.message_limit_number or LAST_MESSAGES
    said = await _said(scheduler, request.owner, request.conversation_id, limit)
    return success(Messages(message_detail_list=said))


async def get_status(scheduler: AsyncScheduler, request: StatusRequest) -> JSONResponse:
    """The status of what was taken in, for all users for whom it was taken in."""
    return await get_status_by_query(scheduler, request.task_id)


async def get_status_by_query(scheduler: AsyncScheduler, task_id: str) -> JSONResponse:
    """The status of what was taken in, for all users for whom it was taken in."""
    joined = business_status(row.status for row in await _rows_of(scheduler, task_id))
    status: TaskStatus = {"task_id": task_id, "status": STATES.get(joined, "running")}
    return success(status)


async def add_feedback(scheduler: AsyncScheduler, request: AddFeedbackRequest) -> JSONResponse:
    """Take in what a user says about an answer; it changes the memories that it is about soon after."""
    item_id = new_item_id()
    messages = await feedback_messages(scheduler, request.feedback_request(item_id))
    await submit_new(scheduler, messages, spools=scheduler.runtime.settings.spool.submits)
    return success(_task(item_id, [request.owner], "running"))


async def delete_memory(
    scheduler: AsyncScheduler, client: Request, request: DeleteMemoryRequest
) -> JSONResponse:
    """Delete memories: by their ids, all of a user, or those that pass a filter. They are gone then."""
    is_done, message = await delete_memories(scheduler, client, request.delete_request())
    return success(DeletedAll(success=is_done), message)


async def update_memory(scheduler: AsyncScheduler, request: UpdateMemoryRequest) -> JSONResponse:
    """Change the text, the title or the status of a memory. The change holds when this answers."""
    item = await _owned(scheduler, request.memory_id, request.user_id)
    memory = scheduler.memory
    if request.content or request.title:
        item = await memory.update(
            item.id, user_id=item.user_id, text=request.content or None, title=request.title or None
        )
    if request.status == "deleted":
        await memory.delete(item.id, user_id=item.user_id)
    elif request.status and request.status != item.status:
        tier = "archive" if request.status == "archived" else "long_term"
        await memory.move(item.id, tier, user_id=item.user_id)
    return success(ChangedMemory(success=True, memory_id=item.id))


async def chat(scheduler: AsyncScheduler, client: Request, request: AskRequest) -> Response:
    """Answer a question with the language model, which sees the memories that fit and the conversation.

    With `stream`, the answer comes as events, like that of `/product/chat/stream`.
    """
    said: list[MessageDetail] = []
    if request.conversation_id:
        said = await _said(scheduler, request.owner, request.conversation_id, HISTORY)
    asked = request.chat_request(said)
    if request.stream:
        return await chat_stream(scheduler, client, asked)
    done = await unless_gone(client, talk(scheduler, asked))
    message = "ok" if done.not_kept is None else f"answered, but not remembered: {done.not_kept}"
    return success(Spoken(response=done.response), message)


def success(data: Any, message: str = "ok") -> JSONResponse:
    """Make an answer as clients of this API expect it: the code of a success is 0."""
    return Answer({"code": 0, "message": message, "data": data})


async def _said(
    scheduler: AsyncScheduler, user_id: str, conversation_id: str | None, limit: int
) -> list[MessageDetail]:
    """The last messages of a conversation, or of all, oldest first."""
    page = await scheduler.memory.page(
        user_id=user_id,
        kinds=("turn",),
        session_id=conversation_id or None,
        with_superseded=True,
        newest_first=True,
        limit=limit,
    )
    return [message_detail(item) for item in reversed(page.items)]


async def _owned(scheduler: AsyncScheduler, memory_id: str, user_id: str | None) -> MemoryItem:
    """The memory with this id, of the user or else of the one user of the caller who has it."""
    item = await find_memory(scheduler, memory_id, user_id)
    if item is None:
        raise UnknownMemoryError(memory_id)
    return item


def _task(item_id: str, users: Sequence[str], state: TaskState) -> AddedTask:
    """What was taken in, as a task. Its id names the users, too, because ids are per user."""
    task_id = f"{item_id}@{','.join(quote(user, safe='') for user in users)}"
    return {"success": state != "failed", "task_id": task_id, "status": state}


def _joined(statuses: AbstractSet[str]) -> TaskState:
    """The status of a task whose memories have these statuses."""
    if statuses & {"failed", "cancelled"}:
        return "failed"
    return "completed" if statuses == {"activated"} else "running"


async def _rows_of(scheduler: AsyncScheduler, task_id: str) -> list[ItemStatus]:
    """The messages that a task id means. Users whom the caller may not touch look as if they had none."""
    principal = current_principal.get()
    item_id, at, names = task_id.rpartition("@")
    if at:
        users = dict.fromkeys(map(unquote, names.split(",")))
        for user in users:
            if not principal.may_touch(user):
                raise UnknownItemError(user, item_id)
        return [row for user in users for row in await scheduler.status(user, item_id)]
    if principal.users is None:
        raise InvalidSelectionError(
            f"task_id={task_id!r}: give the task_id that was answered, it names a user"
        )
    found: list[ItemStatus] = []
    for user in sorted(principal.users):
        with suppress(UnknownItemError):
            rows = await scheduler.status(user, task_id)
            if found:
                raise AmbiguousIdError(task_id, "task")
            found = rows
    if not found:
        raise UnknownItemError(", ".join(sorted(principal.users)), task_id)
    return found


BAD_ID = (InvalidMessageError, BackendUnavailableError)
BY_ID = (
    UnknownMemoryError,
    AmbiguousIdError,
    MemoryDeletedError,
    InvalidSelectionError,
    ForeignDataError,
    *BAD_ID,
)
TASK = (UnknownItemError, AmbiguousIdError, InvalidSelectionError, *BAD_ID)

ROUTES = (
    Route(
        "POST",
        f"{PREFIX}/search/memory",
        search_memory,
        role=Role.READ_ONLY,
        answer=FoundDetails,
        errors=BAD_ID,
        example=Example(body={"user_id": "ann", "query": "tea"}),
    ),
    Route(
        "POST",
        f"{PREFIX}/get/memory",
        get_memory,
        role=Role.READ_ONLY,
        answer=DetailPage,
        errors=BAD_ID,
        example=Example(body={"user_id": "ann", "page": 1, "size": 10}),
    ),
    Route(
        "GET",
        f"{PREFIX}/get/memory/{{memory_id}}",
        get_memory_by_id,
        role=Role.READ_ONLY,
        reach="own",
        answer=(MemoryDetail, PreferenceDetail),
        errors=BY_ID,
        example=Example(path={"memory_id": "tea.0"}),
    ),
    Route(
        "POST",
        f"{PREFIX}/get/message",
        get_message,
        role=Role.READ_ONLY,
        answer=Messages,
        errors=BAD_ID,
        example=Example(body={"user_id": "ann", "conversation_id": "may"}),
    ),
    Route(
        "POST",
        f"{PREFIX}/get/status",
        get_status,
        role=Role.READ_ONLY,
        reach="own",
        answer=TaskStatus,
        errors=TASK,
        example=Example(body={"task_id": "tea@ann"}),
    ),
    Route(
        "GET",
        f"{PREFIX}/get/status",
        get_status_by_query,
        role=Role.READ_ONLY,
        reach="own",
        answer=TaskStatus,
        errors=TASK,
        example=Example(query={"task_id": "tea@ann"}),
    ),
    Route(
        "POST",
        f"{PREFIX}/update/memory",
        update_memory,
        role=Role.USER,
        reach="own",
        answer=ChangedMemory,
        errors=(VersionConflictError, *BY_ID),
        example=Example(body={"memory_id": "tea.0", "content": "I like black tea"}),
    ),
    Route(
        "POST",
        f"{PREFIX}/delete/memory",
        delete_memory,
        role=Role.USER,
        reach="own",
        answer=DeletedAll,
        errors=(
            InvalidSelectionError,
            ForeignDataError,
            AmbiguousIdError,
            VersionConflictError,
            NotSupportedError,
            *BAD_ID,
        ),
        example=Example(body={"memory_ids": ["tea.0"]}),
    ),
    Route(
        "POST",
        f"{PREFIX}/add/message",
        add_message,
        role=Role.USER,
        answer=AddedTask,
        errors=(ItemTakenError, QueueFullError, NotSupportedError, NoWorkerError, *BAD_ID),
        example=Example(
            body={
                "user_id": "ann",
                "conversation_id": "may",
                "messages": [{"role": "user", "content": "I like green tea"}],
            }
        ),
    ),
    Route(
        "POST",
        f"{PREFIX}/add/feedback",
        add_feedback,
        role=Role.USER,
        answer=AddedTask,
        errors=(ItemTakenError, QueueFullError, *BAD_ID),
        example=Example(
            body={"user_id": "ann", "conversation_id": "may", "feedback_content": "No, I like black tea"}
        ),
    ),
    Route(
        "POST",
        f"{PREFIX}/chat",
        chat,
        role=Role.USER,
        answer=Spoken,
        events=ChatFrame,
        errors=CHAT_ERRORS,
        example=Example(
            body={"user_id": "ann", "conversation_id": "may", "query": "What do I like to drink?"}
        ),
    ),
)
