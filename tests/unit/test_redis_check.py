"""`reverie redis check`, on servers that are as they should be and on others; what it says to type helps."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from reverie import Scheduler
from reverie.backends.redis import ForbiddenError, RedisBackend, UnsafeServerError
from reverie.backends.redis.check import SMALL_NODE_BYTES
from reverie.backends.redis.library import QUEUE, repair_source
from reverie.backends.redis.permissions import NEEDED, NEEDED_BY_REPAIR
from reverie.errors import BackendUnavailableError
from reverie.settings import load_settings
from support.commands import run
from support.living import wait_until
from support.places import Place
from support.servers import valkey, valkey_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

FIT = {"stream-node-max-bytes": str(SMALL_NODE_BYTES), "maxmemory": "1gb"}
"""With what the servers of these tests have anyway: nothing to say about it."""

LEAST = (
    "~scheduler:* ~memos:* &scheduler:messages:stream:v2.0* +@read +@write +@transaction +@pubsub "
    "+fcall +function|list +function|load +info +config|get +time +wait +client|id +client|unblock"
)
"""As docs/redis.md has it."""


@contextmanager
def server_of(**config: str) -> Iterator[tuple[Place, Redis]]:
    """A server of a test's own; the settings of the place name it."""
    with valkey(**{**FIT, **config}) as url, Redis.from_url(url) as server:
        yield Place("redis", Path(), url, "memory://"), server


def look(place: Place, *arguments: str) -> dict[str, dict[str, Any]]:
    """The findings by check."""
    shown = run(place, "redis", "check", *arguments, "--json")
    assert shown.stderr == ""
    findings = json.loads(shown.stdout)
    assert shown.exit_code == (1 if any(one["level"] == "problem" for one in findings) else 0)
    return {one["check"]: one for one in findings}


def wrong(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["level"] for name, one in found.items() if one["level"] != "ok"}


def types(server: Redis, finding: dict[str, Any]) -> None:
    """Type what a finding says."""
    assert finding["commands"]
    for command in finding["commands"]:
        server.execute_command(*shlex.split(command))


def durability_of(url: str, **options: Any) -> str:
    """What a process that starts has; it may be refused."""

    async def open_and_close() -> str:
        backend = RedisBackend(url, **options)
        try:
            await backend.open()
            return backend.capabilities.durability
        finally:
            await backend.close()

    return asyncio.run(open_and_close())


def test_a_server_that_is_fit() -> None:
    with server_of(appendfsync="always") as (place, _):
        found = look(place)
        assert wrong(found) == {}
        assert found["redis_version"]["value"].startswith(("Valkey ", "Redis "))
        assert found["role"]["value"] == "primary"
        assert "durability is always" in found["appendfsync"]["what"]
        assert "not loaded yet" in found["functions"]["what"]
        shown = run(place, "redis", "check", place.queue_url)
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert "ok: maxmemory-policy noeviction: nothing is dropped\n" in shown.stdout
        assert "ok: maxmemory 1024 MB: " in shown.stdout


@pytest.mark.parametrize(
    ("config", "check", "level"),
    [
        ({"appendonly": "no"}, "appendonly", "problem"),
        ({"appendfsync": "no"}, "appendfsync", "problem"),
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy", "problem"),
        ({"maxmemory": "1mb"}, "maxmemory", "problem"),
        ({"maxmemory": "0"}, "maxmemory", "advice"),
        ({"stream-node-max-bytes": "4096"}, "stream-node-max-bytes", "advice"),
        ({"stream-node-max-bytes": "0"}, "stream-node-max-bytes", "advice"),
    ],
)
def test_what_it_says_to_type_helps(config: dict[str, str], check: str, level: str) -> None:
    with server_of(**config) as (place, server):
        found = look(place)
        assert wrong(found) == {check: level}
        shown = run(place, "redis", "check").stdout
        assert f"{level}: {check} " in shown
        assert all(f"    {command}\n" in shown for command in found[check]["commands"])
        types(server, found[check])
        assert wrong(look(place)) == {}


