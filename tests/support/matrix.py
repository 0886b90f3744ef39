"""The rows of the authorization matrix: at least one request for every route of the table.

A new route needs a row here. In a request `USER` stands for the user that is asked about, `CUBE` for a cube
of this user. The test leaves fields with `CUBE` out where no cube is to be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reverie.api.unsupported import REASONS

__all__ = ["CUBE", "ROWS", "SECRET", "USER", "Ask"]

USER, CUBE = "<user>", "<cube>"
SECRET = "hidden-treasure"
"""A word in everything that belongs to others."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request to a route."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    whole: bool = False
    """Whether the request is about all cubes of the user unless it names one."""
    own: tuple[int, ...] = (200,)
    """What a caller may be answered about the own user and cube."""
    statuses: tuple[int, ...] = (200,)
    """What a caller may be answered about others, if its key allows that."""

    @property
    def names_user(self) -> bool:
        return USER in repr((self.query, self.body))

    @property
    def names_cube(self) -> bool:
        return CUBE in repr((self.query, self.body))

    def filled(self, user_id: str, cube: str | None) -> Ask:
        """The request about a user, and about a cube if one is given."""
        return Ask(
            path={name: _fill(value, user_id, cube) for name, value in self.path.items()},
            query=_fill(dict(self.query), user_id, cube),
            body=_fill(self.body, user_id, cube),
        )


def _fill(value: Any, user_id: str, cube: str | None) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if cube is not None or not _is_cube(each)}
        return {name: _fill(each, user_id, cube) for name, each in kept.items()}
    if isinstance(value, list):
        return [_fill(each, user_id, cube) for each in value]
    return value.replace(USER, user_id).replace(CUBE, cube or "") if isinstance(value, str) else value


def _is_cube(value: Any) -> bool:
    return value in (CUBE, [CUBE])


def of_user(**query: Any) -> Ask:
    return Ask(query={"user_id": USER, **query})


def items(**given: Any) -> Ask:
    return Ask(body={"user_id": USER, "mem_cube_id": CUBE, **given}, whole=True)


MAYBE = (200, 404, 410)


def memory(**given: Any) -> tuple[Ask, ...]:
    """A request about one memory: with its user, and with an id alone, of the own user and of another one."""
    body = given.pop("body", None)
    asks = []
    for memory_id, user_id in (("own-ann.0", USER), ("own-ann.0", None), ("own-bob.0", None)):
        named = {} if user_id is None else {"user_id": user_id}
        asks.append(
            Ask(
                path={"memory_id": memory_id},
                query={} if body is not None else named,
                body=None if body is None else {**body, **named},
                own=(200,) if memory_id == "own-ann.0" else MAYBE,
                statuses=(200, 404),
            )
        )
    return tuple(asks)


def session(*session_ids: str) -> tuple[Ask, ...]:
    """Requests about single sessions: of the own cube, of another cube, of another user, and unknown ones."""
    return tuple(
        Ask(path={"session_id": each}, query={"user_id": USER}, own=(200, 404), statuses=(200, 404))
        for each in session_ids
    )


PREFIX = "/product/scheduler"
TASK = {"task_type": "memory_compression"}
SWITCHED = {"task_type": "statistics_update"}
KEY = {"key_id": "0123456789ab"}
WEBHOOK = {"webhook_id": "wh_0123456789abcdef"}
UNKNOWN = {"own": (404,), "statuses": (404,)}
OPENMEM = "/api/openmem/v1"
"""About a memory that other requests may have deleted, or that is of others."""


def refused(*paths: str) -> dict[str, tuple[Ask, ...]]:
    """Routes that are not served."""
    return {f"POST {path}": (Ask(own=(501,), statuses=(501,)),) for path in paths}


def task(task_id: str, *own: int) -> tuple[Ask, Ask]:
    """A request for the status of a task, as a body and as a query."""
    return (
        Ask(body={"task_id": task_id}, own=own, statuses=own),
        Ask(query={"task_id": task_id}, own=own, statuses=own),
    )


STATUSES = (task("own-ann@ann", 200), task("own-vault@ann", 200, 404), task("own-bob@bob", 200, 404))
STATUSES += (task("own-bob@ann,bob", 404), task("own-ann", 200, 400), task("own-bob", 404, 400))

