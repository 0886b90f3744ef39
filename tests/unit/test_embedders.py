"""Embedders: wordllama from its wheel, those of users, and what happens where one is not there."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from reverie import Scheduler
from reverie.assembly import new_models
from reverie.errors import InvalidSettingError
from reverie.failures import FailureKind
from reverie.models.interface import CountsTokens, EmbedderUnavailableError, ModelMissingError, Models
from reverie.models.lazy import RETRY_S, LazyModel
from reverie.models.wordllama import MAX_CHARACTERS, WordLlamaEmbedder
from reverie.settings import load_settings

LAZY = """
import sys, reverie, reverie.cli.main
from reverie.assembly import new_models
from reverie.settings import load_settings
models = new_models(load_settings())
assert models.embedder_name == "wordllama-256"
heavy = {"numpy", "wordllama", "tokenizers", "onnxruntime", "openai"} & set(sys.modules)
assert not heavy, heavy
"""
NO_WEIGHTS = """
import pathlib
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path: path.suffix != ".safetensors" and exists(path)
"""
FAILS = """
import asyncio, sys
{before}
from reverie.assembly import new_models
from reverie.models.interface import EmbedderUnavailableError
from reverie.settings import load_settings
models = new_models(load_settings(memory={memory}))
for _ in range(2):
    try:
        asyncio.run(models.vectors(["tea"]))
    except EmbedderUnavailableError as error:
        print(error.reason)
"""


def run(program: str) -> str:
    """Run a program in a new interpreter, and answer what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wordllama() -> WordLlamaEmbedder:
    return WordLlamaEmbedder()


# -- wordllama -------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_before_the_first_text() -> None:
    run(LAZY)


def test_wordllama_is_the_default() -> None:
    assert new_models(load_settings()).embedder_name == "wordllama-256"
    assert new_models(load_settings(memory={"embedding": "none"})).embedder_name is None


async def test_vectors_are_those_of_the_library(wordllama: WordLlamaEmbedder) -> None:
    texts = ["I moved to Lisbon in May", "", "bees", "我住在北京", "green tea " * 5000]
    rows = await Models(wordllama).vectors(texts)
    assert (rows.shape, rows.dtype) == ((5, 256), np.float32)
    library = wordllama._model.get()
    for row, text in zip(rows, texts, strict=True):
        if text:
            assert np.allclose(row, library.embed([text], norm=True)[0], atol=1e-5)
    assert not rows[1].any()
    assert np.allclose(np.linalg.norm(rows[[0, 2, 3, 4]], axis=1), 1, atol=1e-5)


async def test_near_texts_have_near_vectors(wordllama: WordLlamaEmbedder) -> None:
    models = Models(wordllama)
    texts = ["The cat sleeps on the sofa", "Our quarterly revenue grew", "She plays the violin"]
    rows = await models.vectors(texts)
    queries = await models.vectors(["a kitten that naps", "sales went up", "a musician"], query=True)
    assert (queries @ rows.T).argmax(axis=1).tolist() == [0, 1, 2]


async def test_one_endless_text_does_not_fill_the_memory(wordllama: WordLlamaEmbedder) -> None:
    endless = "word " * MAX_CHARACTERS
    rows = await wordllama.embed([endless, *["short"] * 200])
    assert np.allclose(rows[0], (await wordllama.embed([endless[:MAX_CHARACTERS]]))[0])


async def test_no_texts(wordllama: WordLlamaEmbedder) -> None:
    assert (await Models(wordllama).vectors([])).shape[0] == 0
    assert await Models(wordllama).embed([]) == []


def test_wordllama_counts_tokens(wordllama: WordLlamaEmbedder) -> None:
    assert isinstance(wordllama, CountsTokens)
    assert wordllama.count_tokens("hello world") == 2
    assert wordllama.count_tokens("") == 0


def test_loading_wordllama_leaves_the_log_settings_as_they_were() -> None:
    """Importing it sets up the root logger, which is the program's own."""
    run(
        "import asyncio, logging\n"
        "from reverie.models.wordllama import WordLlamaEmbedder\n"
        "asyncio.run(WordLlamaEmbedder().embed(['tea']))\n"
        "root = logging.getLogger()\n"
        "assert (root.level, root.handlers) == (logging.WARNING, [])"
    )
    assert logging.getLogger().level == logging.WARNING


# -- loading ---------------------------------------------------------------------------------------------


async def test_the_event_loop_runs_while_a_model_loads() -> None:
    started, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load() -> str:
        loop.call_soon_threadsafe(started.set)
        assert may_end.wait(30)
        return "model"

    model = LazyModel("slow", load)
    call = asyncio.create_task(model.call(lambda loaded: (loaded, threading.current_thread().name)))
    await started.wait()
    assert not call.done()
    may_end.set()  # only a loop that still runs comes here
    assert await call == ("model", "reverie-slow")