@pytest.mark.parametrize("durability", ["always", "full"])
def test_a_server_that_syncs_later_than_is_asked_for(durability: str) -> None:
    with server_of() as (place, server):
        place.extra["REVERIE_QUEUE__DURABILITY"] = durability
        found = look(place)
        assert wrong(found) == {"appendfsync": "problem"}
        with pytest.raises(UnsafeServerError) as refused:
            durability_of(place.queue_url, durability=durability)
        assert str(refused.value) == (
            f"{place.queue_url}: appendfsync is 'everysec': queue.durability = {durability} asks for always: "
            "a crash of the server may lose the last two seconds; set it to always, or set queue.durability "
            "to everysec: in redis-cli `CONFIG SET appendfsync always`, `CONFIG REWRITE`"
        )
        types(server, found["appendfsync"])
        assert wrong(look(place)) == {}
        assert durability_of(place.queue_url, durability=durability) == "always"


@pytest.mark.parametrize("durability", ["everysec", "normal"])
def test_a_server_that_is_better_than_what_is_asked_for(durability: str) -> None:
    for fsync in ("everysec", "always"):
        with server_of(appendfsync=fsync) as (place, _):
            place.extra["REVERIE_QUEUE__DURABILITY"] = durability
            assert wrong(look(place)) == {}


def test_replicas_that_must_confirm(unused_tcp_port: int) -> None:
    quick = {"repl-diskless-sync-delay": "0"}
    with valkey_server(unused_tcp_port, **FIT, **quick) as primary, server_of() as (_, other):
        place = Place("redis", Path(), primary.url, "memory://")
        place.extra["REVERIE_QUEUE__DURABILITY"] = "replicated(1)"
        found = look(place)
        assert wrong(found) == {"replicas": "problem"}
        assert "REPLICAOF" in found["replicas"]["remedy"]
        other.execute_command("REPLICAOF", "127.0.0.1", unused_tcp_port)
        with primary.client() as client:
            wait_until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        found = look(place)
        assert wrong(found) == {}
        assert found["replicas"]["what"].startswith("durability is replicated(1): ")


def test_a_server_that_is_nearly_full() -> None:
    with server_of() as (place, server):
        server.setrange("ballast", 50_000_000, "x")
        server.config_set("maxmemory", int(server.info()["used_memory"] * 1.05))
        assert wrong(look(place)) == {"maxmemory": "advice"}


def test_what_the_settings_put_up_with_is_no_problem() -> None:
    with server_of(appendonly="no", **{"maxmemory-policy": "allkeys-lru"}) as (place, _):
        assert wrong(look(place)) == {"appendonly": "problem", "maxmemory-policy": "problem"}
        place.extra["REVERIE_QUEUE__ALLOW_VOLATILE"] = "true"
        assert wrong(look(place)) == {"appendonly": "advice", "maxmemory-policy": "advice"}


@pytest.mark.parametrize(
    ("denied", "check"), [("-config", "CONFIG"), ("-function", "functions"), ("-config -function", "CONFIG")]
)
def test_commands_that_an_access_list_forbids(denied: str, check: str) -> None:
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">hunter2", "~*", "+@all", *denied.split())
        guest = place.queue_url.replace("unix://", "unix://guest:hunter2@")
        found = look(place, guest)
        assert found[check]["level"] == "problem"
        assert "NOPERM" in found[check]["value"]
        assert "hunter2" not in json.dumps(found)
        if check == "CONFIG":
            assert "REVERIE_QUEUE__DURABILITY_ASSUMED=true" in found["CONFIG"]["remedy"]
        for name in wrong(found):
            types(server, found[name])
        assert wrong(look(place, guest)) == {}


