"""int8: 8-bit integers, a scale for every 32 values; holds GGUF's Q8_0 exactly"""

from __future__ import annotations

import torch
from torch import Tensor

from minnow.core.errors import FormatError
from minnow.formats.quantized import Quantized
from minnow.formats.scales import largest, split_blocks
from minnow.formats.spec import SPEC_BY_NAME

SPEC = SPEC_BY_NAME["int8"]


def encode(values: Tensor) -> Quantized:
    """Scale every 32 values so that the largest magnitude becomes 127.

    scale = F16(amax / 127), code = x / scale rounded to the nearest, ties to even, and clamped to -127..127; all
    codes are 0 where the scale is zero.

    Args:
        values: f32|bf16|f16 [..., W].

    Returns:
        codes i8 [..., W], scales f16 [..., W/32].

    Raises:
        FormatError: W is no multiple of 32, or a value is NaN, infinite or beyond what an F16 scale reaches.
    """
    blocks = split_blocks(values, SPEC)
    amax = largest(blocks)
    scales = (amax / 127).to(torch.float16)
    if not scales.isfinite().all():
        raise FormatError(
            "int8 keeps its scales in F16, which ends at 65504 and so at values of 8.3e6;"
            f" a tensor that reaches {amax.amax().item()} does not fit"
        )
    step = scales.to(torch.float32).unsqueeze(-1)
    codes = torch.where(step == 0, 0.0, (blocks / step).round().clamp(-127, 127)).to(torch.int8)
    return Quantized(spec=SPEC, codes=codes.flatten(-2), scales=scales)


def decode(quantized: Quantized) -> Tensor:
    """scale * code, exact in f32.

    Args:
        quantized: logical shape [..., W].

    Returns:
        f32 [..., W].
    """
    assert quantized.scales is not None
    values = quantized.codes.to(torch.float32)
    blocks = torch.unflatten(values, -1, (quantized.scales.shape[-1], SPEC.block))
    blocks.mul_(quantized.scales.to(torch.float32).unsqueeze(-1))
    return values


def from_q8_0(raw: Tensor) -> Quantized:
    """Take over GGUF Q8_0 blocks without loss: value = d * q.

    Args:
        raw: u8 [..., n * 34], blocks of an F16 d and 32 signed bytes.

    Returns:
        logical shape [..., n * 32].

    Raises:
        FormatError: the width is no multiple of 34.

    Source: the block layout of the GGUF file format.
    """
    block_bytes = 2 + SPEC.block
    if raw.shape[-1] % block_bytes:
        raise FormatError(f"Q8_0 blocks have {block_bytes} bytes; a row of {raw.shape[-1]} bytes is cut short")
    blocks = torch.unflatten(raw, -1, (raw.shape[-1] // block_bytes, block_bytes))
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    return Quantized(spec=SPEC, codes=blocks[..., 2:].flatten(-2).view(torch.int8), scales=scales)
