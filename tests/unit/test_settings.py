"""Settings: where they come from, and what is said about bad ones."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from redis import Redis
from redis.connection import parse_url
from typer.testing import CliRunner

from reverie.backends.redis.keys import DEFAULT_PREFIX
from reverie.cli.commands.config import config
from reverie.configuration.fields import all_fields, find
from reverie.configuration.reading import read
from reverie.configuration.section import Section
from reverie.configuration.sources import Source, from_arguments, from_environment, from_file
from reverie.errors import InvalidSettingError, InvalidSettingsError, redacted, shown
from reverie.face.scheduler import Scheduler
from reverie.runtime import Runtime
from reverie.settings import Settings, environment_of, load_settings, read_settings
from reverie.triggers.settings import default_tasks
from support.redis_bench import message
from support.servers import valkey


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and an environment that set nothing."""
    for name in os.environ:
        if name.upper().startswith(("REVERIE_", "MEMSCHEDULER_", "API_SCHEDULER_ON")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str | bytes) -> None:
    Path("reverie.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())


def problems(**given: object) -> list[str]:
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings(**given)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem) for problem in caught.value.problems]


# -- sources -----------------------------------------------------------------------------------------


def test_the_later_source_wins_and_each_value_knows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "queue:\n  max_depth: 1\n  max_losses: 1\n  max_rate: 1\nlabels: {export: {level: 1, batch: 1}}\n"
        "llm: {prices: {tiny: {input: 1}}}\nextraction: {cubes: {work: {mission: Work only.}}}\n"
    )
    monkeypatch.setenv("REVERIE_QUEUE__MAX_LOSSES", "2")
    monkeypatch.setenv("reverie_labels__export__batch", "2")
    monkeypatch.setenv("REVERIE_QUEUE__MAX_RATE", "2")
    reading = read_settings(queue={"max_rate": 3})
    found = {value.field.name: (value.value, value.source) for value in reading.values()}
    assert found["queue.max_depth"] == (1, "reverie.yaml:2")
    assert found["queue.max_losses"] == (2, "REVERIE_QUEUE__MAX_LOSSES")
    assert found["queue.max_rate"] == (3, "argument")
    assert found["queue.max_wait_s"] == (60, "default")
    assert found["labels.export.level"] == (1, "reverie.yaml:5")
    assert found["labels.export.batch"] == (2, "reverie_labels__export__batch")
    known = {field.name for field in all_fields(Settings)}
    groups = {
        r"^labels\.export": "labels.<label>",
        r"^scheduler\.tasks\.\w+": "scheduler.tasks.<task>",
        r"^llm\.prices\.tiny": "llm.prices.<price>",
        r"^extraction\.cubes\.work": "extraction.cubes.<cube>",
    }
    for name, general in groups.items():
        found = {re.sub(name, general, one): value for one, value in found.items()}
    assert set(found) == known


def test_the_file_of_the_configuration_folder_counts_if_there_is_none_here(folder: Path) -> None:
    path = folder / "config" / "reverie" / "reverie.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("server: {port: 1}")
    assert load_settings().server.port == 1
    write("server: {port: 2}")
    assert load_settings().server.port == 2


def test_a_variable_for_a_whole_group_and_one_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVERIE_QUEUE", '{"max_depth": 5, "max_losses": 6}')
    monkeypatch.setenv("REVERIE_QUEUE__MAX_DEPTH", "null")
    monkeypatch.setenv("REVERIE_LABELS", '{"myExport": {"level": 2}}')
    settings = load_settings()
    assert (settings.queue.max_depth, settings.queue.max_losses) == (None, 6)
    assert settings.labels["myExport"].level == 2


def test_the_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVERIE_DATA_DIR", str(folder / "data"))
    assert load_settings().queue_url == f"sqlite:///{folder / 'data' / 'reverie.db'}"


def test_another_process_reads_the_very_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHEDULER_REDIS_STREAM_KEY_PREFIX", "inherited")
    monkeypatch.setenv("REVERIE_WORKER__SLOTS", "7")
    settings = load_settings(queue={"redis_prefix": "own", "max_depth": None}, labels={"Work": {"level": 3}})
    for name, text in environment_of(settings).items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("REVERIE_WORKER__SLOTS")
    assert load_settings() == settings


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "queue:\nlabels:\n", "labels: {export: }\n"])
def test_what_is_left_empty_says_nothing(text: str) -> None:
    write(text)
    settings = load_settings()
    assert settings.model_copy(update={"labels": {}}) == Settings()


