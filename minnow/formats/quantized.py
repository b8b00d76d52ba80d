"""Quantized: codes + scales + spec, the one quantised tensor type"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minnow.core import folder
from minnow.formats.spec import SPEC_BY_NAME, FormatSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A quantised tensor of logical shape [..., W]; rows are its last dim.

    Attributes:
        codes: nvfp4, mxfp4, int4: u8 [..., W/2], two codes a byte, the even index in the low half;
            fp8, mxfp8: float8_e4m3fn [..., W]; int8: i8 [..., W].
        scales: nvfp4: float8_e4m3fn [..., W/16]; mxfp4, mxfp8: u8 (E8M0) [..., W/32];
            int4, int8: f16 [..., W/32]; fp8: None.
        minimums: int4: f16 [..., W/32]; else None.
        global_scale: decode side: every value is multiplied by it. f32 scalar tensor, or None for 1.
    """

    spec: FormatSpec
    codes: Tensor
    scales: Tensor | None = None
    minimums: Tensor | None = None
    global_scale: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.spec.bits)

    @property
    def device(self) -> torch.device:
        """Where the codes live."""
        return self.codes.device

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales and minimums."""
        parts = (self.codes, self.scales, self.minimums)
        return sum(p.numel() * p.element_size() for p in parts if p is not None)

    def map(self, change: Any) -> Quantized:
        """Apply the same tensor function to codes, scales and minimums (index, view of leading dims, clone, to)."""
        return Quantized(
            spec=self.spec,
            codes=change(self.codes),
            scales=None if self.scales is None else change(self.scales),
            minimums=None if self.minimums is None else change(self.minimums),
            global_scale=self.global_scale,
        )


Weight = Tensor | Quantized


def encode(name: str, values: Tensor) -> Weight:
    """Encode f32|bf16 [..., W] in the format of that name ("bf16", "nvfp4", ...).

    Raises:
        FormatError: W is no multiple of the format's block.
    """
    SPEC_BY_NAME[name].check_width(values.shape[-1])
    plain = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    if name in plain:
        return values.to(plain[name])
    encoded: Quantized = folder.load("minnow.formats", name).encode(values)
    return encoded


def decode(weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The exact values in f32, then rounded once to dtype where that is narrower."""
    if isinstance(weight, Tensor):
        return weight.to(dtype)
    decoded: Tensor = folder.load("minnow.formats", weight.spec.name).decode(weight)
    return decoded.to(dtype)


def take(weight: Weight, index: Tensor | tuple[Tensor, ...]) -> Weight:
    """Index leading dims of a weight or cache; one-byte types go through u8, which indexes everywhere."""

    def pick(part: Tensor) -> Tensor:
        if part.element_size() == 1:
            return part.view(torch.uint8)[index].view(part.dtype)
        return part[index]

    return weight.map(pick) if isinstance(weight, Quantized) else pick(weight)
