"""Keys that identify the project of a folder; only the standard library.

Worktrees, clones and renamed folders of one repository, and different agents in it, share at least one key.
Nothing is run: a few small files of git are read. Whatever cannot be read is left out.
"""

from __future__ import annotations

import os
import stat

__all__ = ["Project", "project_of", "remote_of_url"]

LARGEST_FILE = 64 * 1024
LONGEST_KEY = 4096
DROPPED_PORTS = {"22", "443"}


class Project:
    """The name of a project for people, and its keys; the strongest key comes first."""

    __slots__ = ("keys", "name")

    def __init__(self, name: str, keys: list[str]) -> None:
        self.name = name
        self.keys = keys


def project_of(folder: str) -> Project:
    """The project of a folder: that of its git repository, else the folder itself."""
    folder = os.path.realpath(folder)
    top, git = _find_git(folder)
    if not git:
        return Project(_name(folder), _short_keys([f"folder:{folder}"]))
    common = _common_folder(git)
    origin = _origin(_read(os.path.join(common, "config")))
    remote = remote_of_url(origin)
    keys = [f"remote:{remote}"] if remote else []
    keys.append(f"common:{common}")
    if source := _local_source(origin):
        keys.append(f"common:{source}")
    first = _read(os.path.join(common, "logs", "HEAD")).partition("\n")[0]
    if first:
        keys.append(f"reflog:{short_hash(first)}")
    keys.append(f"folder:{top}")
    owner = os.path.dirname(common) if os.path.basename(common) == ".git" else common
    name = remote.rpartition("/")[2] if remote else _name(owner).removesuffix(".git")
    return Project(name, _short_keys(keys))


def short_hash(text: str) -> str:
    """Sixteen hexadecimal digits of the BLAKE2b hash of a text."""
    try:
        from _blake2 import blake2b  # `hashlib` loads OpenSSL, which takes longer than all this
    except ImportError:
        from hashlib import blake2b
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def remote_of_url(url: str) -> str:
    """`host/path` of the URL of a remote: the same for every way to reach it; empty for local paths."""
    url = url.strip()
    scheme, found, rest = url.partition("://")
    if found:
        if scheme.lower() == "file":
            return ""
        place, _, path = rest.partition("/")
        host, _, port = place.rpartition("@")[2].rpartition(":")
        if not host or not port.isdecimal():  # no port, or the colons of an IPv6 address
            host, port = place.rpartition("@")[2], ""
    else:  # the form of scp: [user@]host:path
        place, colon, path = _split_scp(url)
        if not colon or "/" in place or path.startswith((":", "\\")) or len(place) == 1:
            return ""  # a path, a transport such as `ext::…`, a drive of Windows
        host, port = place.rpartition("@")[2], ""
    path = path.partition("?")[0].partition("#")[0].strip("/").removesuffix(".git").rstrip("/")
    if not host or not path or any(letter.isspace() for letter in host + path):
        return ""
    return f"{host.lower()}{'' if port in DROPPED_PORTS or not port else ':' + port}/{path}"


def _split_scp(url: str) -> tuple[str, str, str]:
    start = url.find("]") + 1 if "[" in url.partition("/")[0] else 0
    colon = url.find(":", start)
    return (url, "", "") if colon < 0 else (url[:colon], ":", url[colon + 1 :])


def _find_git(folder: str) -> tuple[str, str]:
    """The top folder of the work tree and git's folder for it; empty if there is no repository."""
    while True:
        git = os.path.join(folder, ".git")
        try:
            mode = os.stat(git).st_mode
        except (OSError, ValueError):
            mode = 0
        if stat.S_ISDIR(mode) and os.path.exists(os.path.join(git, "HEAD")):
            return folder, os.path.realpath(git)
        if stat.S_ISREG(mode):
            line = _read(git)
            if line.startswith("gitdir:"):
                path = os.path.join(folder, line[len("gitdir:") :].strip())
                if os.path.exists(os.path.join(path, "HEAD")):
                    return folder, os.path.realpath(path)
        above = os.path.dirname(folder)
        if above == folder:
            return "", ""
        folder = above


def _local_source(url: str) -> str:
    """The common folder of the repository on this machine that was cloned; empty if it is none."""
    path = url.strip().removeprefix("file://")
    if not os.path.isabs(path):
        return ""
    path = os.path.realpath(path)
    if os.path.exists(os.path.join(path, "HEAD")):  # a bare one
        return path
    top, git = _find_git(path)
    return _common_folder(git) if top == path else ""


def _common_folder(git: str) -> str:
    """The folder that all worktrees of a repository share."""
    below = _read(os.path.join(git, "commondir")).strip()
    if not below:
        return git
    common = os.path.realpath(os.path.join(git, below))
    return common if os.path.isdir(common) else git


def _origin(config: str) -> str:
    """The URL of the remote `origin` in a configuration file of git."""
    url, inside = "", False
    for line in config.splitlines():
        line = line.strip()  # noqa: PLW2901  the same line, without its margin
        if line.startswith("["):
            section, _, name = line[1:].partition("]")[0].partition(" ")
            inside = section.strip().lower() == "remote" and name.strip() == '"origin"'
        elif inside:
            key, equals, value = line.partition("=")
            if equals and key.strip().lower() == "url" and not url:
                url = _plain_value(value.strip())
    return url


def _plain_value(value: str) -> str:
    """A value of git's configuration without quotes and comment."""
    if value.startswith('"'):
        return value[1:].partition('"')[0]
    for mark in (" #", " ;", "\t#", "\t;"):
        value = value.partition(mark)[0]
    return value.strip()


def _read(path: str) -> str:
    """The beginning of a regular file; empty if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return ""
        return os.read(file, LARGEST_FILE).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def _name(folder: str) -> str:
    return os.path.basename(folder) or folder


def _short_keys(keys: list[str]) -> list[str]:
    return [key for key in keys if len(key) <= LONGEST_KEY]
