"""User keys of one, two and three ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reverie.errors import InvalidMessageError
from reverie.triggers.user_keys import UserKeyBuilder

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
CONFIGS = [
    {},
    {"use_agent_id": False},
    {"use_device_id": False},
    {"use_device_id": False, "use_agent_id": False},
]


def test_plain_ids_look_as_they_are() -> None:
    assert (
        UserKeyBuilder().build_key("user_123", "device_456", "agent_789") == "user_123:device_456:agent_789"
    )
    assert UserKeyBuilder({"use_agent_id": False}).build_key("u", "d", "a") == "u:d"
    assert UserKeyBuilder({"use_device_id": False}).build_key("u", "d", "a") == "u:a"
    assert UserKeyBuilder({"use_device_id": False, "use_agent_id": False}).build_key("u") == "u"


def test_what_is_not_named_has_a_default() -> None:
    assert UserKeyBuilder().build_key("u") == "u:default:default"
    assert UserKeyBuilder().build_key("u", "", None) == "u:default:default"
    own = {"default_device_id": "web", "default_agent_id": "main"}
    assert UserKeyBuilder(own).build_key("u") == "u:web:main"


@pytest.mark.parametrize("config", CONFIGS)
def test_dimensions(config: dict[str, bool]) -> None:
    builder = UserKeyBuilder(config)
    dimensions = builder.get_key_dimensions()
    assert dimensions[0] == "user_id"
    assert list(builder.parse_key(builder.build_key("u", "d", "a"))) == dimensions


@given(st.sampled_from(CONFIGS), ids, ids, ids)
def test_any_ids_come_back(config: dict[str, bool], user: str, device: str, agent: str) -> None:
    builder = UserKeyBuilder(config)
    all_ids = {"user_id": user, "device_id": device, "agent_id": agent}
    parsed = builder.parse_key(builder.build_key(user, device, agent))
    assert parsed == {name: all_ids[name] for name in builder.get_key_dimensions()}


@given(st.tuples(ids, ids, ids), st.tuples(ids, ids, ids))
def test_different_ids_never_have_one_key(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    builder = UserKeyBuilder()
    assert (builder.build_key(*one) == builder.build_key(*other)) == (one == other)


def test_a_shorter_key_gives_what_is_there() -> None:
    assert UserKeyBuilder().parse_key("u:d") == {"user_id": "u", "device_id": "d"}
    assert UserKeyBuilder().parse_key("a%3Ab") == {"user_id": "a:b"}
    assert UserKeyBuilder({"use_device_id": False}).parse_key("u") == {"user_id": "u"}


def test_a_user_called_global_is_a_user_like_any_other() -> None:
    assert UserKeyBuilder({"use_device_id": False, "use_agent_id": False}).build_key("global") == "global"


def test_bad_ones_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="must not be empty"):
        UserKeyBuilder().build_key("")
    with pytest.raises(ValidationError, match="must be true"):
        UserKeyBuilder({"use_user_id": False})
    for strange in ("u:d:a:x", "u::a", ""):
        with pytest.raises(InvalidMessageError, match="must have the parts user_id:device_id:agent_id"):
            UserKeyBuilder().parse_key(strange)
