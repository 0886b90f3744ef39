"""The project of a folder: the same for worktrees, clones, renamed folders and submodules of a repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reverie.capture.project import project_of, remote_of_url


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    git(folder, "init", "--initial-branch", "main")
    (folder / "readme").write_text("hello")
    git(folder, "add", "readme")
    git(folder, "commit", "--message", "Begin")
    return folder


def keys(folder: Path) -> dict[str, str]:
    return dict(key.split(":", 1) for key in project_of(str(folder)).keys)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/ann/app.git",
        "https://github.com/ann/app",
        "https://github.com/ann/app/",
        "https://ann:secret@GitHub.com/ann/app.git",
        "https://token@github.com:443/ann/app.git/",
        "ssh://git@github.com:22/ann/app.git",
        "git@github.com:ann/app.git",
        "github.com:ann/app",
        "git@github.com:/ann/app.git",
        "git+ssh://git@github.com/ann/app.git",
    ],
)
def test_every_way_to_a_remote_is_the_same(url: str) -> None:
    assert remote_of_url(url) == "github.com/ann/app"


@pytest.mark.parametrize(
    "url",
    ["", "/srv/git/app.git", "../app.git", "file:///srv/app.git", "C:\\git\\app", "C:/git/app",
     "ext::sh -c x", "./a:b", "https://", "https://github.com", "host:", "git@host:a b"],
)  # fmt: skip
def test_local_paths_are_no_remote(url: str) -> None:
    assert remote_of_url(url) == ""


def test_other_ports_and_hosts_are_others() -> None:
    assert remote_of_url("ssh://git@host:2222/app.git") == "host:2222/app"
    assert remote_of_url("https://[::1]:8443/app.git") == "[::1]:8443/app"
    assert remote_of_url("https://[::1]/app.git") == "[::1]/app"
    assert remote_of_url("git@[::1]:app.git") == "[::1]/app"


def test_a_plain_folder_is_its_own_project(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    project = project_of(str(folder))
    assert (project.name, project.keys) == ("notes", [f"folder:{folder}"])


def test_a_repository_and_its_folders(repository: Path) -> None:
    (repository / "src" / "deep").mkdir(parents=True)
    found = keys(repository / "src" / "deep")
    assert found == keys(repository)
    assert list(found) == ["common", "reflog", "folder"]
    assert (found["common"], found["folder"]) == (str(repository / ".git"), str(repository))
    assert project_of(str(repository / "src")).name == "app"


def test_the_remote_is_the_strongest_key(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://ann:secret@example.org/ann/tool.git")
    git(repository, "remote", "add", "upstream", "https://example.org/bob/tool.git")
    project = project_of(str(repository))
    assert project.keys[0] == "remote:example.org/ann/tool"
    assert project.name == "tool"
    assert "secret" not in " ".join(project.keys)


def test_worktrees_share_the_common_directory(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "../fix", "-b", "fix")
    tree, top = keys(tmp_path / "fix"), keys(repository)
    assert (tree["common"], tree["reflog"]) == (top["common"], top["reflog"])
    assert tree["folder"] == str(tmp_path / "fix")
    assert project_of(str(tmp_path / "fix")).name == "app"


def test_a_renamed_folder_keeps_its_reflog(repository: Path) -> None:
    before = keys(repository)
    after = keys(repository.rename(repository.with_name("renamed")))
    assert after["reflog"] == before["reflog"]
    assert after["common"] != before["common"]


def test_clones_share_the_remote(repository: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        git(tmp_path, "clone", str(repository), name)
        assert "remote" not in keys(tmp_path / name), "a path is no remote"
        git(tmp_path / name, "remote", "set-url", "origin", "git@example.org:ann/app.git")
    one, two = keys(tmp_path / "one"), keys(tmp_path / "two")
    assert one["remote"] == two["remote"] == "example.org/ann/app"
    assert one["common"] != two["common"]


def test_clones_of_a_folder_share_its_common_directory(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", str(repository), "one")
    git(tmp_path, "clone", repository.as_uri(), "two")
    git(tmp_path, "clone", "--bare", str(repository), "bare.git")
    git(tmp_path, "clone", str(tmp_path / "bare.git"), "three")
    for name in ("one", "two"):
        assert f"common:{repository}/.git" in project_of(str(tmp_path / name)).keys
    assert f"common:{tmp_path}/bare.git" in project_of(str(tmp_path / "three")).keys
    git(tmp_path / "one", "remote", "set-url", "origin", str(tmp_path / "gone"))
    assert len([key for key in project_of(str(tmp_path / "one")).keys if key.startswith("common:")]) == 1


def test_a_submodule_is_its_own_project(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    git(tmp_path, "clone", str(repository), "library")
    git(repository, "submodule", "add", str(library), "vendor/library")
    git(
        repository / "vendor" / "library",
        "remote",
        "set-url",
        "origin",
        "https://example.org/ann/library.git",
    )
    found = keys(repository / "vendor" / "library")
    assert found["remote"] == "example.org/ann/library"
    assert found["common"] == str(repository / ".git" / "modules" / "vendor" / "library")
    assert found["folder"] == str(repository / "vendor" / "library")


def test_a_bare_repository_with_worktrees(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--bare", str(repository), "app.git")
    git(tmp_path / "app.git", "worktree", "add", "../tree", "main")
    assert f"common:{tmp_path}/app.git" in project_of(str(tmp_path / "tree")).keys
    assert project_of(str(tmp_path / "tree")).name == "app"


def test_configuration_as_people_write_it(repository: Path) -> None:
    (repository / ".git" / "config").write_text(
        '[Core]\n\tbare = false\n# [remote "origin"]\n[remote "other"]\n url = https://example.org/a/b\n'
        '[ remote "origin" ]\n[remote   "origin"] ; ours\n\tURL = "https://Example.org/ann/app.git" ; old\n'
        "\tpushurl = https://example.org/c/d\n"
    )
    assert keys(repository)["remote"] == "example.org/ann/app"


def test_damage_gives_the_keys_that_are_known(repository: Path, tmp_path: Path) -> None:
    config = repository / ".git" / "config"
    config.unlink()
    os.mkfifo(config)  # nobody writes to it
    (repository / ".git" / "logs" / "HEAD").write_bytes(b"\xff\xfe" * 100_000)
    assert list(keys(repository)) == ["common", "reflog", "folder"]
    (repository / ".git" / "logs" / "HEAD").unlink()
    assert list(keys(repository)) == ["common", "folder"]
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / ".git").write_text("gitdir: /nowhere\n")
    assert keys(lost) == {"folder": str(lost)}
    assert keys(tmp_path / "missing") == {"folder": str(tmp_path / "missing")}


def test_a_key_is_never_huge(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://example.org/" + "a" * 20_000)
    assert "remote" not in keys(repository)