def test_anchors_and_merges_know_their_lines() -> None:
    write("labels:\n  a: &a\n    level: 1\n    batch: 2\n  b:\n    <<: *a\n    batch: 0\n")
    assert problems() == [
        "reverie.yaml:7: labels.b.batch = 0: must be a whole number, 1 to 9007199254740992, or null"
    ]


@pytest.mark.parametrize(
    ("name", "value", "largest"),
    [
        ("queue.retention_s", 1e20, 315_360_000),
        ("queue.busy_timeout_s", 1e20, 2_000_000),
        ("worker.lease_s", 1e300, 315_360_000),
        ("worker.slots", 10**23, 2**53),
        ("labels.export.min_idle_ms", 10**23, 315_360_000_000),
        ("labels.export.timeout_s", 1e20, 315_360_000),
        ("events.samples_kept", 10**23, 1_000_000),
        ("alerts.webhook_attempts", 101, 100),
        ("alerts.webhook_timeout_s", 1e12, 3600),
    ],
)
def test_a_number_that_is_too_large(name: str, value: float, largest: int) -> None:
    def as_set(value: float) -> dict[str, Any]:
        inner: Any = value
        for part in reversed(name.split(".")):
            inner = {part: inner}
        return inner

    (problem,) = problems(**as_set(value))
    assert problem.startswith(f"argument: {name} = {value}: must be a ")
    assert re.search(rf"\b(to|at most) {largest}\b", problem)
    load_settings(**as_set(largest))


def test_every_number_has_an_upper_bound() -> None:
    numbers = [field for field in all_fields(Settings) if field.annotation in {int, float}]
    assert [field.name for field in numbers if not re.search(r"\b(to|at most) \d", field.allowed)] == []


# -- names of the seeds ------------------------------------------------------------------------------


def test_the_prefix_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    def prefix() -> str:
        return load_settings().queue.redis_prefix

    assert prefix() == DEFAULT_PREFIX
    monkeypatch.setenv("MEMSCHEDULER_STREAM_KEY_PREFIX", "default")
    assert prefix() == "default"
    write("queue: {redis_prefix: file}")
    assert prefix() == "file"
    monkeypatch.setenv("MEMSCHEDULER_REDIS_STREAM_KEY_PREFIX", "redis")
    assert prefix() == "redis"
    monkeypatch.setenv("REVERIE_QUEUE__REDIS_PREFIX", "reverie")
    assert prefix() == "reverie"


