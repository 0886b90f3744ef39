"""Private parts and secrets never reach the disk, whichever way a message comes in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reverie import AsyncScheduler, Message, Turn
from reverie.capture.intake import without_secrets
from reverie.settings import load_settings

KEY = "sk-ant-api03-" + "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA" * 2
SECRETS = (KEY, "hidden treasure")


def on_disk(folder: Path) -> list[str]:
    """The secrets that any file of a folder holds."""
    data = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [secret for secret in SECRETS if secret.encode() in data]


async def open_scheduler(folder: Path, **capture: bool) -> AsyncScheduler:
    scheduler = AsyncScheduler(settings=load_settings(data_dir=folder, capture=capture))
    await scheduler.open()
    return scheduler


TEXT = f"my key is {KEY} and <private>hidden treasure</private> this stays"


async def test_nothing_private_is_kept_of_an_add(tmp_path: Path) -> None:
    scheduler = await open_scheduler(tmp_path)
    await scheduler.memory.add([Turn(content=TEXT)], user_id="ann", info={"note": TEXT})
    await scheduler.capture("note", user_id="ann", content={"deep": [{"text": TEXT}]})
    await scheduler.submit("note", user_id="ann", content=TEXT)
    await scheduler.runtime.drain()
    (item,) = (await scheduler.memory.page(user_id="ann")).items
    assert item.text == "my key is [redacted] and  this stays"
    assert on_disk(tmp_path) == []
    await scheduler.stop()
    assert on_disk(tmp_path) == []


async def test_nothing_private_is_kept_of_an_observation(tmp_path: Path) -> None:
    scheduler = await open_scheduler(tmp_path)
    where = {"user_id": "ann", "session_id": "s"}
    await scheduler.capture.observation(**where, title="Ran a command", narrative=TEXT, facts=[TEXT])
    await scheduler.capture.session("prompt", **where, text=TEXT)
    await scheduler.runtime.drain()
    assert on_disk(tmp_path) == []
    await scheduler.stop()


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    scheduler = await open_scheduler(tmp_path, redact=False)
    await scheduler.memory.add(TEXT, user_id="ann")
    await scheduler.runtime.drain()
    (item,) = (await scheduler.memory.page(user_id="ann")).items
    assert item.text == TEXT
    await scheduler.stop()


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"content": "a <private>x"}, {"content": "b"}]),
        json.dumps({"content": "a <private>x</private>"}).replace("<", "\\u003c"),
        json.dumps({"password": "Tr0ub4dor3x9Horse"}),
    ],
)
def test_json_stays_json(content: str) -> None:
    cleaned = without_secrets(Message(user_id="ann", label="note", content=content)).content
    assert cleaned != content
    assert "x" not in str(json.loads(cleaned)).replace("text", "").replace("password", "")
    assert len(json.loads(cleaned)) == len(json.loads(content))


@pytest.mark.parametrize("content", ["", "plain words", '{"a": 1}', "[]", '"text"', "12", '{"a": "\\u00e4"}'])
def test_a_message_without_secrets_stays_as_it_is(content: str) -> None:
    message = Message(user_id="ann", label="note", content=content, info={"a": ["b"]})
    assert without_secrets(message) is message
