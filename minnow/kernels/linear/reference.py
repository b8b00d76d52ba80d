"""linear, in plain torch: the definition"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight, decode
from minnow.kernels.contract import Target

_CHUNK_VALUES = 1 << 25  # weights that are dequantised at once: 128 MiB of f32


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def linear(x: Tensor, weights: Sequence[Weight], dtype: torch.dtype | None = None) -> Tensor:
    """y = x @ concat(weights)^T, weights dequantised exactly, products summed in f32.

    Args:
        x: bf16|f32 [T D].
        weights: row segments [O_i D], in output order; each in any format.
        dtype: of y; None is that of x.

    Returns:
        dtype [T sum(O_i)].
    """
    if x.shape[0] == 0:  # a step that samples nothing: no reason to decode the head
        return x.new_empty(0, sum(weight.shape[0] for weight in weights), dtype=dtype or x.dtype)
    x32 = x.float()
    parts = [x32 @ rows.T for weight in weights for rows in _chunks(weight)]
    return torch.cat(parts, dim=1).to(dtype or x.dtype)


def _chunks(weight: Weight) -> Iterator[Tensor]:
    num_rows, width = weight.shape
    step = max(1, _CHUNK_VALUES // width)
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        if isinstance(weight, Quantized):
            yield decode(weight.map(lambda part, rows=rows: part[rows]))
        else:
            yield weight[rows].float()
