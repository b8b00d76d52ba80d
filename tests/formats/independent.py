"""MXFP4 and FP8 worked out a second time, from numpy, ml_dtypes and exact fractions; shares no code with Minnow."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np


def ceil_exponent(amax: float, largest: int) -> int:
    """The E8M0 byte of a finite amax: the least s in 0..254 with amax <= largest * 2^(s-127)."""
    # From well below: amax is at least 2^(e-1), and neither largest code reaches 2^9.
    byte = max(0, math.frexp(amax)[1] - 12 + 127) if amax else 0
    while byte < 254 and Fraction(amax) > largest * Fraction(2) ** (byte - 127):
        byte += 1
    return byte


def mxfp4(values: np.ndarray) -> tuple[int, bytes]:
    """Scale byte and packed codes of one block of finite f32 [32]."""
    byte = ceil_exponent(float(np.abs(values).max()), 6)
    scaled = (values.astype(np.float64) / 2.0 ** (byte - 127)).astype(np.float32)
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return byte, bytes(codes[0::2] | (codes[1::2] << 4))


def fp8(values: np.ndarray, scale: np.float32) -> bytes:
    """Codes of f32 [n], no NaN: divide, saturate, round."""
    scaled = np.clip(values / scale, np.float32(-448), np.float32(448))
    return scaled.astype(ml_dtypes.float8_e4m3fn).tobytes()
