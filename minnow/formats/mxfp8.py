"""MXFP8: E4M3 codes, a power-of-two scale for every 32 values"""

from __future__ import annotations

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized
from minnow.formats.scales import E4M3_LARGEST, e8m0_reciprocals, e8m0_values, largest, split_blocks, to_e4m3, to_e8m0
from minnow.formats.spec import SPEC_BY_NAME

SPEC = SPEC_BY_NAME["mxfp8"]


def encode(values: Tensor) -> Quantized:
    """Encode with scales rounded up, so that no finite value saturates.

    For each 32 values: scale byte s = clamp(ceil(log2(amax / 448)) + 127, 0, 254), code = E4M3(x * 2^(127-s)).
    An infinity gives s = 254, which it survives; a NaN gives s = 255 (NaN) and codes 0x7f throughout its block.

    Args:
        values: f32|bf16|f16 [..., W].

    Returns:
        codes float8_e4m3fn [..., W], scales u8 (E8M0) [..., W/32].

    Raises:
        FormatError: W is no multiple of 32.

    Source: OCP microscaling specification for the layout; the scale rule is the round-up one (RCEIL) of the
        published engines' MXFP8 quantiser.
    """
    blocks = split_blocks(values, SPEC)
    scales = to_e8m0(largest(blocks), E4M3_LARGEST)
    scaled = blocks * e8m0_reciprocals(scales).unsqueeze(-1)
    return Quantized(spec=SPEC, codes=to_e4m3(scaled.flatten(-2)), scales=scales)


def decode(quantized: Quantized) -> Tensor:
    """The values, exact (infinite where 2^(s-127) times the code exceeds f32).

    Args:
        quantized: logical shape [..., W].

    Returns:
        f32 [..., W].
    """
    assert quantized.scales is not None
    values = quantized.codes.to(torch.float32)
    blocks = torch.unflatten(values, -1, (quantized.scales.shape[-1], SPEC.block))
    blocks.mul_(e8m0_values(quantized.scales).unsqueeze(-1))
    return values
