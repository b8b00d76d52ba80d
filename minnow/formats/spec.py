"""FormatSpec: bits, values a scale covers, scale type, bytes of n values (no torch)"""

from dataclasses import dataclass
from typing import Literal

from minnow.core.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSpec:
    """How a number format lies in memory.

    Attributes:
        bits: of one code.
        block: consecutive values along a row that one scale covers (C); 0 where there are no block scales.
        scale_bits: of one scale.
        has_minimum: a minimum beside each scale, of the same type (value = scale * code + minimum).
    """

    name: Literal["f32", "f16", "bf16", "fp8", "nvfp4", "mxfp4", "mxfp8", "int4", "int8"]
    bits: int
    block: int = 0
    scale_bits: int = 0
    has_minimum: bool = False

    def num_code_bytes(self, num_values: int) -> int:
        """Bytes of the codes of num_values values."""
        self.check_width(num_values)
        return num_values * self.bits // 8

    def num_scale_bytes(self, num_values: int) -> int:
        """Bytes of the scales (and minimums) of num_values values."""
        self.check_width(num_values)
        if not self.block:
            return 0
        return num_values // self.block * self.scale_bits // 8 * (2 if self.has_minimum else 1)

    def num_bytes(self, num_values: int) -> int:
        """Bytes of num_values values, codes and scales together; per-tensor scales are not counted.

        Raises:
            FormatError: num_values is no multiple of the block.
        """
        return self.num_code_bytes(num_values) + self.num_scale_bytes(num_values)

    def check_width(self, num_values: int) -> None:
        """Refuse widths that do not fill whole blocks.

        Raises:
            FormatError: names the format, the width and the block.
        """
        step = self.block or (2 if self.bits == 4 else 1)
        if num_values % step:
            raise FormatError(f"{self.name} covers {step} values with a scale; a width of {num_values} does not fit")


_ALL = (
    FormatSpec(name="f32", bits=32),
    FormatSpec(name="f16", bits=16),
    FormatSpec(name="bf16", bits=16),
    FormatSpec(name="fp8", bits=8),
    FormatSpec(name="nvfp4", bits=4, block=16, scale_bits=8),
    FormatSpec(name="mxfp4", bits=4, block=32, scale_bits=8),
    FormatSpec(name="mxfp8", bits=8, block=32, scale_bits=8),
    FormatSpec(name="int4", bits=4, block=32, scale_bits=16, has_minimum=True),
    FormatSpec(name="int8", bits=8, block=32, scale_bits=16),
)
SPEC_BY_NAME: dict[str, FormatSpec] = {spec.name: spec for spec in _ALL}
