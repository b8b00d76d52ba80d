"""linear on a CPU: C++ for a few rows of int4 and int8 weights, dequantise and BLAS for the rest"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight
from minnow.kernels import native
from minnow.kernels.contract import Target
from minnow.kernels.linear import reference

_MAX_ROWS = 8  # more rows are worth a dequantised copy for BLAS; as kMaxRows in cpu.cpp
_BLOCK = 32
NOTE = f"int4 and int8 times up to {_MAX_ROWS} rows in C++; else dequantise, then BLAS"


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def linear(x: Tensor, weights: Sequence[Weight], dtype: torch.dtype | None = None) -> Tensor:
    """y = x @ concat(weights)^T; see reference.py.

    With int4 and int8 weights and at most eight rows, each row's sums are the same whatever rows stand
    beside it.
    """
    num_rows = x.shape[0]
    if not 0 < num_rows <= _MAX_ROWS or not all(_is_native(weight) for weight in weights):
        return reference.linear(x, weights, dtype)
    num_outputs = sum(weight.shape[0] for weight in weights)
    y = torch.empty(num_rows, num_outputs)
    plain = x.float().contiguous()
    split = None  # even values of each block before odd ones, as the low and high halves of int4's bytes
    start = 0
    for weight in weights:
        assert isinstance(weight, Quantized) and weight.scales is not None
        assert weight.shape[1] == x.shape[1], f"a weight of width {weight.shape[1]} meets rows of {x.shape[1]}"
        place, rows, width = y.data_ptr() + start * y.element_size(), weight.shape[0], weight.shape[1]
        if weight.minimums is not None:
            if split is None:
                split = plain.view(num_rows, -1, _BLOCK // 2, 2).transpose(2, 3).contiguous()
            native.function("linear_int4", "pppppiiii")(
                split.data_ptr(), weight.codes.data_ptr(), weight.scales.data_ptr(), weight.minimums.data_ptr(), place,
                num_rows, rows, width, num_outputs,
            )  # fmt: skip
        else:
            native.function("linear_int8", "ppppiiii")(
                plain.data_ptr(), weight.codes.data_ptr(), weight.scales.data_ptr(), place,
                num_rows, rows, width, num_outputs,
            )  # fmt: skip
        start += rows
    return y.to(dtype or x.dtype)


def _is_native(weight: Weight) -> bool:
    if not isinstance(weight, Quantized) or weight.spec.name not in ("int4", "int8"):
        return False
    parts = (weight.codes, weight.scales, weight.minimums)
    return all(part is None or part.is_contiguous() for part in parts)
