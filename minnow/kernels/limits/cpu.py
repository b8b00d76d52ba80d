"""limits on a CPU: reading memory, multiplying in registers"""

import torch
from torch import Tensor

from minnow.kernels import native

KINDS = ("f32", "bf16", "int8")
_GRAIN_BYTES = 256


def read_bytes(data: Tensor) -> int:
    """Read a buffer once, with all threads.

    Args:
        data: u8 [N], N a multiple of 256.

    Returns:
        The sum of its 64-bit words, modulo 2^64: the proof that they were read.
    """
    assert data.dtype == torch.uint8 and data.is_contiguous() and data.numel() % _GRAIN_BYTES == 0
    sums = torch.zeros(native.num_threads(), dtype=torch.int64)
    native.function("read_bytes", "pip")(data.data_ptr(), data.numel(), sums.data_ptr())
    return int(sum(sums.tolist())) % (1 << 64)


def multiply(kind: str, num_rounds: int) -> float:
    """Multiply and add in registers, on all threads.

    Args:
        kind: of KINDS: fused FP32, BF16 products summed in FP32, int8 products summed in int32.

    Returns:
        How many multiplications and additions that were; 0 where the instruction set has no such instruction.
    """
    operations = torch.zeros(native.num_threads(), dtype=torch.float64)
    native.function("multiply", "iip")(KINDS.index(kind), num_rounds, operations.data_ptr())
    return float(operations.sum())