@pytest.mark.parametrize(
    ("text", "examples"), [(QUEUE.text, NEEDED), (repair_source().text, (*NEEDED, *NEEDED_BY_REPAIR))]
)
def test_the_examples_are_all_that_the_functions_run(text: str, examples: tuple[str, ...]) -> None:
    texts = re.findall(r"p?call\('([A-Z]+)'(?:, '(CREATE|SETID|GROUPS)')?|\bsend\('([A-Z]+)'", text)
    run_there = {" ".join(filter(None, one)) for one in texts}
    known = {" ".join(example.split()[:size]) for example in examples for size in (1, 2)}
    assert run_there <= known
    assert "XADD" in run_there


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ("~* &* +@all -xadd -xack", "+xack +xadd"),
        ("~* &* +@all -fcall", "+fcall"),
        ("~* &* +@all -function|load", "+function|load"),
        ("~* &* +@all -xgroup|create", "+xgroup|create"),
        ("~* &* +@all -@blocking +xreadgroup", "+blpop +xread"),
        ("~other* &* +@all", "~memos* ~scheduler*"),
        ("~scheduler:messages:stream:v2.0* ~memos* &* +@all", "~memos* ~scheduler*"),
    ],
)
def test_what_a_user_may_not_do(rules: str, missing: str) -> None:
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", *rules.split())
        guest = place.queue_url.replace("unix://", "unix://guest:word@")
        found = look(place, guest)
        assert wrong(found) == {"user": "problem"}
        assert found["user"]["commands"] == [f"ACL SETUSER guest {missing}"]
        with pytest.raises(ForbiddenError) as refused:
            durability_of(guest)
        assert str(refused.value).startswith(
            f"{place.queue_url} does not allow its user guest what the queue"
        )
        assert str(refused.value).endswith(f"allow it: in redis-cli `ACL SETUSER guest {missing}`")
        assert server.dbsize() == 0
        types(server, found["user"])
        assert wrong(look(place, guest)) == {}
        assert durability_of(guest) == "everysec"


def test_a_user_who_may_not_tell_others() -> None:
    """The queue works, and what it says to type lets events be heard. Replicas cannot be asked without it."""
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "+@all")
        guest = place.queue_url.replace("unix://", "unix://guest:word@")
        found = look(place, guest)
        assert wrong(found) == {"events": "advice"}
        assert durability_of(guest) == "everysec"
        place.extra["REVERIE_QUEUE__DURABILITY"] = "replicated(1)"
        assert wrong(look(place, guest)) == {"events": "advice", "user": "problem", "replicas": "problem"}
        types(server, found["events"])
        assert wrong(look(place, guest)) == {"replicas": "problem"}


def test_the_least_that_a_user_must_be_allowed(tmp_path: Path) -> None:
    """What the documentation names is enough for a message's whole walk."""
    assert LEAST in (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", *LEAST.split())
        guest = place.queue_url.replace("unix://", "unix://guest:word@")
        assert wrong(look(place, guest)) == {}
        ran: list[str] = []
        with Scheduler(guest, settings=load_settings(data_dir=tmp_path)) as scheduler:
            scheduler.handler("note")(lambda message: ran.append(message.item_id))
            scheduler.submit("note", user_id="ann", item_id="1")
            assert scheduler.wait("1", user_id="ann").status == "completed"
        assert ran == ["1"]


def test_a_right_that_is_taken_away_later(tmp_path: Path) -> None:
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "&*", "+@all")
        guest = place.queue_url.replace("unix://", "unix://guest:word@")
        with Scheduler(guest, settings=load_settings(data_dir=tmp_path)).used() as scheduler:
            scheduler.submit("note", user_id="ann")
            server.execute_command("ACL", "SETUSER", "guest", "-xadd")
            with pytest.raises(ForbiddenError, match="'xadd' command; `reverie redis check` says"):
                scheduler.submit("note", user_id="ann")
            server.execute_command("ACL", "SETUSER", "guest", "+xadd", "-fcall")
            with pytest.raises(ForbiddenError, match="'fcall' command"):
                scheduler.submit("note", user_id="ann")


def test_a_user_without_transactions() -> None:
    """What it may do cannot be seen, and nothing is tried: it works, or is told when something is refused."""
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "&*", "+@all", "-multi")
        guest = place.queue_url.replace("unix://", "unix://guest:word@")
        found = look(place, guest)
        assert wrong(found) == {"user": "advice"}
        assert server.dbsize() == 0
        assert durability_of(guest) == "everysec"
        types(server, found["user"])
        assert wrong(look(place, guest)) == {}


