"""embed, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.formats.quantized import Weight, decode, take
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def embed(ids: Tensor, table: Weight, dtype: torch.dtype) -> Tensor:
    """Look up and dequantise rows.

    Args:
        ids: i32|i64 [T], each in [0, V).
        table: [V D].

    Returns:
        dtype [T D].
    """
    return decode(take(table, ids.long()), dtype)
