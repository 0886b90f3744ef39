"""A language model for measurements: `python -m benchmarks.scripted_model HOLD_S`.

It is an HTTP server on loopback, which holds each request for `HOLD_S` seconds without using CPU, then
answers with a fact for every tenth turn of the prompt. It prints `ready` and `url URL`, then answers lines:

- `limit CALLS SECONDS RETRY_AFTER_S`: refuse each call above `CALLS` in flight for some seconds; prints
  `limited`.
- `report`: prints `report` and a `Report` as JSON. All moments are of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

import msgspec

__all__ = ["FACT_EVERY", "ModelCall", "Report"]

FACT_EVERY = 10
"""Turns for each fact of an answer: a model that answers in a second has no time to write many facts."""
FACT_WORDS = 8
TURN = re.compile(r"^(\d+)\. ([^:]+?)(?: \([^)]*\))?: (.*)$", re.MULTILINE)


class ModelCall(msgspec.Struct, array_like=True):
    """One request that was answered."""

    ended: float
    status: int
    turns: int = 0
    tokens: int = 0
    """Tokens of prompt and answer together, a quarter of their characters."""


class Report(msgspec.Struct):
    """Everything that the server has seen."""

    calls: list[ModelCall] = []
    in_flight: list[tuple[float, int]] = []
    """(moment, requests in flight from then on)."""


class ScriptedModel:
    """A server of `/v1/chat/completions`."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._in_flight = 0
        self._most = 0
        self._limited_until = 0.0
        self._retry_after_s = 0.0
        self.report = Report()

    def limit(self, most: int, seconds: float, retry_after_s: float) -> None:
        """Refuse each call above `most` in flight for some seconds."""
        self._most, self._retry_after_s = most, retry_after_s
        self._limited_until = time.monotonic() + seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                writer.write(await self._answer(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, body: bytes) -> bytes:
        if time.monotonic() < self._limited_until and self._in_flight >= self._most:
            self.report.calls.append(ModelCall(time.monotonic(), 429))
            error = {"error": {"message": "slowly", "code": "rate_limit_exceeded"}}
            return _response("429 Too Many Requests", error, f"Retry-After: {self._retry_after_s:g}\r\n")
        self._count(1)
        try:
            await asyncio.sleep(self._hold_s)
            return self._facts(body)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._in_flight += change
        self.report.in_flight.append((time.monotonic(), self._in_flight))

    def _facts(self, body: bytes) -> bytes:
        request = msgspec.json.decode(body)
        prompt = request["messages"][-1]["content"]
        turns = TURN.findall(prompt.partition("\nTurns:\n")[2])
        facts = [
            {
                "text": f"{speaker}: {' '.join(text.split()[:FACT_WORDS])}",
                "kind": "fact",
                "turns": [int(number)],
            }
            for number, speaker, text in turns[::FACT_EVERY]
        ]
        text = msgspec.json.encode({"facts": facts}).decode()
        given, answered = len(prompt) // 4, len(text) // 4
        self.report.calls.append(ModelCall(time.monotonic(), 200, len(turns), given + answered))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": given, "completion_tokens": answered, "total_tokens": given + answered}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": usage,
        }
        return _response("200 OK", answer)


def _response(status: str, answer: dict[str, object], headers: str = "") -> bytes:
    data = msgspec.json.encode(answer)
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    )
    return head.encode() + data


async def main() -> None:
    model = ScriptedModel(float(sys.argv[1]))
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    print(f"ready\nurl http://127.0.0.1:{port}/v1", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, *words = line.split()
        if command == "limit":
            most, seconds, retry_after_s = words
            model.limit(int(most), float(seconds), float(retry_after_s))
            print("limited", flush=True)
        else:
            print(f"report {msgspec.json.encode(model.report).decode()}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
