"""FP8: E4M3 codes, at most one scale for the tensor"""

from __future__ import annotations

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized
from minnow.formats.scales import E4M3_LARGEST, as_global_scale, largest_of_weight, to_e4m3
from minnow.formats.spec import SPEC_BY_NAME

SPEC = SPEC_BY_NAME["fp8"]


def encode(values: Tensor, scale: float | Tensor | None = None) -> Quantized:
    """Encode as E4M3(x / scale).

    Args:
        values: f32|bf16|f16 [..., W], any W.
        scale: the DECODE side: every decoded value is multiplied by it. 1.0 for caches. None, for weights,
            takes (largest magnitude of the tensor) / 448, or 1 where that is zero.

    Returns:
        codes float8_e4m3fn [..., W]; global_scale is None where the scale is the number 1. With a scale given,
        magnitudes above 448 * scale, infinity among them, saturate and NaN becomes 0x7f.

    Raises:
        FormatError: no scale is given and a value is NaN or infinite, or the scale is no positive number.
    """
    if scale is None:
        chosen = largest_of_weight(values, SPEC.name) / E4M3_LARGEST
        scale = torch.where(chosen == 0, 1.0, chosen)
    global_scale = as_global_scale(scale, values.device)
    scaled = values.to(torch.float32)
    if global_scale is not None:
        scaled = scaled / global_scale
    return Quantized(spec=SPEC, codes=to_e4m3(scaled), global_scale=global_scale)


def decode(quantized: Quantized) -> Tensor:
    """The values: the codes exactly, then, where there is one, times the scale, rounded once.

    Args:
        quantized: logical shape [..., W].

    Returns:
        f32 [..., W].
    """
    values = quantized.codes.to(torch.float32)
    return values if quantized.global_scale is None else values.mul_(quantized.global_scale)
