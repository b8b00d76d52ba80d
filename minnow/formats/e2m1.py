"""the sixteen 4-bit values: pack, unpack, round"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from minnow.core.errors import FormatError

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each code: bit 3 is the sign, bits 2..1 the exponent, bit 0 the mantissa."""

LARGEST = 6.0


def round_codes(values: Tensor) -> Tensor:
    """Round to the nearest of the sixteen values, ties to the even code.

    Magnitudes above 5 (infinity, too) become 6; the sign of zero and of what rounds to zero is kept.
    E2M1 has no NaN: a NaN of either sign becomes 7 (+6), as the hardware conversions do, and the
    formats built on this put the NaN into the scale of its block.

    Args:
        values: f32 [...].

    Returns:
        u8 [...], codes 0..15, one a byte.

    Source: OCP microscaling specification (E2M1); ml_dtypes agrees on everything but NaN.
    """
    magnitude = values.abs()
    # Counted from the top down, so that a NaN, which is below nothing, ends at 7 on every device.
    below = (magnitude <= 0.25).to(torch.uint8)
    below += magnitude < 0.75
    below += magnitude <= 1.25
    below += magnitude < 1.75
    below += magnitude <= 2.5
    below += magnitude < 3.5
    below += magnitude <= 5.0
    negative = torch.signbit(values) & (values == values)
    return (7 - below) | (negative.to(torch.uint8) << 3)


def pack(codes: Tensor) -> Tensor:
    """Put two codes in a byte, the even index in the low half.

    Args:
        codes: u8 [..., W], each below 16.

    Returns:
        u8 [..., W/2].

    Raises:
        FormatError: W is odd.
    """
    if codes.shape[-1] % 2:
        raise FormatError(f"two 4-bit codes fill a byte; a width of {codes.shape[-1]} is odd, so pad it to an even one")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """Take the two codes out of each byte, low half first.

    Args:
        packed: u8 [..., W/2].

    Returns:
        u8 [..., W], codes 0..15.
    """
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def unpack_values(packed: Tensor) -> Tensor:
    """Turn packed codes into their values, exactly.

    Args:
        packed: u8 [..., W/2], the even index in the low half.

    Returns:
        f32 [..., W].
    """
    # One 8-byte gather fetches both values of a byte: four times as fast as unpacking first.
    both = _value_pairs(packed.device).index_select(0, packed.flatten().to(torch.int32))
    return both.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def _value_pairs(device: torch.device) -> Tensor:
    """For each byte its two values: f32 pairs seen as i64 [256]."""
    value = torch.tensor(VALUES, dtype=torch.float32)
    pairs = torch.stack((value.repeat(16), value.repeat_interleave(16)), dim=-1)
    return pairs.view(torch.int64).flatten().to(device)