ROWS: dict[str, tuple[Ask, ...]] = {
    "POST /product/add": (
        Ask(body={"user_id": USER, "mem_cube_id": CUBE, "messages": "tea", "item_id": f"new-{USER}-{CUBE}"}),
        Ask(
            body={
                "user_id": USER,
                "writable_cube_ids": [CUBE],
                "messages": "tea",
                "item_id": f"newer-{USER}-{CUBE}",
            }
        ),
    ),
    "POST /product/search": (
        Ask(body={"user_id": USER, "mem_cube_id": CUBE, "query": "bees", "relativity": 0, "explain": False}),
        Ask(
            body={
                "user_id": USER,
                "readable_cube_ids": [CUBE],
                "query": f"bees {SECRET}",
                "threshold": 0.9,
                "neighbor_discovery": True,
            }
        ),
    ),
    "GET /product/get_memory/{memory_id}": (
        Ask(path={"memory_id": "own-ann.0"}, query={"user_id": USER}),
        Ask(path={"memory_id": "own-vault.0"}, query={"user_id": USER}),
        Ask(path={"memory_id": "nothing"}, query={"user_id": USER}),
        *(Ask(path={"memory_id": each}) for each in ("own-ann.0", "own-vault.0", "own-bob.0", "nothing")),
    ),
    "POST /product/get_memory_by_ids": (
        Ask(query={"user_id": USER}, body=["own-ann.0", "own-vault.0", "own-bob.0", "nothing"]),
        Ask(body=["own-ann.0", "own-vault.0", "own-bob.0", "nothing"]),
    ),
    "POST /product/get_user_names_by_memory_ids": (
        Ask(body={"memory_ids": ["own-ann.0", "own-vault.0", "own-bob.0", "nothing"]}),
    ),
    "POST /product/delete_memory": (
        Ask(body={"user_id": USER, "memory_ids": ["own-vault.0", "own-bob.0", "nothing"]}),
        Ask(body={"user_id": USER, "session_id": "talk", "writable_cube_ids": [CUBE]}),
        Ask(body={"user_id": USER, "filter": {"tags": "none"}, "writable_cube_ids": [CUBE]}),
        Ask(body={"memory_ids": ["own-vault.0", "own-bob.0", "nothing"]}),
    ),
    "POST /product/get_all": (
        Ask(body={"user_id": USER, "memory_type": "text_mem", "mem_cube_ids": [CUBE]}),
        Ask(body={"user_id": USER, "memory_type": "text_mem", "search_query": "bees"}),
    ),
    "POST /product/get_memory": (
        Ask(body={"user_id": USER, "mem_cube_id": "ann"}),
        *(Ask(body={"mem_cube_id": cube}) for cube in ("ann", "vault", "bob", "nothing")),
    ),
    "POST /product/feedback": (
        Ask(
            body={
                "user_id": USER,
                "history": None,
                "feedback_content": "great",
                "item_id": f"said-{USER}-{CUBE}",
                "retrieved_memory_ids": ["own-ann.0", "own-vault.0", "own-bob.0"],
                "writable_cube_ids": [CUBE],
            }
        ),
    ),
    "POST /product/create_cube": (
        Ask(body={"owner_id": USER, "cube_name": "A name", "cube_id": CUBE}, whole=True),
    ),
    "POST /product/register_cube": (
        Ask(body={"user_id": USER, "mem_cube_name_or_path": "new", "mem_cube_id": CUBE}, whole=True),
    ),
    "POST /product/exist_mem_cube_id": tuple(
        Ask(body={"mem_cube_id": cube}) for cube in ("ann", "vault", "bob", "nothing")
    ),
    "GET /product/cubes": (of_user(), of_user(limit=1)),
    **dict.fromkeys(
        ("POST /product/chat/complete", "POST /product/chat/stream"),
        (
            Ask(
                body={"user_id": USER, "query": "bees", "readable_cube_ids": [CUBE]},
                own=(503,),
                statuses=(503,),
            ),
        ),
    ),
    "POST /product/suggestions": (Ask(body={"user_id": USER, "mem_cube_id": "ann", "language": "en"}),),
    "GET /product/memories": (
        Ask(query={"user_id": USER, "mem_cube_id": CUBE}),
        Ask(query={"user_id": USER, "mem_cube_id": CUBE, "limit": 1, "newest_first": True}),
    ),
    "PATCH /product/memories/{memory_id}": memory(body={"text": "I kept bees"}),
    "GET /product/memories/{memory_id}/history": memory(),
    "GET /product/memories/{memory_id}/links": memory(),
    "GET /product/sessions": (
        Ask(query={"user_id": USER, "mem_cube_id": CUBE}),
        Ask(query={"user_id": USER, "limit": 1}),
        Ask(query={"user_id": USER, "mem_cube_id": CUBE, "status": "active", "limit": 1}),
    ),
    "GET /product/sessions/{session_id}": session("work-ann", "work-vault", "work-bob", "nothing"),
    "DELETE /product/sessions/{session_id}": session("old-vault", "old-bob", "nothing", "old-ann"),
    "GET /product/timeline": (
        Ask(query={"user_id": USER, "mem_cube_id": CUBE, "session_id": "talk"}),
        Ask(query={"user_id": USER, "session_id": "talk", "before": 0, "after": 0}),
        Ask(query={"user_id": USER, "mem_cube_id": CUBE, "file": "honey.py"}),
        *(
            Ask(query={"user_id": USER, "around": memory_id}, own=MAYBE, statuses=MAYBE)
            for memory_id in ("third-ann.0", "third-vault.0", "third-bob.0", "nothing")
        ),
    ),
    "POST /product/capture/observation": (
        Ask(
            body={
                "user_id": USER,
                "projectId": CUBE,
                "memorySessionId": f"new-{USER}-{CUBE}",
                "title": "Read honey.py",
                "item_id": f"seen-{USER}-{CUBE}",
            }
        ),
    ),
    "POST /product/capture/session": (
        Ask(
            body={
                "user_id": USER,
                "mem_cube_id": CUBE,
                "session_id": f"newer-{USER}-{CUBE}",
                "event": "prompt",
                "text": "Read honey.py",
            }
        ),
    ),
    "GET /product/extraction": (Ask(query={"user_id": USER, "mem_cube_id": CUBE}),),
    "PUT /product/extraction": (Ask(body={"user_id": USER, "mem_cube_id": CUBE, "mission": "a diary"}),),
    "GET /product/usage": (Ask(query={"user_id": USER, "mem_cube_id": CUBE}),),
    f"POST {PREFIX}/submit": (
        Ask(
            body={
                "messages": [
                    {"user_id": USER, "mem_cube_id": CUBE, "label": "import", "item_id": f"n-{CUBE}"}
                ]
            }
        ),
        Ask(
            body={
                "messages": [
                    {"user_id": "ann", "mem_cube_id": "ann", "label": "import", "item_id": "first"},
                    {"user_id": USER, "mem_cube_id": CUBE, "label": "import", "item_id": f"s-{CUBE}"},
                ]
            }
        ),
    ),
    f"GET {PREFIX}/status": (
        of_user(),
        of_user(limit=1),
        of_user(limit=1000),
        Ask(query={"user_id": USER, "task_id": "own-ann"}, statuses=(200, 404)),
        Ask(query={"user_id": USER, "task_id": "own-vault"}, own=(200, 404), statuses=(200, 404)),
        Ask(query={"user_id": USER, "task_id": "everything"}, statuses=(200, 404)),
    ),
    f"GET {PREFIX}/allstatus": (Ask(),),
    f"GET {PREFIX}/task_queue_status": (of_user(),),
    f"POST {PREFIX}/wait": (Ask(query={"user_name": USER, "timeout_seconds": 0}),),
    f"GET {PREFIX}/wait/stream": (Ask(query={"user_name": USER, "timeout_seconds": 0}),),
    f"GET {PREFIX}/dead_letters": (of_user(), of_user(limit=1), of_user(label="export")),
    f"GET {PREFIX}/dead_letters/{{item_id}}": (
        Ask(path={"item_id": "dead-ann"}, query={"user_id": USER}, statuses=(200, 404)),
        Ask(path={"item_id": "dead-vault"}, query={"user_id": USER}, own=(200, 404), statuses=(200, 404)),
        Ask(path={"item_id": "dead-bob"}, query={"user_id": USER}, own=(404,), statuses=(200, 404)),
    ),
    f"POST {PREFIX}/dead_letters/requeue": (items(label="export"), items(item_ids=["dead-bob"])),
    f"POST {PREFIX}/dead_letters/delete": (items(label="export"), items(item_ids=["dead-vault"])),
    f"POST {PREFIX}/cancel": (items(label="import"), items(task_id="everything")),
    f"GET {PREFIX}/labels": (Ask(), Ask(query={"limit": 1})),
    f"POST {PREFIX}/labels/{{label}}/pause": (Ask(path={"label": "import"}, body={"reason": "a look"}),),
    f"POST {PREFIX}/labels/{{label}}/resume": (Ask(path={"label": "import"}),),
    f"GET {PREFIX}/events": (of_user(timeout_seconds=0), Ask(query={"timeout_seconds": 0})),
    "POST /api/push/chat/message": (
        Ask(body={"user_id": USER, "mem_cube_id": CUBE, "content": "tea", "item_id": f"pushed-{CUBE}"}),
    ),
    f"GET {PREFIX}/triggers": (Ask(),),
    f"GET {PREFIX}/triggers/{{task_type}}": (Ask(path=TASK),),
    f"POST {PREFIX}/triggers/{{task_type}}/run": (Ask(path=TASK, body={"user_id": USER}, whole=True),),
    f"POST {PREFIX}/triggers/{{task_type}}/cancel": (Ask(path=TASK, body={"user_id": USER}, whole=True),),
    f"POST {PREFIX}/triggers/{{task_type}}/enable": (Ask(path=SWITCHED),),
    f"POST {PREFIX}/triggers/{{task_type}}/disable": (Ask(path=SWITCHED),),
    "GET /health": (Ask(),),
    "GET /ready": (Ask(own=(200, 503), statuses=(200, 503)),),
    "GET /alerts": (Ask(),),
    "GET /metrics": (Ask(),),
    "POST /admin/keys": (Ask(body={"name": "another", "users": [USER]}),),
    "GET /admin/keys": (Ask(), Ask(query={"limit": 1})),
    "DELETE /admin/keys/{key_id}": (Ask(path=KEY, **UNKNOWN),),
    "POST /admin/keys/{key_id}/rotate": (Ask(path=KEY, **UNKNOWN),),
    "POST /admin/webhooks": (
        Ask(body={"url": "https://example.com/hook", "events": ["memory.added"], "users": [USER]}),
    ),
    "GET /admin/webhooks": (Ask(), Ask(query={"limit": 1})),
    "GET /admin/webhooks/{webhook_id}": (Ask(path=WEBHOOK, **UNKNOWN),),
    "DELETE /admin/webhooks/{webhook_id}": (Ask(path=WEBHOOK, **UNKNOWN),),
    "POST /admin/webhooks/{webhook_id}/test": (Ask(path=WEBHOOK, **UNKNOWN),),
    "GET /admin/audit": (Ask(), Ask(query={"user_id": USER})),
    f"POST {OPENMEM}/search/memory": (
        Ask(body={"user_id": USER, "query": "bees", "relativity": 0}),
        Ask(body={"user_id": USER, "query": f"bees {SECRET}", "relativity": 0.9}),
    ),
    f"POST {OPENMEM}/get/memory": (Ask(body={"user_id": USER}), Ask(body={"user_id": USER, "size": 1})),
    f"GET {OPENMEM}/get/memory/{{memory_id}}": (
        Ask(path={"memory_id": "own-ann.0"}, query={"user_id": USER}, statuses=MAYBE),
        Ask(path={"memory_id": "own-ann.0"}, own=MAYBE),
        Ask(path={"memory_id": "own-vault.0"}, own=MAYBE),
        Ask(path={"memory_id": "own-bob.0"}, own=MAYBE),
    ),
    f"POST {OPENMEM}/get/message": (
        Ask(body={"user_id": USER}),
        Ask(body={"user_id": USER, "conversation_id": "talk"}),
    ),
    f"POST {OPENMEM}/get/status": tuple(by_body for by_body, _ in STATUSES),
    f"GET {OPENMEM}/get/status": tuple(by_query for _, by_query in STATUSES),
    f"POST {OPENMEM}/update/memory": (
        Ask(body={"memory_id": "own-ann.0", "user_id": USER, "title": "bees"}, statuses=MAYBE),
        Ask(body={"memory_id": "own-ann.0", "status": "archived"}),
        Ask(body={"memory_id": "own-vault.0", "content": "bees"}, own=MAYBE),
        Ask(body={"memory_id": "own-bob.0", "content": "bees"}, own=MAYBE),
    ),
    f"POST {OPENMEM}/delete/memory": (
        Ask(body={"memory_ids": ["second-vault.0", "second-bob.0", "nothing"]}),
        Ask(body={"memory_ids": ["second-ann.0"], "user_id": USER}),
        Ask(body={"user_id": USER, "memory_type": "PreferenceMemory"}),
    ),
    f"POST {OPENMEM}/add/message": (Ask(body={"user_id": USER, "messages": "tea"}),),
    f"POST {OPENMEM}/add/feedback": (Ask(body={"user_id": USER, "feedback_content": "No, it is tea"}),),
    f"POST {OPENMEM}/chat": (Ask(body={"user_id": USER, "query": "tea"}, own=(503,), statuses=(503,)),),
    **refused(*REASONS),
}
