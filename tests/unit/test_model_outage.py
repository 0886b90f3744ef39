"""A model behind real HTTP that limits, refuses, breaks and hangs, then recovers: nothing is lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import openai
import pytest

from reverie import Done, Message, Remember, Scheduler
from reverie.backends.moves import Status
from reverie.settings import load_settings
from reverie.testing import ManualClock, drain

USERS = [f"user{number}" for number in range(6)]


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


class Model:
    """A model server on loopback that answers as it is told, and counts who asked."""

    def __init__(self) -> None:
        self.mood: Callable[[str], Answer] = lambda prompt: Answer()
        self.asked: list[str] = []
        self.released = threading.Event()
        self.url = ""

    def patience_s(self, prompt: str) -> float:
        """How long an answer is waited for: briefly only if there will be none."""
        return 0.5 if self.mood(prompt).hangs else 30

    def taken(self) -> Counter[str]:
        asked, self.asked = self.asked, []
        return Counter(asked)

    @contextmanager
    def serving(self):
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][0]["content"]
                model.asked.append(prompt)
                answer = model.mood(prompt)
                if answer.hangs:
                    model.released.wait(60)
                    return
                text = {
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": f"says {prompt}"}}]
                }
                data = json.dumps({"error": answer.error} if answer.status != 200 else text).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        self.http = httpx.Client()
        self.openai = openai.OpenAI(api_key="none", base_url=self.url, max_retries=0)
        try:
            yield self
        finally:
            self.http.close()
            self.openai.close()
            self.released.set()
            server.shutdown()
            server.server_close()
            thread.join()


def ask_by_httpx(model: Model, prompt: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    url, patience_s = f"{model.url}/chat/completions", model.patience_s(prompt)
    response = model.http.post(url, json=body, timeout=patience_s)
    response.raise_for_status()
    return response.json()["choices"][0]["message"]["content"]


def ask_by_openai(model: Model, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    patience_s = model.patience_s(prompt)
    answer = model.openai.chat.completions.create(model="m", messages=messages, timeout=patience_s)
    return answer.choices[0].message.content


@pytest.fixture
def model():
    with Model().serving() as serving:
        yield serving


@pytest.fixture(params=["memory", "sqlite"])
def scheduler(request: pytest.FixtureRequest, tmp_path, clock: ManualClock, monkeypatch):
    # No retry comes at once: of a random pause nothing may be left after rounding.
    monkeypatch.setattr("reverie.dispatch.settlements.random.uniform", lambda low, high: (low + high) / 2)
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'r.db'}"
    scheduler = Scheduler(settings=load_settings(queue={"url": url, "durability": "normal"}), clock=clock)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("ask", [ask_by_httpx, ask_by_openai])
def test_nothing_is_lost_whatever_the_model_does(
    scheduler: Scheduler, clock: ManualClock, model: Model, ask
) -> None:
    @scheduler.handler("summarise", credential="model")
    def summarise(message: Message) -> Done:
        return Done(effects=[Remember(memory_id=message.user_id, text=ask(model, message.user_id))])

    def items():
        return {user: scheduler.status(user)[0] for user in USERS}

    def tally() -> set[tuple[Status, int, str | None]]:
        """How all stand: status, attempts, class of the last failure."""
        return {(i.status, i.attempts, i.error and i.error.split(":")[0]) for i in items().values()}

    for user in USERS:
        scheduler.submit("summarise", user_id=user)

    # It refuses our key: no attempt is used, one asks now and then.
    model.mood = lambda prompt: Answer(401, error={"code": "invalid_api_key"})
    drain(scheduler)
    first = model.taken()
    assert max(first.values()) == 1
    for pause in (30, 60):
        clock.advance(pause - 1)
        drain(scheduler)
        assert model.taken() == {}
        clock.advance(1)
        drain(scheduler)
        assert model.taken().total() == 1
    assert {(status, attempts) for status, attempts, _ in tally()} == {(Status.WAITING, 0)}

    # The key is good again, but the month's quota is gone.
    model.mood = lambda prompt: Answer(429, {"Retry-After": "200"}, {"code": "insufficient_quota"})
    if ask is ask_by_httpx:  # which raises an error that knows nothing of bodies
        model.mood = lambda prompt: Answer(402, {"Retry-After": "200"})
    clock.advance(120)
    drain(scheduler)
    assert model.taken().total() == 1
    clock.advance(239)
    drain(scheduler)
    assert model.taken() == {}

    # It limits the rate: that is no attempt, and nobody comes back too early.
    model.mood = lambda prompt: Answer(429, {"Retry-After": "20"}, {"code": "rate_limit_exceeded"})
    clock.advance(1)
    drain(scheduler)
    assert model.taken() == dict.fromkeys(USERS, 1)
    assert tally() == {(Status.WAITING, 0, "rate_limited")}
    clock.advance(19.999)
    drain(scheduler)
    assert model.taken() == {}

    # It breaks for some, hangs for others, and one request it will never like.
    moods = {"user0": Answer(500), "user1": Answer(hangs=True), "user2": Answer(422)}
    model.mood = lambda prompt: moods.get(prompt, Answer())
    clock.advance(1.001)
    drain(scheduler)
    assert model.taken() == dict.fromkeys(USERS, 1)
    standing = items()
    assert [(standing[u].status, standing[u].attempts) for u in USERS[:4]] == [
        (Status.WAITING, 1),
        (Status.WAITING, 1),
        (Status.FAILED, 1),
        (Status.COMPLETED, 1),
    ]
    assert standing["user0"].error.startswith("transient: ")
    assert standing["user1"].error.startswith("transient: ")
    assert standing["user2"].error.startswith("invalid: ")

    # It recovers.
    model.mood = lambda prompt: Answer()
    clock.advance(2)
    drain(scheduler)
    assert model.taken() == {"user0": 1, "user1": 1}
    assert {u: (i.status, i.attempts) for u, i in items().items()} == {
        "user0": (Status.COMPLETED, 2),
        "user1": (Status.COMPLETED, 2),
        "user2": (Status.FAILED, 1),
        **dict.fromkeys(USERS[3:], (Status.COMPLETED, 1)),
    }
    for user in USERS:
        hits = scheduler.memory.search("says", user_id=user)
        assert [hit.text for hit in hits] == ([] if user == "user2" else [f"says {user}"])


def test_a_model_that_is_not_there_uses_up_the_attempts(scheduler: Scheduler, clock: ManualClock) -> None:
    with Model().serving() as model:
        url = model.url
    with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
        scheduler.handler("summarise")(lambda message: client.models.list())
        scheduler.submit("summarise", user_id="ann")
        for _ in range(4):
            drain(scheduler)
            clock.advance(10)
    item = scheduler.status("ann")[0]
    assert (item.status, item.attempts) == (Status.FAILED, 3)
    assert item.error.startswith("transient: ")
