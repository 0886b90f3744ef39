"""The command line: quick help, clear errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from reverie.backends.views import StatusQuery
from reverie.errors import InvalidSettingError
from reverie.settings import load_settings
from support.places import Place

HEAVY = ("apsw", "pydantic", "fastapi", "uvicorn", "redis", "msgspec", "yaml", "structlog", "asyncio")
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def loaded_modules(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(shown.stdout.splitlines()[-1].split())


def test_help_imports_no_heavy_module() -> None:
    help_of_all = "from typer.testing import CliRunner\nfrom reverie.cli.main import cli\n"
    plain = loaded_modules("from typer.testing import CliRunner")
    loaded = loaded_modules(help_of_all + "assert 'serve' in CliRunner().invoke(cli, ['--help']).output")
    assert not {module for module in loaded - plain if module.split(".")[0] in HEAVY}
    assert not {module for module in loaded if module in HEAVY[:-1]}


def test_the_package_itself_imports_nothing() -> None:
    loaded = loaded_modules("import reverie")
    assert {module for module in loaded if module.startswith("reverie")} == {"reverie", "reverie.version"}
    assert not loaded & set(HEAVY)


@SQLITE
def test_errors_are_one_line_and_exit_code_one(place: Place) -> None:
    (place.folder / "broken.py").write_text("1 / 0")
    (place.folder / "unfinished.py").write_text("first = 1\nsecond = (\n")
    (place.folder / "needy.py").write_text("first = 1\nimport nowhere\n")
    (place.folder / "not.db").write_text("this is not a database, it is a text that is long enough" * 100)
    for arguments, words in {
        ("status", "nothing", "--user", "ann"): "user 'ann' has no item or task 'nothing'",
        ("add", "x", "--user", "_system"): "user_id='_system': ids that begin with _ are reserved",
        ("add", "  ", "--user", "ann"): "has nothing to remember",
        ("submit", "work", "x", "--user", "ann", "--url", "memory://"): "--url = 'memory://': ends with the",
        ("add", "x", "--user", "ann", "--url", "sqlite:///:memory:"): "--url = 'sqlite:///:memory:': ends",
        ("status", "--user", "ann", "--url", "SQLite:///:memory:"): "use a storage that stays, such as",
        ("queue", "--url", "memory://"): "use a storage that stays, such as",
        ("add", "x", "--user", "ann", "--url", "SQLITE://here"): "must begin with one of sqlite:///",
        ("search", "tea", "--user", ""): "user_id='': must not be empty",
        ("status", "--user", "x" * 1000): "must be at most 512 bytes",
        ("add", "x", "--user", "ann", "--url", "mysql://here"): "no backend for 'mysql://here'",
        ("worker", "--app", "nowhere:app"): "there is no module 'nowhere'",
        ("worker", "--app", "json"): "it must be module:attribute",
        ("worker", "--app", "json:lods"): "json has no 'lods'; do you mean 'loads'?",
        ("worker", "--app", "unfinished:app"): "unfinished.py:2: SyntaxError: ",
        ("worker", "--app", "needy:app"): "needy.py:2: ModuleNotFoundError: No module named 'nowhere'",
        ("worker", "--app", "broken:app"): "broken.py:1: ZeroDivisionError: division by zero",
        ("worker", "--app", "broken:app", "--url", "memory://"): "leave one out",
        ("worker", "--app", "json:loads"): "not a Scheduler",
        ("serve", "--host", "0.0.0.0"): "make a key first, with reverie keys create",
        ("serve", "--host", "no such host"): "is no address",
        ("serve", "--host", "a" * 300): "is no address: it has a part",
        ("serve", "--port", "99999"): "server.port = 99999: must be a whole number, 0 to 65535",
        ("serve", "--port=-1"): "server.port = -1: must be",
        ("add", "x", "--user", "ann", "--url", f"sqlite:///{place.folder}/not.db"): "file is not a database",
        ("serve", "--port", "0", "--url", f"sqlite:///{place.folder}/not.db"): "file is not a database",
    }.items():
        shown = place.command(*arguments)
        assert (shown.returncode, shown.stdout) == (1, ""), arguments
        assert words in shown.stderr, shown.stderr
        assert len(shown.stderr.splitlines()) == 1, shown.stderr


@SQLITE
def test_a_search_in_a_memory_that_ends_with_the_command_is_refused(place: Place) -> None:
    shown = place.command("search", "tea", "--user", "ann", REVERIE_MEMORY__URL="memory://")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "memory.url = 'memory://': ends with the process of this command" in shown.stderr


@SQLITE
def test_a_port_that_is_taken(place: Place) -> None:
    with place.server() as server:
        port = str(server.client.base_url.port)
        shown = place.command("serve", "--port", port)
    assert shown.returncode == 1
    assert f"server.port = {port}: cannot listen on 127.0.0.1: Address already in use" in shown.stderr


@SQLITE
def test_a_repeated_id(place: Place) -> None:
    place.command("submit", "work", "one", "--user", "ann", "--item-id", "1")
    same = place.command("submit", "work", "one", "--user", "ann", "--item-id", "1")
    other = place.command("submit", "work", "two", "--user", "ann", "--item-id", "1", "--json")
    assert (same.returncode, same.stdout) == (0, "duplicate 1\n")
    assert (other.returncode, json.loads(other.stdout)["status"]) == (1, "conflict")
    assert "taken by another message" in other.stderr


@SQLITE
def test_content_is_text_unless_it_is_said_to_be_json(place: Place) -> None:
    submit = ("submit", "work", "--user", "ann")
    text = place.command(*submit, '{"doc": 7,}', "--item-id", "1")
    assert (text.returncode, text.stdout) == (0, "accepted 1\n")
    assert "kept as text" in text.stderr
    parsed = place.command(*submit, '{"doc": [7]}', "--json-content", "--item-id", "2")
    assert (parsed.returncode, parsed.stdout, parsed.stderr) == (0, "accepted 2\n", "")
    for broken, words in {
        '{"doc": 7,\n}': "is no JSON: Expecting property name enclosed in double quotes at line 2 column 1",
        "": "is no JSON: Expecting value at line 1 column 1",
        "[NaN]": "contains nan, which JSON does not have",
        "[" * 5000: "nested too deeply",
        "9" * 5000: "is JSON that cannot be read: Exceeds the limit",
    }.items():
        shown = place.command(*submit, broken, "--json-content", "--item-id", "3")
        assert (shown.returncode, shown.stdout) == (1, "")
        assert words in shown.stderr
        assert len(shown.stderr) < 300
    with place.scheduler() as scheduler:
        scheduler.open()
        queries = [StatusQuery(user_id="ann", item_id=item_id, with_message=True) for item_id in "123"]
        views = scheduler.runtime.backend.views
        kept = [row.message.content for q in queries for row in scheduler.run(views.read(q)).rows]
    assert kept == ['{"doc": 7,}', '{"doc":[7]}']


@SQLITE
def test_a_setting_that_is_wrong(place: Place) -> None:
    shown = place.command("status", "--user", "ann", REVERIE_WORKER__LEASE_S="-1")
    assert shown.returncode == 1
    assert "REVERIE_WORKER__LEASE_S: worker.lease_s = '-1': must be a number, greater than 0" in shown.stderr
    (place.folder / "reverie.yaml").write_text("queue: {durabilty: full}\n")
    shown = place.command("status", "--user", "ann")
    assert (
        "reverie.yaml:1: queue.durabilty = 'full': no such setting; did you mean queue.durability?"
        in shown.stderr
    )
    (place.folder / "reverie.yaml").write_text("queue: {\n")
    shown = place.command("status", "--user", "ann")
    assert "reverie.yaml" in shown.stderr
    assert "is not YAML" in shown.stderr
    assert "Traceback" not in shown.stderr


@SQLITE
def test_a_folder_that_cannot_be_written(place: Place) -> None:
    (place.folder / "file").write_text("")
    shown = place.command("add", "x", "--user", "ann", "--url", f"sqlite:///{place.folder}/file/r.db")
    assert shown.returncode == 1
    assert "/file is a file, not a folder: use another path" in shown.stderr


@SQLITE
def test_a_password_is_not_shown(place: Place) -> None:
    for url in ("redis://:hunter2@127.0.0.1:1/0", "mysql://me:hunter2@127.0.0.1:1/0"):
        shown = place.command("add", "x", "--user", "ann", "--url", url)
        assert shown.returncode == 1
        assert "127.0.0.1:1" in shown.stderr
        assert "hunter2" not in shown.stderr


@SQLITE
def test_the_version_is_shown(place: Place) -> None:
    assert place.command("--version").stdout.startswith("reverie ")


def test_a_lease_that_runs_out_before_its_renewal_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="renew_s = 50 must be less than lease_s = 30"):
        load_settings(worker={"renew_s": 50})
