"""Messages: what is refused, what makes two of them the same."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reverie import Message, ScheduleMessageItem, Turn
from reverie.api.models import TurnModel
from reverie.base.clock import from_epoch_ms, to_epoch_ms
from reverie.errors import InvalidMessageError
from reverie.message import MessageLimits, check_message, content_text, derived_id
from reverie.turn import read_turns, write_turns

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_the_seeds_name_and_fields() -> None:
    assert ScheduleMessageItem is Message
    fields = set(Message.__struct_fields__)
    assert fields >= {
        "item_id", "redis_message_id", "stream_key", "user_id", "trace_id", "mem_cube_id", "session_id",
        "label", "content", "timestamp", "user_name", "info", "task_id",
    }  # fmt: skip


def test_the_default_cube_is_the_user() -> None:
    assert Message(user_id="ann", label="work").mem_cube_id == "ann"
    assert Message(user_id="ann", label="work").item_id != Message(user_id="ann", label="work").item_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user_id", ""),
        ("user_id", 7),
        ("user_id", None),
        ("due", "tomorrow"),
        ("timestamp", 7),
        ("timestamp", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("due", datetime(1, 1, 1, tzinfo=UTC)),
        ("info", {"a": "\ud800"}),
        ("info", {"\ud800": 1}),
        ("user_id", "_system"),
        ("user_id", "\ud800"),
        ("user_id", "a\x00"),
        ("user_id", "x" * 513),
        ("mem_cube_id", "_cube"),
        ("label", ""),
        ("item_id", ""),
        ("session_id", 7),
        ("task_id", "é" * 300),
        ("content", {"a": 1}),
        ("content", "x" * 1001),
        ("info", [1]),
        ("info", {"a": object()}),
        ("info", {"a": [float("inf")]}),
        ("info", {1: 2}),
        ("info", {"a": [[[[]]]]}),
        ("info", {"a": "é" * 100}),
    ],
)
def test_what_is_refused_and_named(field: str, value: object) -> None:
    message = Message(**{"user_id": "ann", "label": "work", field: value})
    with pytest.raises(InvalidMessageError) as refused:
        check_message(message, MessageLimits(max_content_bytes=1000, max_info_bytes=200, max_json_depth=3))
    assert refused.value.field == field
    assert refused.value.value == value
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("it's", 'field="it\'s": no'),
        (None, "field=null: no"),
        (datetime(9999, 1, 2, tzinfo=UTC), 'field="9999-01-02T00:00:00+00:00": no'),
        ([TurnModel(role="a", content="é\n\x7f")], 'field=[{"role": "a", "content": "é\\n\\x7f"}]: no'),
        ({"a": [True, 1.5]}, 'field={"a": [true, 1.5]}: no'),
        (("a", "b"), 'field=["a", "b"]: no'),
        ({1: 2}, "field={1: 2}: no"),
        ({"a": float("inf")}, "field={'a': inf}: no"),
        ("x" * 100, f"field='{'x' * 76}...: no"),
    ],
)
def test_a_value_is_shown_as_it_was_sent(value: object, words: str) -> None:
    assert str(InvalidMessageError("field", value, "no")) == words


@given(info=st.none() | st.dictionaries(st.text(), JSON, max_size=4), content=st.text())
def test_a_message_survives_its_journey(info, content) -> None:
    message = Message(user_id="ann", label="work", info=info, content=content, timestamp=datetime.now(UTC))
    check_message(message, MessageLimits())
    decoded = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert decoded == message
    assert decoded.fingerprint() == message.fingerprint()


@given(field=st.sampled_from(["mem_cube_id", "label", "content", "session_id", "task_id", "info"]))
def test_each_field_of_the_fingerprint_counts(field: str) -> None:
    message = Message(user_id="ann", label="work", item_id="1", content="c")
    other = msgspec.structs.replace(message, **{field: {"a": 1} if field == "info" else "changed"})
    assert message.fingerprint() != other.fingerprint()


@given(st.integers(0, 2**42))
def test_times_survive_their_journey(moment: int) -> None:
    assert to_epoch_ms(from_epoch_ms(moment)) == moment


@given(parts=st.lists(st.text("abc:", max_size=4), min_size=1, max_size=3))
def test_derived_ids_do_not_collide_by_joining(parts: list[str]) -> None:
    assert derived_id(*parts) == derived_id(*parts)
    assert derived_id(*parts) != derived_id(*parts, "x")
    assert derived_id("a", "b") != derived_id("a:b")


@given(st.lists(st.builds(Turn, content=st.text(), role=st.text(), chat_time=st.none() | st.text())))
def test_turns_survive_their_journey(turns: list[Turn]) -> None:
    assert read_turns(write_turns(turns)) == turns


@given(st.text())
def test_any_text_can_be_read_as_turns(text: str) -> None:
    turns = read_turns(text)
    assert all(isinstance(turn, Turn) for turn in turns)


def test_content_may_be_given_as_json() -> None:
    assert content_text({"doc": 7}, MessageLimits()) == '{"doc":7}'
    assert content_text("{", MessageLimits()) == "{"
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    for content in (deep, object(), float("nan"), {1: 2}):
        with pytest.raises(InvalidMessageError, match=r"^content="):
            content_text(content, MessageLimits())