def test_a_trusted_server_whose_settings_cannot_be_seen() -> None:
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "&*", "+@all", "-config")
        place.extra["REVERIE_QUEUE__DURABILITY_ASSUMED"] = "true"
        found = look(place, place.queue_url.replace("unix://", "unix://guest:word@"))
        assert wrong(found) == {"CONFIG": "advice"}
        assert "stream-node-max-bytes" not in found


def test_a_server_that_does_not_say_what_it_is() -> None:
    with server_of() as (place, server):
        server.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "+@all", "-info")
        shown = run(place, "redis", "check", place.queue_url.replace("unix://", "unix://guest:word@"))
        assert shown.exit_code == 1
        assert "INFO" in shown.stderr
        assert "word@" not in shown.output


async def test_a_replica_is_refused() -> None:
    with server_of() as (place, server):
        server.execute_command("REPLICAOF", "127.0.0.1", "1")
        backend = RedisBackend(place.queue_url)
        with pytest.raises(BackendUnavailableError, match=r"is a replica: .* redis://127\.0\.0\.1:1"):
            await backend.open()


def test_a_replica_is_a_problem() -> None:
    with server_of() as (place, server):
        server.execute_command("REPLICAOF", "127.0.0.1", "1")
        found = look(place)
        assert wrong(found) == {"role": "problem"}
        assert found["role"]["remedy"] == "writes go to the primary: use redis://127.0.0.1:1"


def test_libraries_side_by_side() -> None:
    with server_of() as (place, server):
        old, repair = "reverie_v2_0123456789ab", repair_source()
        server.function_load(QUEUE.text)
        server.function_load(repair.text)
        server.function_load(f"#!lua name={old}\nredis.register_function('{old}_now', function() end)")
        server.function_load("#!lua name=other\nredis.register_function('other', function() end)")
        found = look(place)["functions"]
        assert (found["level"], found["value"]) == ("ok", QUEUE.name)
        assert found["what"] == f"is loaded; beside it {repair.name}, {old}"
        assert found["commands"] == [f"FUNCTION DELETE {repair.name}", f"FUNCTION DELETE {old}"]
        types(server, found)
        assert look(place)["functions"]["commands"] == []


def test_a_small_node_makes_a_small_lane() -> None:
    sizes = []
    with server_of() as (_, server):
        for node in (4096, SMALL_NODE_BYTES):
            server.config_set("stream-node-max-bytes", node)
            server.xadd(f"lane {node}", {"message": "x" * 300, "item_id": "1"})
            sizes.append(server.memory_usage(f"lane {node}"))
    assert sizes[1] < sizes[0] / 3


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hunter2@127.0.0.1:1/0", "redis://127.0.0.1:1/0 did not answer"),
        ("unix://guest:hunter2@/nowhere/valkey.sock", "unix:///nowhere/valkey.sock did not answer"),
        ("redis://:hunter2@host:port/0", "must be such as redis://"),
        ("redis://:hun/ter2@host/0", "must be such as redis://"),
        ("sqlite:///x.db", "URL = 'sqlite:///x.db': is no queue on Redis"),
    ],
)
def test_a_server_that_cannot_be_reached(url: str, said: str) -> None:
    shown: Result = run(Place("none", Path(), "memory://", "memory://"), "redis", "check", url)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.startswith("error: ")
    assert len(shown.stderr.splitlines()) == 1
    assert said in shown.stderr
    assert not any(word in shown.output for word in ("hunter2", "hun", "ter2"))


def test_a_password_that_is_wrong() -> None:
    with server_of() as (place, server):
        server.config_set("requirepass", "right")
        for url in (place.queue_url, place.queue_url.replace("unix://", "unix://:hunter2@")):
            shown = run(place, "redis", "check", url)
            assert shown.exit_code == 1
            assert "auth" in shown.stderr.lower() or "password" in shown.stderr.lower()
            assert "hunter2" not in shown.output


def test_a_queue_that_is_not_on_redis() -> None:
    shown = run(Place("none", Path(), "memory://", "memory://"), "redis", "check")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "queue.url = 'memory://': is no queue on Redis" in shown.stderr
