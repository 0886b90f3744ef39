"""Embedders in the ONNX format, from a folder or from a jar of Maven; run by onnxruntime, without torch.

A folder has one `*.onnx` and `tokenizer.json`; a jar has `<name>.onnx` and `<name>-tokenizer.json`. How
vectors are pooled and what is written before a text follows from the name (`FAMILIES`).
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from reverie.models.interface import EmbedderUnavailableError
from reverie.models.lazy import LazyModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FAMILIES", "Family", "ModelFiles", "OnnxEmbedder", "family_of", "find_model"]

MAX_TOKENS = 512
"""The rest of a longer text does not count."""
BATCH = 32
THREADS = 2
NO_TELEMETRY = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")
"""Variables that keep onnxruntime, from its import on, from sending telemetry and writing a device id.

The first is the name since 1.31, the second is an older one.
"""
PLAIN_NAMES = ("model", "model_quantized", "model_int8", "onnx")
"""File and folder names that say nothing about the model: the name of the folder above is taken."""


class Family(NamedTuple):
    """What the authors of a model want done with texts."""

    pooling: Literal["mean", "cls"] = "mean"
    """mean: of all tokens; cls: the first token."""
    query: str = ""
    """Written before a query."""
    passage: str = ""
    """Written before a text that is to be found."""


FAMILIES: dict[str, Family] = {
    r"\be5\b": Family("mean", "query: ", "passage: "),
    r"\bbge-\w+-zh\b": Family("cls", "为这个句子生成表示以用于检索相关文章："),  # noqa: RUF001  as its authors write it
    r"\bbge-\w+-en\b": Family("cls", "Represent this sentence for searching relevant passages: "),
    r"\bbge\b": Family("cls"),
}
"""Pattern of a model's name → its family; the first that fits counts. Others: mean, nothing before a text."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of a model are."""

    name: str
    place: Path
    """The folder or the jar."""
    model: str
    """The path of the model inside of the place."""
    tokenizer: str
    size_bytes: int
    fingerprint: str
    """A short hash of both files; the same in a folder and in a jar."""

    def model_source(self) -> str | bytes:
        """What onnxruntime opens: a path, because large models have more files beside it, or bytes."""
        return str(self.place / self.model) if self.place.is_dir() else self._read(self.model)

    def tokenizer_json(self) -> bytes:
        """The tokenizer."""
        return self._read(self.tokenizer)

    def _read(self, path: str) -> bytes:
        if self.place.is_dir():
            return (self.place / path).read_bytes()
        with zipfile.ZipFile(self.place) as jar:
            return jar.read(path)


class _Loaded(NamedTuple):
    session: Any
    tokenizer: Any
    """Cuts texts at `MAX_TOKENS`."""
    counter: Any
    """The same tokenizer, which cuts nothing."""


class OnnxEmbedder:
    """Embeds texts with an ONNX model; vectors have the length 1."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self._files: ModelFiles | None = None
        self._model = LazyModel("onnx", self._load)

    @property
    def name(self) -> str:
        """Such as `onnx:e5-small-v2-q:1f0c2ab94d21`; `unknown` at the end while there are no files."""
        try:
            files = self._find()
        except EmbedderUnavailableError:
            return f"onnx:{self.path.stem}:unknown"
        return f"onnx:{files.name}:{files.fingerprint}"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text that is to be found."""
        return await self._model.call(lambda model: self._embed(model, texts, query=False))

    async def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each query; they do not wait for texts."""
        return await self._model.call(lambda model: self._embed(model, texts, query=True), urgent=True)

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text; the first call loads the model."""
        return len(self._model.get().counter.encode(text, add_special_tokens=False).ids)

    def _find(self) -> ModelFiles:
        if self._files is None:
            self._files = find_model(self.path)
        return self._files

    def _load(self) -> _Loaded:
        for name in NO_TELEMETRY:
            os.environ.setdefault(name, "1")
        try:
            import onnxruntime  # noqa: PLC0415  an extra
            from tokenizers import Tokenizer  # noqa: PLC0415
        except ImportError as error:
            reason = f"ONNX models need the extra 'onnx' ({error}): pip install 'reverie[onnx]'"
            raise EmbedderUnavailableError(reason) from error
        files = self._find()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(
                files.model_source(), options, providers=["CPUExecutionProvider"]
            )
            text = files.tokenizer_json()
            tokenizer, counter = Tokenizer.from_buffer(text), Tokenizer.from_buffer(text)
        except Exception as error:
            self._files = None  # the files may have been replaced
            raise EmbedderUnavailableError(f"{self.path}: the model cannot be loaded: {error}") from error
        for each in (tokenizer, counter):
            each.no_padding()
            each.no_truncation()
        tokenizer.enable_truncation(MAX_TOKENS)
        return _Loaded(session, tokenizer, counter)

    def _embed(self, model: _Loaded, texts: Sequence[str], *, query: bool) -> NDArray[np.float32]:
        import numpy as np  # noqa: PLC0415  slow to import

        family = family_of(self._find().name)
        before = family.query if query else family.passage
        ids = [encoded.ids for encoded in model.tokenizer.encode_batch([before + text for text in texts])]
        order = sorted(range(len(texts)), key=lambda index: len(ids[index]))  # little padding in each batch
        parts = []
        for start in range(0, len(order), BATCH):
            batch = [ids[index] for index in order[start : start + BATCH]]
            parts.append(_run(model.session, batch, family.pooling))
        if not parts:
            return np.zeros((0, 0), dtype=np.float32)
        rows = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
        rows[order] = np.concatenate(parts)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        return rows