async def test_a_model_that_cannot_be_loaded_is_tried_again_after_a_while() -> None:
    now, tries = [0.0], []

    def load() -> str:
        tries.append(now[0])
        if len(tries) < 3:
            raise EmbedderUnavailableError("no weights")
        return "model"

    model = LazyModel("flaky", load, lambda: now[0])
    for moment in (0, 1, RETRY_S - 1, RETRY_S, RETRY_S + 1):
        now[0] = moment
        with pytest.raises(EmbedderUnavailableError, match="no weights"):
            await model.call(str)
    assert tries == [0, RETRY_S]
    now[0] = 2 * RETRY_S
    assert await model.call(str) == "model"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("sys.modules['numpy'] = None", "pip install wordllama numpy"),
        ("sys.modules['wordllama'] = None", "wordllama cannot be imported"),
        (
            NO_WEIGHTS,
            "pip install --force-reinstall wordllama",
        ),
    ],
    ids=["no numpy", "no wordllama", "no weights"],
)
def test_what_wordllama_lacks_is_said(before: str, words: str) -> None:
    first, second = run(FAILS.format(before=before, memory={})).splitlines()
    assert words in first
    assert first == second


def test_an_embedder_of_plain_lists_needs_numpy_only_for_arrays() -> None:
    memory = {"embedding": "support.context_handlers:length_embedder"}
    shown = run(FAILS.format(before="sys.modules['numpy'] = None", memory=memory))
    assert "vectors need numpy" in shown
    program = FAILS.format(before="sys.modules['numpy'] = None", memory=memory)
    assert run(program.replace("vectors([", "embed([")) == ""


# -- models of users -------------------------------------------------------------------------------------


class Own:
    """An embedder with all that one may have."""

    name = "own-2"

    async def embed(self, texts):
        return [[float(len(text)), 0.0] for text in texts]

    async def embed_queries(self, texts):
        return [[0.0, float(len(text))] for text in texts]


class Answering:
    """An embedder that answers what it is told."""

    def __init__(self, answer) -> None:
        self.answer = answer

    async def embed(self, texts):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Shorter:
    """A reranker that prefers short texts."""

    async def rerank(self, query, texts):
        return [-len(text) for text in texts]


def own(settings) -> Own:
    return Own()


def shorter(settings) -> Shorter:
    return Shorter()


async def test_an_embedder_by_import_path_is_named_by_itself_or_by_its_path() -> None:
    plain = new_models(load_settings(memory={"embedding": "support.context_handlers:length_embedder"}))
    assert plain.embedder_name == "support.context_handlers:length_embedder"
    assert (await plain.vectors(["tea"], query=True)).tolist() == [[3.0]]
    named = new_models(load_settings(memory={"embedding": f"{__name__}:own"}))
    assert named.embedder_name == "own-2"
    assert (await named.vectors(["tea"])).tolist() == [[3.0, 0.0]]
    assert (await named.vectors(["tea"], query=True)).tolist() == [[0.0, 3.0]]
    assert await named.embed(["tea"]) == [[3.0, 0.0]]


async def test_a_reranker_by_import_path() -> None:
    assert new_models(load_settings()).reranker is None
    models = new_models(load_settings(memory={"reranker": f"{__name__}:shorter"}))
    assert list(await models.reranker.rerank("tea", ["green tea", "tea"])) == [-9, -3]
    with pytest.raises(InvalidSettingError, match="must be none, or an import path"):
        new_models(load_settings(memory={"reranker": "best"}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([[1.0]], "answered 1 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], "not vectors of one length"),
        ([1.0, 2.0], "not vectors of finite numbers"),
        ([[1.0], [float("nan")]], "not vectors of finite numbers"),
    ],
)
async def test_a_wrong_answer_of_an_embedder_is_refused(answer, words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        await Models(Answering(answer)).vectors(["a", "b"])


async def test_an_embedder_that_fails_is_unavailable() -> None:
    with pytest.raises(EmbedderUnavailableError, match="failed: OSError") as failed:
        await Models(Answering(OSError("cable cut")), setting="mine:new").vectors(["a"])
    assert failed.value.kind is FailureKind.TRANSIENT
    assert "mine:new" in str(failed.value)


async def test_without_an_embedder_the_setting_is_named() -> None:
    models = Models()
    for ask in (models.vectors, models.embed):
        with pytest.raises(ModelMissingError, match=r"set memory\.embedding"):
            await ask(["tea"])


def test_onnx_without_a_path_is_refused_when_the_scheduler_is_built() -> None:
    with pytest.raises(InvalidSettingError, match=r"memory\.embedding_path = None: names the folder"):
        Scheduler(settings=load_settings(queue={"url": "memory://"}, memory={"embedding": "onnx"}))
