"""int4: 4-bit integers, a scale and a minimum for every 32 values; holds GGUF's Q4_0 and Q4_1 exactly"""

from __future__ import annotations

import torch
from torch import Tensor

from minnow.core.errors import FormatError
from minnow.formats import e2m1
from minnow.formats.quantized import Quantized
from minnow.formats.scales import split_blocks
from minnow.formats.spec import SPEC_BY_NAME

SPEC = SPEC_BY_NAME["int4"]

_CODE_BYTES = SPEC.block // 2


def encode(values: Tensor) -> Quantized:
    """Spread the sixteen codes evenly between the least and the greatest of every 32 values.

    minimum = F16(least), scale = F16((greatest - least) / 15), code = (x - minimum) / scale rounded to the nearest,
    ties to even, and clamped to 0..15; all codes are 0 where the scale is zero.

    Args:
        values: f32|bf16|f16 [..., W].

    Returns:
        codes u8 [..., W/2], scales f16 [..., W/32], minimums f16 [..., W/32].

    Raises:
        FormatError: W is no multiple of 32, or a value is NaN, infinite or beyond what an F16 scale reaches.
    """
    blocks = split_blocks(values, SPEC)
    least, greatest = blocks.amin(dim=-1), blocks.amax(dim=-1)
    minimums = least.to(torch.float16)
    scales = ((greatest - least) / 15).to(torch.float16)
    if not (minimums.isfinite() & scales.isfinite()).all():
        amax = values.to(torch.float32).abs().amax().item()
        raise FormatError(
            f"int4 keeps its scales in F16, which ends at 65504; a tensor that reaches {amax} does not fit"
        )
    step = scales.to(torch.float32).unsqueeze(-1)
    ratio = (blocks - minimums.to(torch.float32).unsqueeze(-1)) / step
    codes = torch.where(step == 0, 0.0, ratio.round().clamp(0, 15)).to(torch.uint8)
    return Quantized(spec=SPEC, codes=e2m1.pack(codes.flatten(-2)), scales=scales, minimums=minimums)


def decode(quantized: Quantized) -> Tensor:
    """scale * code + minimum: the product is exact in f32, the sum rounds once.

    Args:
        quantized: logical shape [..., W].

    Returns:
        f32 [..., W].
    """
    assert quantized.scales is not None and quantized.minimums is not None
    values = e2m1.unpack(quantized.codes).to(torch.float32)
    blocks = torch.unflatten(values, -1, (quantized.scales.shape[-1], SPEC.block))
    blocks.mul_(quantized.scales.to(torch.float32).unsqueeze(-1))
    blocks.add_(quantized.minimums.to(torch.float32).unsqueeze(-1))
    return values


def from_q4_0(raw: Tensor) -> Quantized:
    """Take over GGUF Q4_0 blocks without loss: value = d * (q - 8) = d * q + (-8 * d).

    Args:
        raw: u8 [..., n * 18], blocks of an F16 d and 16 bytes of codes, of which the low halves are elements
            0..15 and the high halves 16..31.

    Returns:
        logical shape [..., n * 32]; values equal to GGUF's (a zero from a negative d is +0 here, -0 there).

    Raises:
        FormatError: the width is no multiple of 18, or some -8 * d is beyond F16.

    Source: the block layout of the GGUF file format.
    """
    blocks = _gguf_blocks(raw, 2 + _CODE_BYTES, "Q4_0")
    scales = _halves(blocks[..., :2])
    minimums = -8 * scales
    if minimums.isinf().any():
        worst = scales[minimums.isinf()][0].item()
        raise FormatError(
            f"a Q4_0 block has the scale {worst}, whose minimum of -8 times that is beyond F16 (65504);"
            " dequantise this tensor instead"
        )
    return Quantized(spec=SPEC, codes=_reordered(blocks[..., 2:]), scales=scales, minimums=minimums)


def from_q4_1(raw: Tensor) -> Quantized:
    """Take over GGUF Q4_1 blocks without loss: value = d * q + m.

    Args:
        raw: u8 [..., n * 20], blocks of an F16 d, an F16 m and 16 bytes of codes, ordered as in Q4_0.

    Returns:
        logical shape [..., n * 32].

    Raises:
        FormatError: the width is no multiple of 20.

    Source: the block layout of the GGUF file format.
    """
    blocks = _gguf_blocks(raw, 4 + _CODE_BYTES, "Q4_1")
    return Quantized(
        spec=SPEC,
        codes=_reordered(blocks[..., 4:]),
        scales=_halves(blocks[..., :2]),
        minimums=_halves(blocks[..., 2:4]),
    )


def _gguf_blocks(raw: Tensor, block_bytes: int, name: str) -> Tensor:
    """Cut u8 [..., n * block_bytes] into [..., n, block_bytes]."""
    if raw.shape[-1] % block_bytes:
        raise FormatError(f"{name} blocks have {block_bytes} bytes; a row of {raw.shape[-1]} bytes is cut short")
    return torch.unflatten(raw, -1, (raw.shape[-1] // block_bytes, block_bytes))


def _halves(two_bytes: Tensor) -> Tensor:
    """U8 [..., n, 2] seen as f16 [..., n]."""
    return two_bytes.contiguous().view(torch.float16).squeeze(-1)


def _reordered(code_bytes: Tensor) -> Tensor:
    """GGUF's u8 [..., n, 16] (element i beside i + 16) as u8 [..., n * 16] (element 2i beside 2i + 1)."""
    in_order = torch.cat((code_bytes & 15, code_bytes >> 4), dim=-1)
    return e2m1.pack(in_order.flatten(-2))
