"""API keys and the audit log from the shell."""

from __future__ import annotations

import re

import pytest

from support.commands import answer, run
from support.places import Place

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def test_the_life_of_a_key(place: Place) -> None:
    made = run(
        place, "keys", "create", "Ann's phone", "--user", "ann", "--cube", "ann", "--attribute", "team=a=b"
    )
    token = made.stdout.strip()
    assert re.fullmatch(r"rv_[0-9a-f]{12}_[\w-]{43}", token)
    assert "not shown again" in made.stderr
    (key,) = answer(place, "keys", "list")
    assert (key["name"], key["role"], key["users"], key["cubes"]) == ("Ann's phone", "user", ["ann"], ["ann"])
    assert key["attributes"] == {"team": "a=b"}
    rotated = answer(place, "keys", "rotate", key["id"], "--overlap", "60")
    assert rotated["token"] != token
    assert "valid" in run(place, "keys", "list").stdout
    assert run(place, "keys", "revoke", key["id"]).stdout == f"revoked {key['id']}, Ann's phone\n"
    assert "revoked" in run(place, "keys", "list").stdout
    entries = answer(place, "audit")
    assert [(entry["who"], entry["action"], entry["target"]) for entry in entries] == [
        ("local", "key.revoke", key["id"]),
        ("local", "key.rotate", key["id"]),
        ("local", "key.create", key["id"]),
    ]
    secret = token.removeprefix(f"rv_{key['id']}_")
    assert secret not in run(place, "keys", "list", "--json").stdout + run(place, "audit").stdout


def test_a_key_with_all_its_limits(place: Place) -> None:
    options = ("--requests-per-s", "5", "--max-body-bytes", "1000", "--max-json-depth", "4")
    made = answer(
        place, "keys", "create", "x", "--role", "service", "--expires", "2999-01-01T00:00Z", *options
    )
    limits = made["key"]["limits"]
    assert (limits["requests_per_s"], limits["max_body_bytes"], limits["max_json_depth"]) == (5, 1000, 4)
    assert made["key"]["expires_at"] == 32472144000000
    assert made["key"]["users"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x"), "names its users"),
        (("create", "x", "--role", "king"), "king"),
        (("create", "x", "--user", "ann", "--attribute", "team"), "name=value"),
        (("create", "x", "--user", "ann", "--expires", "soon"), "soon"),
        (("rotate", "0123456789ab"), "no API key"),
        (("revoke", "0123456789ab"), "no API key"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(place: Place, arguments, words: str) -> None:
    answer(place, "keys", "create", "boss", "--role", "admin")
    refused = run(place, "keys", *arguments)
    assert refused.exit_code in {1, 2}
    assert words in refused.stderr


def test_the_log_is_read_page_by_page_and_by_user(place: Place) -> None:
    for number in range(3):
        run(place, "add", "tea", "--user", "ann", "--item-id", f"t{number}")
        run(place, "cancel", f"t{number}", "--user", "ann")
    run(place, "pause", "export")
    first = answer(place, "audit", "--limit", "2")
    rest = answer(place, "audit", "--before", str(first[-1]["number"]))
    assert [entry["action"] for entry in first + rest] == ["label.pause"] + 3 * ["item.cancel"]
    assert "--before" in run(place, "audit", "--limit", "2").stderr
    assert [entry["target"] for entry in answer(place, "audit", "--user", "ann")] == ["t2", "t1", "t0"]
