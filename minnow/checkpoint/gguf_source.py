"""GgufSource: a GGUF file of a Llama-family model, its 4- and 8-bit codes kept exactly"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

from minnow.arch.storage import Part
from minnow.checkpoint import gguf, llama
from minnow.checkpoint.source import Held, read_bytes
from minnow.core.errors import CheckpointError
from minnow.formats import int4, int8
from minnow.formats.quantized import Quantized, Weight
from minnow.text import vocabulary

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EXACT = {"Q8_0": ("int8", int8.from_q8_0), "Q4_0": ("int4", int4.from_q4_0), "Q4_1": ("int4", int4.from_q4_1)}
_ROPE_FACTORS = "rope_freqs.weight"


class GgufSource:
    """A GGUF file; Q8_0 is int8 here and Q4_0 and Q4_1 are int4, value for value."""

    def __init__(self, path: Path) -> None:
        self._file = gguf.read(path)
        self._vocabulary = vocabulary.from_metadata(self._file.metadata)
        tensors = dict(self._file.tensors)
        factors = tensors.pop(_ROPE_FACTORS, None)
        like_llama = llama.config_of_gguf(
            self._file.metadata,
            is_tied="output.weight" not in tensors,
            rope_factors=None if factors is None else self._rows(factors, 0, 1).float().flatten().tolist(),
        )
        self.raw_config: dict[str, Any] = llama.to_m3(like_llama)
        self._head_dim: int = like_llama["head_dim"]
        self._tensors = {llama.module_of_gguf(name): tensor for name, tensor in tensors.items()}
        self.held = {name: Held(shape=t.shape, format=_format(t)) for name, t in self._tensors.items()}

    def stored(self, module: str) -> dict[Part, Tensor] | None:
        """None: blocks interleave codes and scales."""
        return None

    def read(self, module: str, start: int, stop: int) -> Weight:
        """Rows of a weight, those of q and k in M3's order."""
        tensor = self._tensors[module]
        if not module.endswith((".q_proj", ".k_proj")):
            return self._weight(tensor, start, stop)
        first = start - start % self._head_dim  # whole heads: the order changes inside each
        last = min(tensor.shape[0], -(-stop // self._head_dim) * self._head_dim)
        order = torch.tensor(llama.stored_rows(range(start, stop), self._head_dim)) - first
        whole = self._weight(tensor, first, last)
        return whole.map(lambda part: part[order]) if isinstance(whole, Quantized) else whole[order]

    def write_companions(self, directory: Path) -> None:
        """Write the tokenizer and the chat template that the metadata describe."""
        vocabulary.write(self._vocabulary, directory)

    def _weight(self, tensor: gguf.GgufTensor, start: int, stop: int) -> Weight:
        rows = self._rows(tensor, start, stop)
        if tensor.kind.name not in _EXACT:
            return rows
        weight = _EXACT[tensor.kind.name][1](rows)
        for part in (weight.scales, weight.minimums):
            if part is not None and not part.isfinite().all():
                raise CheckpointError(
                    f"{self._file.path} is damaged: {tensor.name} has a scale that is not finite; download it again"
                )
        return weight

    def _rows(self, tensor: gguf.GgufTensor, start: int, stop: int) -> Tensor:
        """Rows as floats, or as the u8 [rows, bytes] of blocks that are kept."""
        if len(tensor.shape) == 1:
            start, stop = 0, 1
        num_rows = 1 if len(tensor.shape) == 1 else tensor.shape[0]
        row_bytes = (tensor.stop - tensor.start) // num_rows
        raw = read_bytes(self._file.path, tensor.start + start * row_bytes, tensor.start + stop * row_bytes)
        raw = raw.view(stop - start, row_bytes)
        if tensor.kind.name in _EXACT:
            return raw
        if tensor.kind.name in _PLAIN:
            rows = raw.view(_PLAIN[tensor.kind.name])
        else:
            rows = torch.from_numpy(quants.dequantize(raw.numpy(), tensor.kind))
        return rows.flatten() if len(tensor.shape) == 1 else rows


def _format(tensor: gguf.GgufTensor) -> str:
    kind = tensor.kind.name
    if kind in _EXACT:
        return _EXACT[kind][0]
    if kind not in _PLAIN:
        _check_known(tensor.kind)
    return kind.lower()


def _check_known(kind: GGMLQuantizationType) -> None:
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        quants.dequantize(block, kind)
    except NotImplementedError:
        raise CheckpointError(f"the GGUF has tensors of type {kind.name}, which the gguf package cannot read") from None
