"""Another program writes to keys of a queue on Redis: what would break changes nothing, and names the key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from reverie.backends.breaker_state import Signal, SignalKind
from reverie.backends.control import (
    CancelItems,
    DeleteItems,
    PauseLabel,
    RequeueItems,
    ResumeLabel,
    Selection,
)
from reverie.backends.moves import Claim, ClaimRequest, Move, Presence, Settlement, Want
from reverie.backends.redis import WrongTypeError
from reverie.backends.triggers import Activity, CancelTrigger, Definition, DueTrigger, Firing, RunTrigger
from reverie.message import Message
from support.redis_bench import Bench, message, within
from support.repairing import open_apart, set_the_scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TIDY = "tidy"
STRINGS = (
    ":clock",
    ":version",
    ":horizon",
    ":retention",
    ":shared:",
    "-scheduler:lock:",
    "-scheduler:last_exec:",
)
"""Keys that hold a plain text: what else is there is not looked at, or is replaced."""


def activity(user: str) -> Activity:
    return Activity(task_type=TIDY, user_key=user, user_id=user, interval_ms=10_000)


@dataclass
class Scene:
    """A queue with something of everything, and what it is like without damage."""

    bench: Bench
    held: list[Claim] = field(default_factory=list)
    due: list[DueTrigger] = field(default_factory=list)
    keys: dict[bytes, bytes] = field(default_factory=dict)

    async def prepare(self) -> None:
        bench, triggers = self.bench, self.bench.backend.triggers
        await set_the_scene(bench)
        await triggers.put([Definition(name=TIDY, fields={"name": TIDY}, enabled=True, version=1)])
        await triggers.touch([activity("ann"), activity("bob")])
        await bench.queue.submit([message(f"h{n}", f"hal{n}", label="held", task_id="t") for n in range(4)])
        await bench.queue.submit(
            [message("child", "hal3", label="held", depends_on=("h3",), unique_key="u", deadline=within(900))]
        )
        self.held = await bench.claim("held")
        assert len(self.held) == 4
        assert await bench.queue.save_memo(self.held[0], "step", "1")
        await bench.queue.control(PauseLabel("nobody", "later"))
        await bench.backend.shared.report("model", "", Signal(SignalKind.QUOTA))
        presence = Presence(worker="w", labels=("work", "held"), lives_ms=900_000)
        await bench.queue.renew(self.held, 900_000, presence)
        standing = ClaimRequest(worker="w", wants={"nothing": Want(slots=1)}, stands=True)
        assert await bench.queue.claim(standing) == []
        bench.clock.advance(10)
        self.due = (await triggers.due({TIDY: ()}, 10)).triggers
        assert len(self.due) == 2
        await triggers.fire([self.firing(self.due.pop(0))])
        self.keys = {key: bench.server.dump(key) for key in bench.server.scan_iter(f"{bench.prefix}*")}

    def firing(self, trigger: DueTrigger) -> Firing:
        run = Message(user_id=trigger.user_id or "", label=TIDY, item_id="run", user_key=trigger.user_key)
        return Firing(trigger=trigger, message=run)

    def restore(self) -> None:
        server = self.bench.server
        with server.pipeline() as step:
            for key in server.scan_iter(f"{self.bench.prefix}*"):
                if key not in self.keys:
                    step.delete(key)
            for key, text in self.keys.items():
                step.restore(key, 0, text, replace=True)
            step.execute()

    def state(self) -> dict[bytes, bytes]:
        """All keys but the tokens, on which nothing depends."""
        server = self.bench.server
        keys = sorted(key for key in server.scan_iter(f"{self.bench.prefix}*") if b":wake:" not in key)
        with server.pipeline() as step:
            for key in keys:
                step.dump(key)
            return dict(zip(keys, step.execute(), strict=True))


@pytest.fixture
async def scene(redis_url: str) -> AsyncIterator[Scene]:
    async with open_apart(redis_url) as bench:
        opened = Scene(bench)
        await opened.prepare()
        yield opened


async def submit_plain(scene: Scene) -> Any:
    return await scene.bench.queue.submit([message("new", "ann", task_id="t:1")])


async def submit_to_new_lane(scene: Scene) -> Any:
    return await scene.bench.queue.submit([message("new", "dan", label="other", task_id="t:1")])


async def submit_with_rules(scene: Scene) -> Any:
    with_rules = {"unique_key": "k", "unique_policy": "replace", "deadline": within(900), "task_id": "t"}
    return await scene.bench.queue.submit(
        [
            message("rules", "fay", label="idle", depends_on=("limited",), **with_rules),
            message("later", "cem", label="loose", due=within(900)),
        ]
    )


async def claim(scene: Scene) -> Any:
    wants = {label: Want(slots=10) for label in ("work", "loose", "parked", "idle", TIDY)}
    return await scene.bench.queue.claim(ClaimRequest(worker="w", wants=wants, stands=True))


async def renew(scene: Scene) -> Any:
    presence = Presence(worker="w", labels=("work", "held"), lives_ms=1000)
    return await scene.bench.queue.renew(scene.held, 1000, presence)


async def save_memo(scene: Scene) -> Any:
    return await scene.bench.queue.save_memo(scene.held[0], "another", "2")


async def complete(scene: Scene) -> Any:
    return await scene.bench.queue.settle([Settlement(claim=one, move=Move.COMPLETE) for one in scene.held])


async def settle(scene: Scene) -> Any:
    moves = (Move.RETRY, Move.BURY, Move.LOSE, Move.BURY)
    settlements = [
        Settlement(claim=one, move=move, error="no") for one, move in zip(scene.held, moves, strict=True)
    ]
    follow_up = message("follows", "hal0", label="held", task_id="t")
    done = Settlement(claim=scene.held[0], move=Move.COMPLETE, follow_ups=(follow_up,))
    return await scene.bench.queue.settle([done, *settlements[1:]])


async def advance(scene: Scene) -> Any:
    scene.bench.server.set(f"{scene.bench.prefix}:clock", scene.bench.clock.now() + 3_600_000)
    return await scene.bench.queue.advance(1000)


def of_control(command: Callable[[Scene], Any]) -> Callable[[Scene], Awaitable[Any]]:
    async def control(scene: Scene) -> Any:
        return await scene.bench.queue.control(command(scene))

    return control


async def put(scene: Scene) -> Any:
    definition = Definition(name=TIDY, fields={"name": "other"}, enabled=True, version=2, first_due=5)
    return await scene.bench.backend.triggers.put([definition], whole=True)


async def touch(scene: Scene) -> Any:
    return await scene.bench.backend.triggers.touch([activity("ann"), activity("cem")])


async def due(scene: Scene) -> Any:
    return await scene.bench.backend.triggers.due({TIDY: ()}, 10)


async def fire(scene: Scene) -> Any:
    return await scene.bench.backend.triggers.fire([scene.firing(one) for one in scene.due])


async def run_trigger(scene: Scene) -> Any:
    return await scene.bench.backend.triggers.control(RunTrigger(activity("ann")))


async def cancel_trigger(scene: Scene) -> Any:
    return await scene.bench.backend.triggers.control(CancelTrigger(TIDY, scene.due[0].user_key))


async def report(scene: Scene) -> Any:
    return await scene.bench.backend.shared.report("other", "", Signal(SignalKind.QUOTA))


CALLS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "submit_plain": submit_plain,
    "submit_to_new_lane": submit_to_new_lane,
    "submit_with_rules": submit_with_rules,
    "claim": claim,
    "renew": renew,
    "save_memo": save_memo,
    "complete": complete,
    "settle": settle,
    "advance": advance,
    "cancel": of_control(lambda _: CancelItems(Selection())),
    "cancel_user": of_control(lambda _: CancelItems(Selection(user_id="fay"))),
    "requeue": of_control(lambda _: RequeueItems(Selection())),
    "delete": of_control(lambda _: DeleteItems(Selection())),
    "pause": of_control(lambda _: PauseLabel("work", "later")),
    "resume": of_control(lambda _: ResumeLabel("nobody")),
    "put": put,
    "touch": touch,
    "due": due,
    "fire": fire,
    "run_trigger": run_trigger,
    "cancel_trigger": cancel_trigger,
    "report": report,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", CALLS)
async def test_a_key_of_a_wrong_type_changes_nothing_and_is_named(scene: Scene, call: str) -> None:
    """Each key of a queue that has everything, one after the other."""
    prefix, server = scene.bench.prefix, scene.bench.server
    names = [key.decode().removeprefix(prefix) for key in scene.keys]
    refused = 0
    for name in sorted(name for name in names if not name.startswith(STRINGS) and ":wake:" not in name):
        scene.restore()
        key = f"{prefix}{name}"
        server.delete(key)
        server.set(key, "theirs")
        if call == "advance":
            server.set(f"{prefix}:clock", scene.bench.clock.now() + 3_600_000)
        before = scene.state()
        told = None
        try:
            await CALLS[call](scene)
        except WrongTypeError as error:
            told = error
        if told is not None:
            refused += 1
            assert told.key == key
            assert scene.state() == before, (call, name)
        assert server.get(key) == b"theirs", (call, name)
    assert refused or call in {"claim", "resume"}


async def test_the_error_says_what_to_do(scene: Scene) -> None:
    key = f"{scene.bench.prefix}:labels"
    scene.bench.server.delete(key)
    scene.bench.server.set(key, "theirs")
    with pytest.raises(WrongTypeError) as told:
        await submit_plain(scene)
    assert f"the key {key!r} of the queue is no hash: another program has written it" in str(told.value)
    assert "Rename or delete that key, then type `reverie redis repair`" in str(told.value)


@pytest.mark.parametrize("amount", [3, 30])
async def test_of_a_batch_the_messages_before_the_wrong_key_are_kept(scene: Scene, amount: int) -> None:
    """None is half written: those before it run, it and those after it can be submitted again."""
    bench = scene.bench
    key = f"{bench.prefix}:u1:u1:batch"
    bench.server.set(key, "theirs")
    batch = [message("1", f"u{n}", label="batch", task_id="t") for n in range(amount)]
    with pytest.raises(WrongTypeError, match="u1:u1:batch"):
        await bench.queue.submit(batch)
    assert [claim.message.user_id for claim in await bench.claim("batch")] == ["u0"]
    assert not bench.server.exists(f"{bench.prefix}-status:task_meta:u1")
    bench.server.delete(key)
    answers = [answer.status for answer in await bench.queue.submit(batch)]
    assert answers == ["duplicate", *["accepted"] * (amount - 1)]


@pytest.mark.parametrize("of", [":bob%3Ax:bob%3Ax:work", "-status:task_meta:bob%3Ax", ":lanes:bob%3Ax"])
async def test_a_lane_with_a_wrong_key_holds_up_no_other(
    scene: Scene, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = scene.bench
    key = f"{bench.prefix}{of}"
    kept = bench.server.dump(key)
    bench.server.delete(key)
    bench.server.set(key, "theirs")
    for _ in range(2):
        claims = await bench.claim("work")
        assert "bob:x" not in {claim.message.user_id for claim in claims}
    assert [
        record.message.count(repr(key)) for record in caplog.records if "wrong_type" in record.message
    ] == [1]
    bench.server.restore(key, 0, kept, replace=True)
    bench.clock.advance(60)
    await bench.queue.advance(100)
    assert "bob:x" in {claim.message.user_id for claim in await bench.claim("work")}


async def test_a_lane_that_has_the_name_of_a_key_of_another_queue(redis_url: str) -> None:
    """A queue with the prefix and `:x`, as an older version let one begin."""
    async with open_apart(redis_url) as bench:
        bench.server.zadd(f"{bench.prefix}:x:ready:work", {"lane": 1})
        with pytest.raises(WrongTypeError, match="x:ready:work"):
            await bench.queue.submit([message("1", "x", mem_cube_id="ready")])
        assert bench.key_names() == {":x:ready:work"}


@pytest.mark.parametrize(("labels", "key"), [(("work",), ":wake:work"), ((), ":wake_horizon")])
async def test_a_wait_names_the_key(scene: Scene, labels: tuple[str, ...], key: str) -> None:
    scene.bench.server.delete(f"{scene.bench.prefix}{key}")
    scene.bench.server.hset(f"{scene.bench.prefix}{key}", "theirs", "1")
    with pytest.raises(WrongTypeError, match=key):
        await scene.bench.queue.wait(labels, None)
