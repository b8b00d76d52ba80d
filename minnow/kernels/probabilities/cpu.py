"""probabilities on a CPU, in C++: tokens in buckets, of which few are sorted"""

import torch
from torch import Tensor

from minnow.kernels import native
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The distribution of each row that `sample` draws its token from; see reference.py."""
    num_rows, num_tokens = logits.shape
    p = torch.empty(num_rows, num_tokens)
    columns = [column.contiguous() for column in (logits, temperature, top_k, top_p, min_p)]
    native.function("probabilities", "ppppppii")(
        *(column.data_ptr() for column in columns), p.data_ptr(), num_rows, num_tokens
    )
    return p
