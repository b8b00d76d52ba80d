"""int4 and int8 matrices with sixteen outputs side by side, as the native step reads them fastest"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight

LANES = 16
_BLOCK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiled:
    """A matrix [O W] in the layout of native/tiles.h; as many bytes as the Quantized that it was made from.

    Attributes:
        digits: bytes that a value of x has in a product: 3 for one that is as exact as FP32, 2, or 1.
        data: u8 [O/16, W/32, bytes of 16 x 32 values]: codes, then scales, then minimums.
    """

    format: Literal["int4", "int8"]
    digits: int
    shape: tuple[int, int]
    data: Tensor


def can_tile(weight: Weight) -> bool:
    """Whether there is such a layout for a weight: whole tiles of int4 or int8."""
    if not isinstance(weight, Quantized) or weight.spec.name not in ("int4", "int8") or len(weight.shape) != 2:
        return False
    return weight.shape[0] % LANES == 0 and weight.global_scale is None


def tile(weight: Quantized, digits: int = 3) -> Tiled:
    """The same values, tiled; eight codes of a row lie together, the even ones before the odd ones.

    Args:
        weight: [O W], see can_tile.
    """
    num_rows, width = weight.shape
    tiles, blocks = num_rows // LANES, width // _BLOCK
    name: Literal["int4", "int8"] = "int4" if weight.spec.name == "int4" else "int8"
    codes = weight.codes.view(torch.uint8)
    if name == "int4":
        parts = [codes.view(tiles, LANES, blocks, 4, 4).permute(0, 2, 3, 1, 4)]
    else:
        parts = [codes.view(tiles, LANES, blocks, 4, 4, 2).permute(0, 2, 3, 5, 1, 4)]
    for factors in (weight.scales, weight.minimums):
        if factors is not None:
            parts.append(factors.view(tiles, LANES, blocks).transpose(1, 2).contiguous().view(torch.uint8))
    data = torch.cat([part.reshape(tiles, blocks, -1) for part in parts], dim=2)
    return Tiled(format=name, digits=digits, shape=(num_rows, width), data=data)