async def test_the_prefix_is_that_of_the_keys_on_the_server(
    redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"elsewhere:{folder.name}"
    monkeypatch.setenv("MEMSCHEDULER_REDIS_STREAM_KEY_PREFIX", prefix)
    settings = load_settings(
        data_dir=folder, queue={"url": redis_url, "durability_assumed": True, "allow_volatile": True}
    )
    backend = Runtime(settings).backend
    await backend.open()
    try:
        await backend.queue.submit([message("1", folder.name, label="work", mem_cube_id="c")])
    finally:
        await backend.close()
    with Redis.from_url(redis_url) as server:
        assert server.exists(f"{prefix}:{folder.name}:c:work") == 1


def test_the_backend_is_chosen_by_url_by_setting_or_by_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def url(**queue: object) -> str:
        return load_settings(data_dir=folder, queue=queue).queue_url

    sqlite, redis = f"sqlite:///{folder / 'reverie.db'}", "redis://localhost:6379/0"
    assert url() == sqlite
    assert url(use_redis_queue=True) == redis
    write("queue: {use_redis_queue: true}")
    assert url() == redis
    monkeypatch.setenv("MEMSCHEDULER_USE_REDIS_QUEUE", "False")
    assert url() == sqlite
    monkeypatch.setenv("REVERIE_QUEUE__USE_REDIS_QUEUE", "true")
    assert url() == redis
    assert url(use_redis_queue=False) == sqlite
    write("queue: {url: 'sqlite:///other.db'}")
    assert url() == "sqlite:///other.db"
    assert url(url="redis://elsewhere") == "redis://elsewhere"
    assert Scheduler("memory://").runtime.settings.queue_url == "memory://"
    for spelled, plain in {
        "SQLite:///Other.db": "sqlite:///Other.db",
        "REDIS://Host/0": "redis://Host/0",
        "sqlite:///:memory:": "memory://",
    }.items():
        settings = load_settings(queue={"url": spelled})
        assert (settings.queue_url, Scheduler(settings=settings).runtime.settings.queue_url) == (plain, plain)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOST": "cache.example", "PORT": "7000", "DB": "3"}, "redis://cache.example:7000/3"),
        ({"PASSWORD": "p@ss/w:rd"}, "redis://:p%40ss%2Fw%3Ard@localhost:6379/0"),
        ({"USERNAME": "ann", "PASSWORD": "word"}, "redis://ann:word@localhost:6379/0"),
        ({"USERNAME": "ann", "PASSWORD": ""}, "redis://ann@localhost:6379/0"),
        ({"HOST": "::1", "SSL": "true"}, "rediss://[::1]:6379/0"),
    ],
)
def test_where_redis_is(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("MEMSCHEDULER_USE_REDIS_QUEUE", "true")
    for name, text in variables.items():
        monkeypatch.setenv(f"MEMSCHEDULER_REDIS_{name}", text)
    settings = load_settings(data_dir=folder)
    assert settings.queue_url == expected
    options = parse_url(settings.queue_url)
    assert options.get("password", "") == variables.get("PASSWORD", "")
    assert load_settings(queue={"redis_host": "other"}).queue.redis_host == "other"
    rows = json.loads(CliRunner().invoke(config, ["show", "--json"]).stdout)
    shown = {row["setting"]: row["value"] for row in rows}
    assert shown["queue.redis_password"] in {None, "(hidden)"}
    assert shown["queue.url"] == redacted(expected)


async def test_the_variables_lead_to_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    with valkey() as url, Redis.from_url(url) as server:
        server.config_set("port", unused_tcp_port)
        server.config_set("requirepass", "p@ss/w:rd")
        variables = {"HOST": "127.0.0.1", "PORT": str(unused_tcp_port), "DB": "2", "PASSWORD": "p@ss/w:rd"}
        monkeypatch.setenv("MEMSCHEDULER_USE_REDIS_QUEUE", "true")
        for name, text in variables.items():
            monkeypatch.setenv(f"MEMSCHEDULER_REDIS_{name}", text)
        backend = Runtime(load_settings(data_dir=folder)).backend
        await backend.open()
        await backend.queue.submit([message("1")])
        await backend.close()
        with Redis(unix_socket_path=url.removeprefix("unix://"), password="p@ss/w:rd", db=2) as inside:
            assert inside.exists(f"{DEFAULT_PREFIX}:ann:ann:work") == 1


@pytest.mark.parametrize(("text", "on"), [("true", True), ("false", False), ("0", False), ("ON", True)])
def test_whether_the_server_runs_a_worker(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"server: {{run_worker: {str(not on).lower()}}}")
    monkeypatch.setenv("API_SCHEDULER_ON", text)
    assert load_settings().server.run_worker is on
    monkeypatch.setenv("REVERIE_SERVER__RUN_WORKER", str(not on))
    assert load_settings().server.run_worker is not on


def test_a_bad_value_of_another_name_is_refused_by_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_SCHEDULER_ON", "maybe")
    monkeypatch.setenv("MEMSCHEDULER_STREAM_KEY_PREFIX", "")
    assert problems() == [
        "MEMSCHEDULER_STREAM_KEY_PREFIX: queue.redis_prefix = '': must be text, not empty",
        "API_SCHEDULER_ON: server.run_worker = 'maybe': must be true or false",
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("USE_REDIS_QUEUE", "perhaps", "queue.use_redis_queue = 'perhaps': must be true or false"),
        ("REDIS_PORT", "70000", "queue.redis_port = '70000': must be a whole number, 1 to 65535"),
        ("REDIS_PORT", "", "queue.redis_port = '': must be a whole number, 1 to 65535"),
        ("REDIS_DB", "-1", "queue.redis_db = '-1': must be a whole number, 0 to 2147483647"),
        ("REDIS_SSL", "maybe", "queue.redis_ssl = 'maybe': must be true or false"),
        ("REDIS_HOST", "", "queue.redis_host = '': must be text, not empty"),
        ("REDIS_HOST", "a:6379", "queue.redis_host = 'a:6379': must be a host only: its port"),
        ("REDIS_HOST", "redis://:hunter2@a", "queue.redis_host = 'redis://a': must be a host only"),
    ],
)
def test_a_bad_server_is_refused(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MEMSCHEDULER_{name}", text)
    (problem,) = problems()
    assert problem.startswith(f"MEMSCHEDULER_{name}: {said}")
    assert "hunter2" not in problem


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qeue: {}", "reverie.yaml:1: qeue = {}: no such setting; did you mean queue?"),
        ("queue:\n  urll: x", "reverie.yaml:2: queue.urll = 'x': no such setting; did you mean queue.url?"),
        ("renew_s: 3", "reverie.yaml:1: renew_s = 3: no such setting; did you mean worker.renew_s?"),
        (
            "labels:\n  a:\n\n    levle: 1",
            "reverie.yaml:4: labels.a.levle = 1: no such setting; did you mean labels.a.level?",
        ),
        ("memory: {xyzzy: 1}", "reverie.yaml:1: memory.xyzzy = 1: no such setting; known here: url"),
        (
            "worker: {slots: many}",
            "reverie.yaml:1: worker.slots = 'many': must be a whole number, 1 to 9007199254740992",
        ),
        (
            "worker: {slots: [1]}",
            "reverie.yaml:1: worker.slots = [1]: must be a whole number, 1 to 9007199254740992",
        ),
        ("server: {port: 65536}", "reverie.yaml:1: server.port = 65536: must be a whole number, 0 to 65535"),
        ("server: {port: null}", "reverie.yaml:1: server.port = None: must be a whole number, 0 to 65535"),
        ("worker: {lease_s: .inf}", "reverie.yaml:1: worker.lease_s = inf: must be a number, greater than 0"),
        ("worker: {lease_s: .nan}", "reverie.yaml:1: worker.lease_s = nan: must be a number, greater than 0"),
        (
            "queue: {durability: some}",
            "reverie.yaml:1: queue.durability = 'some': must be one of full, normal, always, everysec",
        ),
        (
            "queue: {durability: replicated(0)}",
            "reverie.yaml:1: queue.durability = 'replicated(0)': must be one of full, normal",
        ),
        ("queue: {durability: 1}", "reverie.yaml:1: queue.durability = 1: must be text or null"),
        (
            "queue: {replication_timeout_s: 21}",
            "reverie.yaml:1: queue.replication_timeout_s = 21: must be a number, greater than 0, at most 20",
        ),
        (
            "queue: {allow_volatile: si}",
            "reverie.yaml:1: queue.allow_volatile = 'si': must be true or false",
        ),
        ("queue: {url: 5}", "reverie.yaml:1: queue.url = 5: must be text or null"),
        ("data_dir: 5", "reverie.yaml:1: data_dir = 5: must be a path"),
        ("queue: full", "reverie.yaml:1: queue = 'full': must be a mapping of names to settings"),
        ("labels: [a]", "reverie.yaml:1: labels = ['a']: must be a mapping of names to settings"),
        ("labels: {a: 1}", "reverie.yaml:1: labels.a = 1: must be a mapping of names to settings"),
        ("labels:\n  2: {}", "reverie.yaml:2: labels.2 = 2: a name must be text: put it in quotes"),
        ("app: a\nserver: {}\napp: b", "reverie.yaml:3: app is set twice: leave one out"),
        ("- a", "reverie.yaml: must be a mapping of settings, such as 'server: {port: 8000}', not ['a']"),
        ("just words", "reverie.yaml: must be a mapping of settings, such as 'server: {port: 8000}', "),
        ("a: 1\nb: {\n", "reverie.yaml:3: is not YAML: "),
        ("a: !!python/object:os.system x", "reverie.yaml:1: is not YAML: could not determine a constructor"),
        ("a: 2024-99-99", "reverie.yaml: is not YAML: month must be in 1..12"),
        ("a: 1\n---\nb: 2", "reverie.yaml:2: is not YAML: expected a single document"),
        ("[" * 5000, "reverie.yaml: is not YAML: too many levels inside each other"),
        (b"app: \xff", "reverie.yaml: is not text in UTF-8 (byte 5): save it in that encoding"),
    ],
)
def test_a_file_that_is_wrong(text: str | bytes, said: str) -> None:
    write(text)
    [line] = problems()
    assert line.startswith(said)


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    assert str(from_file(folder).problems[0]) == f"{folder}: cannot be read: Is a directory"
    missing = from_file(folder / "missing.yaml")
    assert str(missing.problems[0]) == f"{folder}/missing.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("REVERIE_QUEUE", "{", "REVERIE_QUEUE: queue = '{': is not JSON (Expecting property name"),
        ("REVERIE_QUEUE", "[" * 100_000, "REVERIE_QUEUE: queue = '[[["),
        ("REVERIE_QUEUE", "5", "REVERIE_QUEUE: queue = 5: must be a mapping of names to settings"),
        (
            "REVERIE_QUEUE",
            '{"urll": "x"}',
            "REVERIE_QUEUE: queue.urll = 'x': no such setting; did you mean queue.url?",
        ),
        (
            "REVERIE_QUEUE__URLL",
            "x",
            "REVERIE_QUEUE__URLL: queue.urll = 'x': no such setting; did you mean REVERIE_QUEUE__URL?",
        ),
        (
            "REVERIE_QUEUE_URL",
            "x",
            "REVERIE_QUEUE_URL: queue_url = 'x': no such setting; did you mean REVERIE_QUEUE__URL?",
        ),
        ("REVERIE_APP__X", "x", "REVERIE_APP__X: app.x = 'x': no such setting; did you mean REVERIE_APP?"),
        (
            "REVERIE_LABELS__A__LEVEL",
            "4",
            "REVERIE_LABELS__A__LEVEL: labels.a.level = '4': must be a whole number, 1 to 3, or null",
        ),
        ("REVERIE_LABELS__A__LEVLE", "1", "REVERIE_LABELS__A__LEVLE: labels.a.levle = '1': no such setting"),
    ],
)
def test_a_variable_that_is_wrong(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    [line] = problems()
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("name", "text"),
    [("REVERIE_FAILPOINT", "x"), ("REVERIE_SERVICE_HOST", "h"), ("REVERIE_SERVER_PORT", "tcp://10.0.0.1:80")],
)
def test_variables_of_others_are_left_alone(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    assert load_settings() == Settings()


def test_everything_that_is_wrong_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write("worker:\n  slots: 0\n  lease_s: 5\nqueue: {max_losses: 0}\n")
    monkeypatch.setenv("REVERIE_LIMITS", "nothing")
    monkeypatch.setenv("REVERIE_QUEUE__MAX_LOSSES", "-1")
    assert problems(app=5, server={"port": -1}) == [
        (
            "REVERIE_LIMITS: limits = 'nothing': is not JSON (Expecting value: line 1 column 1 (char 0)): "
            'must be such as {"name": value}'
        ),
        "argument: app = 5: must be text or null",
        "REVERIE_QUEUE__MAX_LOSSES: queue.max_losses = '-1': must be a whole number, 1 to 9007199254740992",
        "argument: server.port = -1: must be a whole number, 0 to 65535",
        "reverie.yaml:2: worker.slots = 0: must be a whole number, 1 to 9007199254740992",
    ]


def test_two_settings_that_do_not_fit_are_named_with_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    write("worker:\n  slots: 3\n  lease_s: 5\n")
    monkeypatch.setenv("REVERIE_WORKER__RENEW_S", "6")
    [line] = problems()
    assert line.startswith("reverie.yaml:3, REVERIE_WORKER__RENEW_S: worker = ")
    assert "renew_s = 6 must be less than lease_s = 5" in line


# -- passwords ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://me:hunter2@host:1/0", "redis://host:1/0"),
        ("redis://:hun@ter2@host/0", "redis://host/0"),
        ("redis://:hun/ter2@host/0", "redis://host/0"),
        ("redis://host/0?password=hunter2&db=1", "redis://host/0?password=…&db=1"),
        ("sqlite:////home/me@work/reverie.db", "sqlite:////home/me@work/reverie.db"),
    ],
)
def test_urls_are_shown_without_passwords(url: str, seen: str) -> None:
    assert redacted(url) == seen


