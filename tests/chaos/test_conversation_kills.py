"""Workers are killed while they read conversations, and the model refuses, breaks off and talks nonsense.

Every turn ends as the source of a fact, as read without a fact, or with a reason why it was given up. No fact
is there twice, and the ledger has what the model counted.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw
import pytest

from reverie.handlers.grouping import normalised
from reverie.turn import Turn
from support.agreement import assert_agreement
from support.extractor import facts_of, turns_in
from support.living import wait_until
from support.places import PATHS, Place, sqlite
from support.scale import SEED, evidence, scaled
from support.scripted_model import Answer, Request, ScriptedModel, rate_limit, scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reverie import Scheduler

TURNS, USERS, KILLS, WORKERS = 10_000, 100, 200, 2
DEADLINE_S = 3000
PATIENCE_S = 6.0
"""The longest wait for requests of a process before it is killed."""
SLOW_S = 0.7
SETTINGS = {
    "REVERIE_QUEUE__MAX_LOSSES": "1000",
    "REVERIE_WORKER__LEASE_S": "2",
    "REVERIE_WORKER__RENEW_S": "0.5",
    "REVERIE_WORKER__BACKOFF_S": "0.2",
    "REVERIE_WORKER__MAX_BACKOFF_S": "0.5",
    "REVERIE_BUFFER__MAX_TOKENS": "120",
    "REVERIE_BUFFER__MAX_AGE_S": "1",
    "REVERIE_BUFFER__LEASE_S": "5",
    "REVERIE_BUFFER__SWEEP_S": "1",
    "REVERIE_MEMORY__EMBEDDING": "none",
    "REVERIE_LLM__PRESET": "custom",
    "REVERIE_LLM__MODEL": "tiny",
    "REVERIE_LLM__TRIES": "2",
    "REVERIE_LLM__MAX_CONCURRENCY": "1000",
    "REVERIE_LLM__LIMITED_CONCURRENCY": "1000",
    "REVERIE_LLM__WINDOW_TOKENS": "1400",
    "REVERIE_LLM__MAX_OUTPUT_TOKENS": "200",
    "REVERIE_UPKEEP__ENABLED": "false",
}
"""Short leases and waits, and prompts that take about fifteen turns; upkeep is off."""
UNREAD = """
SELECT i.user_id, i.id, i.text, i.extracted_at_epoch, b.status, b.error
FROM memory_items AS i LEFT JOIN buffer_zone AS b ON b.user_id = i.user_id AND b.buffer_id = i.id
WHERE i.kind = 'turn' AND NOT EXISTS (
  SELECT 1 FROM memory_links AS l JOIN memory_items AS f ON f.user_id = l.user_id AND f.id = l.source_id
  WHERE l.user_id = i.user_id AND l.target_id = i.id AND l.relation = 'derived_from' AND f.kind <> 'turn'
)
"""
"""The turns that are no source of a fact."""
OPEN_ROWS = "SELECT count(*) FROM buffer_zone WHERE status IN ('idle', 'processing')"
FACTS = "SELECT user_id, project_id, text FROM memory_items WHERE kind <> 'turn'"
SPENT = "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM llm_usage"


class Call(NamedTuple):
    """A call that the model has answered and wants to be paid for."""

    worker: str
    """The key of the worker process."""
    user: str
    tokens: int


class MoodyModel:
    """Answers most requests well, and mishandles the others in all ways there are."""

    def __init__(self, model: ScriptedModel, chance: random.Random) -> None:
        self.url = model.url
        self.calls: list[Call] = []
        self.moods: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        """By the key of the worker process."""
        self._chance = chance
        self._lock = threading.Condition()
        self._never = threading.Event()
        model.answers = self.answer

    def answer(self, request: Request) -> Answer:
        with self._lock:
            mood = self._chance.choices(list(MOODS), [weight for weight, _ in MOODS.values()])[0]
            self.moods[mood] += 1
            self.requests[request.authorization or ""] += 1
            self._lock.notify_all()
            tokens = (self._chance.randint(10, 500), self._chance.randint(1, 50))
        if mood == "slow":
            self._never.wait(SLOW_S)
        answer = MOODS[mood][1]
        prompt = request.body["messages"][0]["content"]
        if answer is None:
            answer = Answer(text=json.dumps({"facts": facts_of(prompt)}), tokens=tokens)
        if answer.status == 200 and answer.tokens is not None:  # a refusal costs nothing
            user = turns_in(prompt)[0][1]
            with self._lock:
                self.calls.append(Call(request.authorization or "", user, sum(answer.tokens)))
        return answer

    def wait_for_requests(self, worker: str, wanted: int) -> None:
        """Wait until a process has asked a few times, if there is something to ask."""
        with self._lock:
            self._lock.wait_for(lambda: self.requests[worker] >= wanted, PATIENCE_S)

    def open_calls(self, worker: str) -> list[Call]:
        """The calls of a worker that it may not have written to the ledger: the last one of each user.

        A user has one run at a time, and a run writes the cost of a call before it makes the next.
        """
        with self._lock:
            return list({call.user: call for call in self.calls if call.worker == worker}.values())


MOODS: dict[str, tuple[int, Answer | None]] = {
    "good": (60, None),
    "slow": (12, None),
    "rate_limit": (4, rate_limit(0.1)),
    "broken": (6, Answer(status=500, tokens=None)),
    "overloaded": (4, Answer(status=503, tokens=None)),
    "garbage": (4, Answer(raw=b"<html>bad gateway</html>", tokens=None)),
    "nonsense": (3, Answer(text='{"facts": [{"text": 7}]}', tokens=(10, 5))),
    "half": (4, Answer(text='{"facts": ["the be', finish="length", tokens=(12, 200))),
    "reset": (3, Answer(resets=True, tokens=None)),
}
"""Name → (weight, answer); None: the facts in the turns. Tokens are counted only for what is answered."""


@dataclass
class Worker:
    """One worker process, started again whenever it is killed. Each process has a key of its own."""

    place: Place
    model: MoodyModel
    name: str
    lives: int = 0

    @property
    def key(self) -> str:
        """What the present process sends as its key."""
        return f"Bearer {self.name}-{self.lives}"

    def start(self) -> None:
        self.lives += 1
        environment = {
            **self.place.environment,
            **PATHS,
            "REVERIE_LLM__URL": self.model.url,
            "REVERIE_LLM__API_KEY": self.key.removeprefix("Bearer "),
        }
        program = Path(__file__).with_name("conversation_worker.py")
        self.process = subprocess.Popen([sys.executable, program], env=environment, cwd=self.place.folder)

    def kill(self) -> list[Call]:
        """Kill the process; the answer are the calls whose costs it may have left unwritten."""
        self.process.kill()
        assert self.process.wait(30) == -signal.SIGKILL
        return self.model.open_calls(self.key)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) in {0, -signal.SIGTERM}  # the latter while it is still starting


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with sqlite(tmp_path) as place:
        place.extra |= SETTINGS
        yield place


def turns_of(chance: random.Random, user: str, said: list[str]) -> list[Turn]:
    """A few turns of a user: news, greetings, moves, and what was said before in other letters."""
    turns = []
    for _ in range(chance.randint(1, 5)):
        number = len(said)
        kind = chance.random()
        text = f"I saw bird {number} over the river"
        if kind < 0.1:
            text = f"Hello for the time {number}"
        elif kind < 0.2:
            text = f"I moved to Town{number}"
        elif kind < 0.3:
            repeated = [old for old in said if old.startswith("I saw")]
            text = chance.choice(repeated).replace("bird", " BIRD") if repeated else text
        said.append(text)
        turns.append(Turn(content=text, name=user))
    return turns


def conversations(chance: random.Random) -> list[tuple[str, list[Turn]]]:
    """Messages of turns, (user, turns), of all users in a random order."""
    said: dict[str, list[str]] = {f"user-{number}": [] for number in range(scaled(USERS))}
    messages = []
    while sum(map(len, said.values())) < scaled(TURNS):
        user = chance.choice(list(said))
        messages.append((user, turns_of(chance, user, said[user])))
    return messages


@pytest.mark.scaled
@pytest.mark.timeout(DEADLINE_S + 60)
def test_no_turn_is_lost_and_no_fact_is_written_twice(place: Place) -> None:
    chance = random.Random(SEED)
    messages = conversations(chance)
    kills = scaled(KILLS)
    cut_off: list[Call] = []
    with evidence("conversation-kills") as figures, scripted() as server, place.scheduler() as scheduler:
        model = MoodyModel(server, random.Random(SEED))
        workers = [Worker(place, model, f"worker{number}") for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        try:
            for number in range(kills):
                for user, turns in messages[number::kills]:
                    scheduler.memory.add(turns, user_id=user)
                worker = chance.choice(workers)
                model.wait_for_requests(worker.key, chance.randint(1, 5))
                cut_off += worker.kill()
                worker.start()
            wait_until(lambda: is_finished(place, scheduler), DEADLINE_S)
        finally:
            for worker in workers:
                worker.stop()
        ends = check_turns(place, scheduler, messages)
        figures |= {"turns": sum(ends.values()), "users": scaled(USERS), "kills": kills, "ends": dict(ends)}
        figures |= {"answers": dict(model.moods), **check_costs(place, model, cut_off)}


def query(place: Place, statement: str) -> list[tuple]:
    with closing(apsw.Connection(str(place.folder / "reverie.db"))) as connection:
        connection.set_busy_timeout(10_000)
        return connection.execute(statement).fetchall()


def is_finished(place: Place, scheduler: Scheduler) -> bool:
    """Whether no row waits in a buffer, and no message in the queue."""
    has_work = any(state.waiting + state.in_progress for state in scheduler.control.labels())
    return not has_work and query(place, OPEN_ROWS) == [(0,)]


def check_turns(place: Place, scheduler: Scheduler, messages: list[tuple[str, list[Turn]]]) -> Counter[str]:
    """Each turn has come to an end of its own; the answer counts the ends."""
    assert_agreement(place.folder / "reverie.db")
    dead = [row for user in {user for user, _ in messages} for row in dead_letters(scheduler, user)]
    assert all(row.error for row in dead)
    buried = sum(row.task_type == "add" for row in dead)
    assert buried == 0, "the handler of add asks no model: nothing may make it fail"
    ((kept,),) = query(place, "SELECT count(*) FROM memory_items WHERE kind = 'turn'")
    assert kept == sum(len(turns) for _, turns in messages)
    ends: Counter[str] = Counter()
    for _, memory_id, text, extracted_at, status, error in query(place, UNREAD):
        if status == "failed":
            assert error, memory_id
            ends["failed"] += 1
        else:
            assert text.startswith("Hello"), (memory_id, text, status)
            assert extracted_at is not None, memory_id
            ends["nothing to extract"] += 1
    ends["source of a fact"] = kept - sum(ends.values())
    facts = Counter((user, cube, normalised(text)) for user, cube, text in query(place, FACTS))
    assert set(facts.values()) == {1}
    said = {(user, f"{user} said: {normalised(one.content)}") for user, turns in messages for one in turns}
    assert {(user, text) for user, _, text in facts if " said: " in text} <= said
    return ends


def dead_letters(scheduler: Scheduler, user: str) -> list:
    return scheduler.control.dead_letters(user_id=user).rows


def check_costs(place: Place, model: MoodyModel, cut_off: list[Call]) -> dict[str, int]:
    """The ledger has the tokens of all calls, except of some that a kill has cut off."""
    ((ledger,),) = query(place, SPENT)
    counted = sum(call.tokens for call in model.calls)
    assert counted - sum(call.tokens for call in cut_off) <= ledger <= counted
    return {"tokens": counted, "tokens_in_ledger": ledger, "calls_cut_off": len(cut_off)}