def family_of(name: str) -> Family:
    """The family of a model, by its name."""
    plain = name.lower().replace("_", "-")
    return next((family for pattern, family in FAMILIES.items() if re.search(pattern, plain)), Family())


def find_model(place: Path) -> ModelFiles:
    """The files of a model in a folder or a jar; `EmbedderUnavailableError` if there are none."""
    try:
        if place.is_dir():
            return _find_in_folder(place)
        if place.is_file():
            return _find_in_jar(place)
    except (OSError, zipfile.BadZipFile) as error:
        raise EmbedderUnavailableError(f"{place} cannot be read as a model: {error}") from error
    reason = f"memory.embedding_path: there is no folder and no jar {place}: reverie embeddings list"
    raise EmbedderUnavailableError(reason)


def _find_in_folder(folder: Path) -> ModelFiles:
    models = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])
    model = next((path for path in models if path.name == "model.onnx"), models[0] if models else None)
    if model is None or (len(models) > 1 and model.name != "model.onnx"):
        found = ", ".join(str(path.relative_to(folder)) for path in models) or "none"
        raise EmbedderUnavailableError(f"{folder} must have one .onnx file, it has {found}")
    tokenizers = (folder / "tokenizer.json", model.with_name(f"{model.stem}-tokenizer.json"))
    tokenizer = next((path for path in tokenizers if path.is_file()), None)
    if tokenizer is None:
        raise EmbedderUnavailableError(f"{folder} has no tokenizer.json beside {model.name}")
    return ModelFiles(
        name=folder.resolve().name if model.stem in PLAIN_NAMES else model.stem,
        place=folder,
        model=str(model.relative_to(folder)),
        tokenizer=str(tokenizer.relative_to(folder)),
        size_bytes=model.stat().st_size,
        fingerprint=_fingerprint(_checksum(model), _checksum(tokenizer)),
    )


def _find_in_jar(path: Path) -> ModelFiles:
    with zipfile.ZipFile(path) as jar:
        entries = {entry.filename: entry for entry in jar.infolist()}
    for name, entry in entries.items():
        stem = name.removesuffix(".onnx")
        tokenizer = entries.get(f"{stem}-tokenizer.json")
        if stem != name and tokenizer is not None:
            return ModelFiles(
                name=Path(stem).name,
                place=path,
                model=name,
                tokenizer=tokenizer.filename,
                size_bytes=path.stat().st_size,
                fingerprint=_fingerprint(entry.CRC, tokenizer.CRC),
            )
    raise EmbedderUnavailableError(f"{path} has no <name>.onnx with a <name>-tokenizer.json")


def _checksum(path: Path) -> int:
    """The checksum that a jar would have for the file."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _fingerprint(model: int, tokenizer: int) -> str:
    return blake2b(f"{model:08x}{tokenizer:08x}".encode(), digest_size=6).hexdigest()


def _run(session: Any, batch: list[list[int]], pooling: str) -> NDArray[np.float32]:
    """The pooled vectors of one batch of tokens, not yet of length 1."""
    import numpy as np  # noqa: PLC0415

    width = max(1, *(len(ids) for ids in batch))
    tokens = np.zeros((len(batch), width), dtype=np.int64)
    mask = np.zeros((len(batch), width), dtype=np.int64)
    for row, ids in enumerate(batch):
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    known = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
    wanted = [given.name for given in session.get_inputs()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise EmbedderUnavailableError(
            f"the ONNX model wants inputs that we do not know: {', '.join(unknown)}"
        )
    states: NDArray[np.float32] = session.run(None, {name: known[name] for name in wanted})[0]
    if states.ndim == 2:
        return states  # the model has pooled by itself
    if pooling == "cls":
        return states[:, 0]
    weights = mask[:, :, None].astype(np.float32)
    pooled: NDArray[np.float32] = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    return pooled
