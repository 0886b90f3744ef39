"""Every command and every code block of the documentation is run, and shows what it says it shows.

- `console`: lines after `$ ` are typed into a shell in the project's folder; what follows must be the output,
  where `…` stands for anything. `make serve` stays running for the blocks after it. A command that looks at
  work in progress may be typed again until it shows what is expected, as a reader would.
- `python` is run as a program; a `text` block after it is its output. `yaml` must be valid settings.
- Where a page names the Redis server of the reader, `redis://localhost:6379/0`, it gets one of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
import yaml

from reverie.settings import load_settings
from support.living import wait_until
from support.servers import valkey

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PATIENCE_S = 60
LOOKS = re.compile(r"^curl .*(/status|/search|/allstatus|/health$)|^\S*reverie (status|search)")
NOT_AGAIN = {"make test": "make -n test", "make check": "make -n check", "make soak": "make -n soak"}
"""What runs these tests is not run by them; that it exists is checked."""
REDIS = "redis://localhost:6379/0"


@dataclass
class Reader:
    """Someone who types what the page says."""

    folder: Path
    servers: list[subprocess.Popen[str]] = field(default_factory=list)
    address: str = "127.0.0.1:8000"
    begun: ExitStack = field(default_factory=ExitStack)
    """Other servers, which end with the page."""

    @cached_property
    def redis(self) -> str:
        """The reader's Redis server, empty at first."""
        return self.begun.enter_context(valkey())

    def meant(self, text: str) -> str:
        """What the page says, with the servers that there are."""
        text = text.replace("127.0.0.1:8000", self.address)
        return text.replace(REDIS, self.redis) if REDIS in text else text

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("REVERIE_", "MAKE"))
        }
        return {
            **kept,
            "HOME": str(self.folder),  # for programs that read no variables of Reverie's
            "XDG_CONFIG_HOME": str(self.folder / ".config"),  # reverie embeddings use writes there
            "REVERIE_DATA_DIR": str(self.folder / "data"),
            "REVERIE_SERVER__PORT": "0",
        }

    def types(self, command: str, expected: str) -> None:
        if command.endswith("serve"):
            self.serves(command, expected)
            return
        command = self.meant(NOT_AGAIN.get(command, command))
        if self.servers:
            command = command.replace("4711", str(self.servers[-1].pid))
        if LOOKS.search(command):  # who looks too early looks again
            wait_until(lambda: self.shows(command, expected), PATIENCE_S)
        else:
            assert self.shows(command, expected), f"instead of\n{expected}"

    def shows(self, command: str, expected: str) -> bool:
        """Whether it shows what the page says."""
        shown = subprocess.run(
            command,
            shell=True,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        print(f"$ {command}\nshows\n{shown.stdout}")
        return command.startswith("make -n") or matches(shown.stdout, expected)

    def serves(self, command: str, expected: str) -> None:
        for before in self.servers:
            assert before.wait(10) == -signal.SIGKILL
        command = subprocess.run(
            f"make --no-print-directory -n {command.split()[1]}"
            if command.startswith("make")
            else f"echo {command}",
            shell=True,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]  # the line that make runs last: the server itself, whose process id we need
        server = subprocess.Popen(
            command.split(), cwd=ROOT, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        self.servers.append(server)
        shown = server.stderr.readline()
        assert f"(process {server.pid})" in shown
        self.address = re.search(r"127\.0\.0\.1:\d+", shown)[0]
        assert matches(shown.replace(self.address, "127.0.0.1:8000"), expected), shown

    def runs(self, program: str, expected: str | None) -> None:
        (self.folder / "program.py").write_text(self.meant(program))
        shown = subprocess.run(
            [sys.executable, "program.py"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        if expected is not None:
            assert matches(shown.stdout, expected), shown.stdout

    def leaves(self) -> None:
        if (self.folder / "data" / "worker.json").exists():  # a page that failed between start and stop
            command = [Path(sys.executable).with_name("reverie"), "worker", "stop", "--now"]
            subprocess.run(command, cwd=ROOT, env=self.environment, check=True, timeout=PATIENCE_S)
        for server in self.servers:
            if server.poll() is None:
                server.terminate()
            server.communicate(timeout=30)
        self.begun.close()


def matches(shown: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, shown.strip(), re.DOTALL) is not None


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that the block shows for it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0].strip(), f"a console block begins with a command: {block}"
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts[1:])]


@pytest.fixture
def reader(tmp_path: Path):
    reader = Reader(tmp_path)
    yield reader
    reader.leaves()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path, reader: Reader) -> None:
    found = blocks(page)
    for index, (kind, block) in enumerate(found):
        if kind == "console":
            for command, output in commands(block):
                reader.types(command, output)
        elif kind == "python":
            following = found[index + 1] if index + 1 < len(found) else ("", "")
            reader.runs(block, following[1] if following[0] == "text" else None)
        elif kind == "yaml":
            load_settings(**yaml.safe_load(block))
        else:
            assert kind in {"text", "mermaid"}, f"{page.name} has a {kind} block, which nobody runs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    paths = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("program", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_example(program: Path, reader: Reader) -> None:
    reader.runs(program.read_text(encoding="utf-8"), None)
