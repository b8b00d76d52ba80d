"""weights and caches as words of the C interface"""

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight
from minnow.kernels.experts.activation import Activation
from minnow.kernels.tiles import Tiled

# As enum Format in native/operations.h.
FORMAT_CODES = {"f32": 0, "bf16": 1, "f16": 2, "fp8": 3, "nvfp4": 4, "mxfp4": 5, "mxfp8": 6, "int4": 7, "int8": 8}
_TILED_CODES = {"int4": 9, "int8": 10}  # and two more for each digit after the first
Matrix = Weight | Tiled
_PLAIN = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def pack(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """Int64 words that a kernel reads while the call lasts."""
    return (ctypes.c_int64 * len(values))(*values)


def double(value: float) -> int:
    """The bits of a double as a word."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def format_of(weight: Weight) -> str:
    """Name of a weight's or cache's number format."""
    return weight.spec.name if isinstance(weight, Quantized) else _PLAIN[weight.dtype]


def of_weight(weight: Matrix) -> tuple[int, ...]:
    """`struct Weight`: seven words that hold as long as the tensors live.

    Args:
        weight: [O D] in any format or in tiles, or a vector [D], which counts as one row; dense.
    """
    if isinstance(weight, Tiled):
        return (
            _TILED_CODES[weight.format] + 2 * (weight.digits - 1),
            *weight.shape,
            weight.data.data_ptr(),
            0,
            0,
            double(1.0),
        )
    rows, width = (1, *weight.shape) if len(weight.shape) == 1 else weight.shape
    if isinstance(weight, Tensor):
        assert weight.is_contiguous()
        return (FORMAT_CODES[_PLAIN[weight.dtype]], rows, width, weight.data_ptr(), 0, 0, double(1.0))
    parts = (weight.codes, weight.scales, weight.minimums)
    assert all(part is None or part.is_contiguous() for part in parts)
    pointers = (0 if part is None else part.data_ptr() for part in parts)
    factor = 1.0 if weight.global_scale is None else float(weight.global_scale)
    return (FORMAT_CODES[weight.spec.name], rows, width, *pointers, double(factor))


def of_optional(*parts: Tensor | None) -> tuple[int, ...]:
    """Where each part lies, 0 for none."""
    assert all(part is None or part.is_contiguous() for part in parts)
    return tuple(0 if part is None else part.data_ptr() for part in parts)


def of_weights(weights: Sequence[Matrix]) -> tuple[int, ...]:
    """The words of several weights, one after the other."""
    return tuple(word for weight in weights for word in of_weight(weight))


def of_activation(activation: Activation) -> tuple[int, ...]:
    """`struct Activation`: four words."""
    constants = (activation.alpha, activation.limit, activation.beta)
    return (activation.kind == "swigluoai", *(double(value) for value in constants))


def of_cache(cache: Weight) -> tuple[int, ...]:
    """`struct Cache`: thirteen words of a strided [B G L H]."""
    codes = cache if isinstance(cache, Tensor) else cache.codes
    scales = None if isinstance(cache, Tensor) else cache.scales
    factor = None if isinstance(cache, Tensor) else cache.global_scale
    return (
        FORMAT_CODES[format_of(cache)],
        *_plane(codes),
        *((0, 0, 0, 0) if scales is None else _plane(scales)),
        *cache.shape[1:],
        double(1.0 if factor is None else float(factor)),
    )


def of_sequences(
    block_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    prompt_end: Tensor | None = None,
    first_keys: Tensor | None = None,
) -> tuple[int, ...]:
    """`struct Sequences`: nine words that hold as long as the tensors live.

    Args:
        block_table: i32 [S M], rows may lie apart; query_start: i32 [S + 1]; positions: i32 [T], both dense.
        prompt_end: i32 [S], positions from which on tokens were generated; None: all are of prompts.
        first_keys: i32 [T], that dense attention sees; None: all from 0 on.
    """
    assert block_table.stride(1) == 1 or block_table.shape[1] <= 1
    assert query_start.is_contiguous() and positions.is_contiguous()
    pointers = (part.data_ptr() for part in (block_table, query_start, positions))
    assert first_keys is None or first_keys.is_contiguous()
    others = (0 if part is None else part.data_ptr() for part in (prompt_end, first_keys))
    return (len(positions), *block_table.shape, block_table.stride(0), *pointers, *others)


def _plane(part: Tensor) -> tuple[int, ...]:
    assert part.stride(3) == 1
    return (part.data_ptr(), *(part.stride(dim) * part.element_size() for dim in range(3)))
