"""sample on a CPU, in C++: tokens in buckets, of which few are sorted"""

import torch
from torch import Tensor

from minnow.kernels import native
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token a row by inverting the cumulative distribution, likeliest token first; see reference.py."""
    num_rows, num_tokens = logits.shape
    ids = torch.empty(num_rows, dtype=torch.int64)
    columns = [column.contiguous() for column in (logits, temperature, top_k, top_p, min_p, uniform)]
    native.function("sample", "pppppppii")(
        *(column.data_ptr() for column in columns), ids.data_ptr(), num_rows, num_tokens
    )
    return ids
