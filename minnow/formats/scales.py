"""power-of-two (E8M0) and E4M3 scales"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from minnow.core.errors import FormatError
from minnow.formats.spec import FormatSpec

E4M3_LARGEST = 448.0


def split_blocks(values: Tensor, spec: FormatSpec) -> Tensor:
    """Cut the rows into the blocks that share a scale.

    Args:
        values: f32|bf16|f16 [..., W].
        spec: a format with block scales.

    Returns:
        f32 [..., W/block, block].

    Raises:
        FormatError: W is no multiple of the block.
    """
    spec.check_width(values.shape[-1])
    return torch.unflatten(values.to(torch.float32), -1, (values.shape[-1] // spec.block, spec.block))


def largest(blocks: Tensor) -> Tensor:
    """The largest magnitude of each block; NaN where the block holds one, on every device.

    Args:
        blocks: f32 [..., block].

    Returns:
        f32 [...].
    """
    return blocks.abs().amax(dim=-1)


def largest_of_weight(values: Tensor, name: str) -> Tensor:
    """The largest magnitude of a whole weight tensor, 0 where it has no elements.

    Args:
        values: f32|bf16|f16 [...].
        name: the format, for the error.

    Returns:
        f32 scalar tensor.

    Raises:
        FormatError: a value is NaN or infinite; one scale for the tensor would spoil every other value.
    """
    if not values.numel():
        return torch.zeros((), dtype=torch.float32, device=values.device)
    amax = values.abs().amax().to(torch.float32)
    if not math.isfinite(amax.item()):
        raise FormatError(
            f"{name} takes one scale for the whole tensor, whose largest magnitude is {amax.item()};"
            " repair the weight, or give the scale yourself"
        )
    return amax


def as_global_scale(scale: float | Tensor | None, device: torch.device) -> Tensor | None:
    """The decode-side multiplier of a whole tensor as `Quantized` holds it.

    Args:
        scale: a positive number, a tensor of one element, or None for 1.
        device: where a number is put.

    Returns:
        f32 scalar tensor, or None where the scale is the number 1.

    Raises:
        FormatError: the number is not positive and finite, or the tensor has more than one element.
    """
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise FormatError(f"a global scale is one number; this one has shape {tuple(scale.shape)}")
        return scale.to(device, torch.float32).reshape(())
    if scale is None or scale == 1:
        return None
    if not 0 < scale < math.inf:
        raise FormatError(f"a global scale is positive and finite, not {scale}")
    return torch.tensor(scale, dtype=torch.float32, device=device)


def to_e4m3(values: Tensor) -> Tensor:
    """Round to the nearest E4M3 value, ties to the even code; beyond 448 (infinity, too) is 448.

    Every NaN becomes byte 0x7f, whatever its sign, so that all devices write the same bytes.

    Args:
        values: f32 [...].

    Returns:
        float8_e4m3fn [...].
    """
    # The clamp makes the cast saturate in versions of torch where it does not by itself.
    clamped = values.clamp(-E4M3_LARGEST, E4M3_LARGEST)
    return torch.where(clamped.isnan(), math.nan, clamped).to(torch.float8_e4m3fn)


def to_e8m0(amax: Tensor, element_largest: float) -> Tensor:
    """The smallest power of two that brings amax into the element's range: 2^ceil(log2(amax/element_largest)).

    Worked out on the bits of amax, so that exact powers of two come out exact on every device.

    Args:
        amax: f32 [...], not negative.
        element_largest: the element format's largest value, a normal number: 448 for E4M3, 6 for E2M1.

    Returns:
        u8 [...], s for 2^(s-127): 0 for zero and whatever needs less than 2^-127, 254 for infinity, 255 for NaN.

    Source: NVIDIA's rule for MX scales (round up, called RCEIL in torchao), not the floor rule of the
        OCP specification, with which the largest value of a block can saturate.
    """
    (element_bits,) = struct.unpack("<i", struct.pack("<f", element_largest))
    element_exponent = (element_bits >> 23) - 127
    # Adding this carries into the exponent exactly when amax has the greater mantissa of the two.
    carry = 0x7FFFFF - (element_bits & 0x7FFFFF)
    exponent = ((amax.contiguous().view(torch.int32) + carry) >> 23) - element_exponent
    # A subnormal or zero amax has exponent bits 0 and lands below zero, as it should.
    exponent = exponent.clamp(min=0)
    exponent = torch.where(amax.isinf(), 254, exponent)
    return torch.where(amax.isnan(), 255, exponent).to(torch.uint8)


def e8m0_values(scales: Tensor) -> Tensor:
    """2^(s-127) for each byte; NaN for 255. u8 [...] -> f32 [...], exact."""
    return scales.view(torch.float8_e8m0fnu).to(torch.float32)


def e8m0_reciprocals(scales: Tensor) -> Tensor:
    """2^(127-s) for each byte; NaN for 255. u8 [...] -> f32 [...], exact."""
    # The reciprocal of byte s is byte 254 - s, and 255 wraps around to itself: NaN stays NaN.
    return e8m0_values(254 - scales)