def test_errors_show_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        'queue: {url: ["redis://me:hunter2@host"], urll: "redis://me:hunter2@host"}\n'
        "memory: {password: hunter2}\n"
    )
    monkeypatch.setenv("REVERIE_MEMORY", '{"url": "redis://me:hunter2@host"')
    lines = problems(server={"host": {"api_key": "hunter2", "secret": "hunter2"}})
    assert len(lines) == 5
    assert "hunter2" not in "".join(lines)


class Nested(Section):
    """Inside."""

    token: str = Field("", max_length=3, description="a secret")
    size: int = Field(1, lt=5, description="items")


class Outer(Section):
    """Outside."""

    parts: list[Nested] = Field(default_factory=list, description="parts")
    names: list[str] = Field(default_factory=list, description="names")
    rates: dict[str, float] = Field(default_factory=dict, description="rates")


def test_settings_at_any_depth_are_found() -> None:
    assert [field.name for field in all_fields(Outer)] == [
        "parts.<part>.token",
        "parts.<part>.size",
        "names",
        "rates",
    ]
    assert find(Outer, ("parts", "0", "size")).allowed == "less than 5"
    assert find(Outer, ("parts", "0", "size", "more")) is None
    reading = read(
        Outer, [from_environment(Outer, {"REVERIE_NAMES": '["a"]', "REVERIE_PARTS": '[{"size": 2}]'})]
    )
    assert {v.field.name: v.value for v in reading.values()} == {
        "parts.0.token": "",
        "parts.0.size": 2,
        "names": ["a"],
        "rates": {},
    }
    with pytest.raises(InvalidSettingsError) as caught:
        read(
            Outer,
            [from_arguments({"parts": [{"token": "hunter2", "size": 9}], "names": 1, "rates": {"a": "x"}})],
        )
    assert str(caught.value).splitlines() == [
        "argument: parts.0.token = '(hidden)': must be text, at most 3 long",
        "argument: parts.0.size = 9: must be a whole number, less than 5",
        "argument: names = 1: must be a list of text",
        "argument: rates = 'x': must be a mapping of names to number",
    ]


