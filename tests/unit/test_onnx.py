"""Embedders in the ONNX format: a real e5, in a jar and in a folder; and what is wrong with other files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from reverie.assembly import new_models
from reverie.models.interface import EmbedderUnavailableError, Models
from reverie.models.onnx import MAX_TOKENS, Family, OnnxEmbedder, family_of, find_model
from reverie.settings import load_settings
from support.fetched import fetched_model

PROGRAM = """
import asyncio, sys
{before}
from pathlib import Path
from reverie.models.interface import EmbedderUnavailableError, Models
from reverie.models.onnx import OnnxEmbedder
models = Models(OnnxEmbedder(Path(sys.argv[1])))
print(models.embedder_name)
assert "onnxruntime" not in sys.modules or sys.modules["onnxruntime"] is None
try:
    asyncio.run(models.vectors(["tea"]))
except EmbedderUnavailableError as error:
    print(error)
"""


@pytest.fixture(scope="session")
def jar() -> Path:
    return fetched_model("e5-small")


@pytest.fixture(scope="module")
def e5(jar: Path) -> Models:
    return new_models(load_settings(memory={"embedding": "onnx", "embedding_path": str(jar)}))


def run(path: Path, home: Path, before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), path],
        env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
async def test_e5_finds_what_is_meant(e5: Models) -> None:
    texts = ["The cat sleeps on the sofa", "Our quarterly revenue grew", "She plays the violin"]
    rows = await e5.vectors(texts)
    assert (rows.shape, rows.dtype) == ((3, 384), np.float32)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    queries = await e5.vectors(["a kitten that naps", "sales went up", "a musician"], query=True)
    assert (queries @ rows.T).argmax(axis=1).tolist() == [0, 1, 2]


async def test_queries_and_passages_have_their_own_prefixes(e5: Models) -> None:
    (passage,) = await e5.vectors(["tea"])
    (query,) = await e5.vectors(["tea"], query=True)
    assert not np.allclose(passage, query, atol=1e-3)


async def test_the_order_and_the_batches_do_not_matter(e5: Models) -> None:
    texts = [f"note {number} " + "about tea " * (number * 7 % 40) for number in range(70)]
    together = await e5.vectors(texts)
    alone = np.concatenate([await e5.vectors([text]) for text in texts[:5]])
    assert (together[:5] * alone).sum(axis=1).min() > 0.98  # int8 scales follow the batch


async def test_the_rest_of_a_long_text_does_not_count(e5: Models) -> None:
    long = "tea " * 2 * MAX_TOKENS
    first, second = await e5.vectors([long, long + "violin " * 500])
    assert np.allclose(first, second, atol=1e-5)
    assert (await e5.vectors([""])).shape == (1, 384)
    assert (await e5.vectors([])).shape[0] == 0


def test_tokens_are_counted_beyond_the_longest_text(jar: Path) -> None:
    embedder = OnnxEmbedder(jar)
    assert embedder.count_tokens("hello world") == 2
    assert embedder.count_tokens("tea " * 1000) == 1000


async def test_a_folder_with_the_same_files_is_the_same_space(jar: Path, tmp_path: Path, e5: Models) -> None:
    folder = tmp_path / "e5-small-v2-q"
    folder.mkdir()
    files = find_model(jar)
    with zipfile.ZipFile(jar) as opened:
        (folder / "model.onnx").write_bytes(opened.read(files.model))
        (folder / "tokenizer.json").write_bytes(opened.read(files.tokenizer))
    models = Models(OnnxEmbedder(folder))
    assert models.embedder_name == e5.embedder_name == f"onnx:e5-small-v2-q:{files.fingerprint}"
    assert np.allclose(await models.vectors(["tea"]), await e5.vectors(["tea"]), atol=1e-5)
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes() + b"\n")
    assert Models(OnnxEmbedder(folder)).embedder_name != e5.embedder_name


def test_nothing_is_written_into_the_home_folder(jar: Path, tmp_path: Path) -> None:
    """Left alone, onnxruntime writes a device id there, and sends telemetry."""
    assert run(jar, tmp_path).startswith("onnx:e5-small-v2-q:")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    shown = run(tmp_path / "none.jar", tmp_path, "sys.modules['onnxruntime'] = None")
    assert "onnx:none:unknown" in shown
    assert "pip install 'reverie[onnx]'" in shown


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "there is no folder and no jar"),
        ({}, "must have one .onnx file, it has none"),
        ({"a.onnx": b"", "b.onnx": b""}, "must have one .onnx file, it has a.onnx, b.onnx"),
        ({"a.onnx": b""}, "has no tokenizer.json beside a.onnx"),
        ({"a.onnx": b"nonsense", "tokenizer.json": b"{}"}, "the model cannot be loaded"),
    ],
)
async def test_a_wrong_folder_is_said(tmp_path: Path, files, words: str) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    with pytest.raises(EmbedderUnavailableError, match=words):
        await Models(OnnxEmbedder(folder)).vectors(["tea"])


async def test_a_file_that_is_no_jar_is_said(tmp_path: Path) -> None:
    (tmp_path / "no.jar").write_bytes(b"this is no jar")
    with pytest.raises(EmbedderUnavailableError, match="cannot be read as a model"):
        await OnnxEmbedder(tmp_path / "no.jar").embed(["tea"])
    with zipfile.ZipFile(tmp_path / "other.jar", "w") as jar:
        jar.writestr("readme.txt", "hello")
    with pytest.raises(EmbedderUnavailableError, match=r"has no <name>\.onnx"):
        await OnnxEmbedder(tmp_path / "other.jar").embed(["tea"])


@pytest.mark.parametrize(
    ("name", "pooling", "query", "passage"),
    [
        ("e5-small-v2-q", "mean", "query: ", "passage: "),
        ("multilingual_e5_base", "mean", "query: ", "passage: "),
        ("bge-small-en-v1.5-q", "cls", "Represent this sentence for searching relevant passages: ", ""),
        ("bge-small-zh-v1.5-q", "cls", "为这个句子生成表示以用于检索相关文章：", ""),  # noqa: RUF001
        ("bge-m3", "cls", "", ""),
        ("all-minilm-l6-v2-q", "mean", "", ""),
        ("type5-model", "mean", "", ""),
    ],
)
def test_the_family_follows_from_the_name(name: str, pooling: str, query: str, passage: str) -> None:
    assert family_of(name) == Family(pooling, query, passage)
