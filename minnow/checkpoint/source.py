"""Source: a checkpoint to convert, its weights by our names, read in rows"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from minnow.arch import names
from minnow.arch.storage import Part, storage_of
from minnow.checkpoint import llama, verify
from minnow.checkpoint.parts import assemble
from minnow.checkpoint.reader import DTYPE_BY_NAME, INDEX_NAME, Entry, Reader
from minnow.config.model import parse
from minnow.core.errors import CheckpointError
from minnow.formats.quantized import Weight

_OWN_FILES = frozenset({"config.json", "digests.json", INDEX_NAME})
_DRAFTER = "dspark"  # a checkpoint, but part of the model
_SMALL_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".md", ".model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a source has of one weight.

    Attributes:
        shape: logical.
        format: "f32", "f16", "bf16", a storage of arch/storage.py, or a word of the source's own that can only be
            read as f32.
    """

    shape: tuple[int, ...]
    format: str


class Source(Protocol):
    """A checkpoint that is being converted."""

    @property
    def raw_config(self) -> Mapping[str, Any]:
        """Its config.json in the M3 layout."""

    @property
    def held(self) -> Mapping[str, Held]:
        """Its weights by our names; a tensor that has no place in the decoder is here by its own name."""

    def stored(self, module: str) -> dict[Part, Tensor] | None:
        """The tensors of a weight just as they are, where the M3 layout has the same; else None."""

    def read(self, module: str, start: int, stop: int) -> Weight:
        """Rows [start, stop) of a weight: a Quantized, or a tensor of floats."""

    def write_companions(self, directory: Path) -> None:
        """Write or copy what a checkpoint has beside config and weights."""


class M3Source:
    """A checkpoint of the M3 layout, published or of our own making."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.raw_config: dict[str, Any] = read_json(directory / "config.json")
        self._config = parse(self.raw_config)
        self._reader = Reader(directory)
        verify.check(self._reader, self._config)
        self._modules = names.modules(self._config)
        self.held = {name: Held(shape=m.shape, format=self._format(m)) for name, m in self._modules.items()}

    def _format(self, module: names.Module) -> str:
        storage = self._storage(module)
        return storage if storage != "plain" else self._reader.entry(self._specs(module.name)[0].name).dtype.lower()

    def _storage(self, module: names.Module) -> str:
        return storage_of(module.name, module.checkpoint_name, module.kind, self._config.quantization)

    def _specs(self, module: str) -> tuple[names.TensorSpec, ...]:
        return names.tensors(self._modules[module], self._config)

    def stored(self, module: str) -> dict[Part, Tensor] | None:
        """All its tensors, copied."""
        return {spec.part: read_rows(self._reader.entry(spec.name)) for spec in self._specs(module)}

    def read(self, module: str, start: int, stop: int) -> Weight:
        """Rows of all its tensors, made one weight; a global scale belongs to every row."""
        is_row: dict[Part, bool] = {"global_scale": False, "input_scale": False}
        tensors = {
            spec.part: read_rows(self._reader.entry(spec.name), *((start, stop) if is_row.get(spec.part, True) else ()))
            for spec in self._specs(module)
        }
        return assemble(self._storage(self._modules[module]), tensors, module)

    def ignored(self) -> dict[str, Entry]:
        """Tensors that the decoder does not use but others may: they go along as they are."""
        return {name: self._reader.entry(name) for name in self._reader.names if names.is_ignored(name)}

    def write_companions(self, directory: Path) -> None:
        """Copy every other file and folder, `dspark/` among them; folders with another checkpoint stay behind."""
        for path in sorted(self._directory.iterdir()):
            if path.name in _OWN_FILES or path.suffix == ".safetensors" or path.name.startswith("."):
                continue
            if path.is_dir() and path.name != _DRAFTER and _holds_checkpoint(path):
                continue
            if path.is_dir():
                shutil.copytree(path, directory / path.name)
            else:
                shutil.copyfile(path, directory / path.name)


class LlamaSource:
    """A Hugging Face checkpoint of a Llama-family model, in safetensors."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        raw = read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        if generation.is_file():  # it often names more end tokens than config.json
            raw = raw | {"eos_token_id": _merged(raw.get("eos_token_id"), read_json(generation).get("eos_token_id"))}
        self.raw_config: dict[str, Any] = llama.to_m3(raw)
        reader = Reader(directory)
        is_tied = bool(self.raw_config["tie_word_embeddings"])
        self._entries = {
            name.removesuffix(".weight"): reader.entry(name)
            for name in reader.names
            if not name.endswith("rotary_emb.inv_freq") and not (is_tied and name == "lm_head.weight")
        }
        self.held = {name: Held(shape=e.shape, format=e.dtype.lower()) for name, e in self._entries.items()}

    def stored(self, module: str) -> dict[Part, Tensor] | None:
        """Its one tensor."""
        return {"weight": read_rows(self._entries[module])}

    def read(self, module: str, start: int, stop: int) -> Weight:
        """Rows of its one tensor."""
        return read_rows(self._entries[module], start, stop)

    def write_companions(self, directory: Path) -> None:
        """Copy the tokenizer, the template, the licence and other small texts."""
        for path in sorted(self._directory.iterdir()):
            is_text = path.suffix in _SMALL_SUFFIXES or path.name.upper().startswith(("LICENSE", "LICENCE"))
            if path.is_file() and is_text and path.name not in _OWN_FILES and not path.name.endswith(".index.json"):
                shutil.copyfile(path, directory / path.name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file is missing, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return value


def read_bytes(file: Path, start: int, stop: int) -> Tensor:
    """Bytes [start, stop) of a file, copied: a mapping would keep every page that was touched in memory.

    Raises:
        CheckpointError: the file ends before.

    Returns:
        u8 [stop - start].
    """
    raw = np.fromfile(file, dtype=np.uint8, count=stop - start, offset=start)
    if raw.size != stop - start:
        raise CheckpointError(f"{file} ends inside a tensor (at byte {start + raw.size}); download it again")
    return torch.from_numpy(raw)


def read_rows(entry: Entry, start: int = 0, stop: int | None = None) -> Tensor:
    """Rows [start, stop) of a safetensors tensor's first dim, copied."""
    if not entry.shape:
        return read_bytes(entry.file, entry.start, entry.stop).view(DTYPE_BY_NAME[entry.dtype]).reshape(())
    stop = entry.shape[0] if stop is None else stop
    row_bytes = (entry.stop - entry.start) // entry.shape[0]
    raw = read_bytes(entry.file, entry.start + start * row_bytes, entry.start + stop * row_bytes)
    return raw.view(DTYPE_BY_NAME[entry.dtype]).view(stop - start, *entry.shape[1:])


def _holds_checkpoint(directory: Path) -> bool:
    return (directory / "config.json").is_file() and any(directory.glob("*.safetensors"))


def _merged(*ids: int | list[int] | None) -> list[int] | None:
    found = {i for value in ids if value is not None for i in ([value] if isinstance(value, int) else value)}
    return sorted(found) or None