# -- anything ----------------------------------------------------------------------------------------

NAMES = st.sampled_from([*Settings.model_fields, "url", "port", "lease_s", "renew_s", "export", "level"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary()
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | SCALARS.filter(lambda x: x == x), inner, max_size=4)
    ),
)


def loads_or_says_why(source: Source) -> None:
    try:
        read(Settings, [source])
    except InvalidSettingsError as error:
        found = error.problems
    else:
        found = []
    assert [problem for problem in found if not problem.reason or len(str(problem)) > 2000] == []


@given(tree=st.dictionaries(NAMES, TREES, max_size=4) | TREES)
def test_any_yaml_loads_or_is_refused(tree: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    loads_or_says_why(from_file(path))


@given(text=st.text() | st.text("{}[]:-,&*!|>'\"<~? \n#0a=.%@`x") | st.binary())
def test_any_file_loads_or_is_refused(text: str | bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    loads_or_says_why(from_file(path))


@given(
    variables=st.dictionaries(
        st.sampled_from([field.variable for field in all_fields(Settings)])
        | NAMES.map(lambda name: f"REVERIE_{name.upper()}")
        | st.text("ABQUE_").map(lambda name: f"REVERIE_{name}"),
        st.text() | TREES.map(lambda tree: json.dumps(tree, default=str, skipkeys=True)),
        max_size=5,
    )
)
def test_any_variable_loads_or_is_refused(variables: dict[str, str]) -> None:
    loads_or_says_why(from_environment(Settings, variables))


@pytest.mark.parametrize("where", ["queue", "labels", "elsewhere"])
def test_a_file_that_grows_without_end_when_it_is_read(where: str) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    write("a0: &a0 [x]\n" + "\n".join(levels) + f"\n{where}: *a29\n")
    assert len(problems()) == 31


def test_a_file_that_holds_itself() -> None:
    write("labels: &a {export: *a}\nqueue: &b [*b]\n")
    assert any(line.startswith("reverie.yaml:1: labels.export.export") for line in problems())


def test_a_number_too_long_to_be_written() -> None:
    write(f"worker: {{slots: -0x{'f' * 9000}}}")
    assert "a whole number of more than 150 digits" in problems()[0]
    assert shown({1: [[[[1]]]]}) == "{1: [[…]]}"


# -- commands ----------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(config, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_show_lists_every_setting_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    write("worker: {slots: 5}\nserver: {port: 8000}\n")
    monkeypatch.setenv("REVERIE_QUEUE__URL", "redis://me:hunter2@host/0")
    code, text, _ = run("show", "--json")
    rows = {row["setting"]: row for row in json.loads(text)}
    assert code == 0
    names = [field.name for field in all_fields(Settings)]
    of_tasks = sum(name.startswith("scheduler.tasks.<task>") for name in names) * len(default_tasks())
    empty = 3  # labels, prices and cubes have no entries
    assert len(rows) == sum("<" not in name for name in names) + empty + of_tasks
    assert rows["scheduler.tasks.data_cleanup.interval"]["value"] == 86400
    assert not rows["scheduler.tasks.data_cleanup.interval"]["changed"]
    assert rows["worker.slots"] == {
        "setting": "worker.slots",
        "value": 5,
        "source": "reverie.yaml:1",
        "changed": True,
    }
    assert rows["queue.url"]["value"] == "redis://host/0"
    assert rows["queue.url"]["source"] == "REVERIE_QUEUE__URL"
    assert rows["memory.url"]["value"].startswith("sqlite:///")
    assert not rows["memory.url"]["changed"]
    assert not rows["server.port"]["changed"]


def test_show_only_what_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    write("worker: {slots: 5}\nserver: {port: 8000}\n")
    code, text, _ = run("show", "--changed")
    assert code == 0
    assert [line.split() for line in text.splitlines() if "worker" in line or "server" in line] == [
        ["worker.slots", "5", "reverie.yaml:1"]
    ]


def test_show_refuses_what_is_wrong() -> None:
    write("worker: {slots: 0}\n")
    code, text, said = run("show")
    assert (code, text) == (1, "")
    assert said == "error: reverie.yaml:1: worker.slots = 0: must be a whole number, 1 to 9007199254740992\n"


def test_check_says_ok_or_all_that_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("check") == (0, "ok\n", "")
    assert run("check", "--json") == (0, "[]\n", "")
    write("worker: {slots: 0}\nfoo: 1\n")
    code, text, said = run("check")
    assert (code, text, len(said.splitlines())) == (1, "", 2)
    code, text, said = run("check", "--json")
    assert (code, said) == (1, "")
    assert [(row["where"], row["setting"], row["value"]) for row in json.loads(text)] == [
        ("reverie.yaml:1", "worker.slots", "0"),
        ("reverie.yaml:2", "foo", "1"),
    ]
    other = folder / "other.yaml"
    other.write_text("worker: {slots: 1}")
    monkeypatch.setenv("REVERIE_WORKER__SLOTS", "bad")
    assert run("check", str(other)) == (0, "ok\n", "")
    code, _, said = run("check", str(folder / "missing.yaml"))
    assert (code, "cannot be read: No such file" in said) == (1, True)


def test_the_plural_is_one_of_the_family() -> None:
    one = InvalidSettingError("a", 1, "no", "here")
    assert str(InvalidSettingsError([one])) == str(one) == "here: a = 1: no"


def test_each_queue_has_a_spool_of_its_own(tmp_path: Path) -> None:
    def spool(**queue) -> Path:
        return load_settings(data_dir=tmp_path, queue=queue).spool_dir

    assert spool() == tmp_path / "spool"
    assert spool(url=f"sqlite:///{tmp_path}/app.db") == tmp_path / "app.db-spool"
    away = [
        spool(url="redis://a:6379/0"),
        spool(url="redis://b:6379/0"),
        spool(url="redis://a:6379/1"),
        spool(url="redis://a:6379/0", redis_prefix="mine"),
    ]
    assert len(set(away)) == 4
    assert spool(url="redis://ann:secret@a:6379/0") == away[0]
    assert load_settings(data_dir=tmp_path, spool={"dir": tmp_path / "s"}).spool_dir == tmp_path / "s"
