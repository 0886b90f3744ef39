"""Triggers as the conformance tests make, fire and run them."""

from __future__ import annotations

from conformance.conftest import Bench, ids, settle
from reverie.backends.moves import Move, Settlement
from reverie.backends.triggers import (
    GLOBAL_KEY,
    Activity,
    Definition,
    Due,
    Firing,
)
from reverie.message import Message

INTERVAL_S = 10
TYPE = "memory_compression"


def definition(name: str = TYPE, *, enabled: bool = True, version: int = 1, first_due=None, **fields):
    fields = {"name": name, "trigger_mode": "user_activity", "interval": "10", **fields}
    return Definition(name=name, fields=fields, enabled=enabled, version=version, first_due=first_due)


def activity(user: str = "ann", task_type: str = TYPE, **fields) -> Activity:
    own = {
        "user_key": f"{user}:phone:bot",
        "user_id": user,
        "device_id": "phone",
        "agent_id": "bot",
        "interval_ms": INTERVAL_S * 1000,
    }
    return Activity(task_type=task_type, **(own | fields))


async def ready(bench: Bench, *names: str) -> None:
    await bench.backend.triggers.put([definition(name) for name in names or (TYPE,)])


async def due(bench: Bench, *types: str, limit: int = 100, **depends_on) -> Due:
    wanted = {name: depends_on.get(name, ()) for name in types or (TYPE,)}
    return await bench.backend.triggers.due(wanted, limit)


def firing(task, **fields) -> Firing:
    message = Message(
        user_id=task.user_id or "_system",
        label=task.task_type,
        item_id=f"{task.task_type}:{task.user_key}:{task.scheduled_at}",
        level=3,
        user_key=task.user_key,
        info={"device_id": task.device_id, "agent_id": task.agent_id},
    )
    return Firing(trigger=task, message=fields.pop("message", message), **fields)


async def fire(bench: Bench, *types: str, **fields) -> list[bool]:
    found = await due(bench, *types)
    return await bench.backend.triggers.fire([firing(task, **fields) for task in found.triggers])


async def run(bench: Bench, task_type: str = TYPE, move: Move = Move.COMPLETE, **fields) -> list[str]:
    """Claim what was fired and end it; the ids."""
    claims = await bench.claim(task_type)
    await settle(bench, *(Settlement(claim=claim, move=move, **fields) for claim in claims))
    return ids(claims)


async def state(bench: Bench, user: str = "ann", task_type: str = TYPE):
    found = await bench.backend.triggers.states(task_type, f"{user}:phone:bot")
    return found[0] if found else None


async def global_state(bench: Bench, task_type: str):
    (found,) = await bench.backend.triggers.states(task_type, GLOBAL_KEY)
    return found


async def fired(bench: Bench, *users: str) -> None:
    await ready(bench)
    await bench.backend.triggers.touch([activity(user) for user in users or ("ann",)])
    bench.clock.advance(10)
    assert all(await fire(bench))
