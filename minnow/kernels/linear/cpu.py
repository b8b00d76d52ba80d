"""linear on a CPU: C++ for weights of any format, decoded on the way"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target

_MAX_WEIGHTS = 16  # as kMaxWeights in cpu.cpp


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def linear(x: Tensor, weights: Sequence[Weight], dtype: torch.dtype | None = None) -> Tensor:
    """y = x @ concat(weights)^T; see reference.py.

    A row of FP32 gives the same bits whatever rows stand beside it; one of BF16 does among few rows (eight, or two by
    AMX), and among more.
    """
    assert len(weights) <= _MAX_WEIGHTS
    for weight in weights:
        assert weight.shape[1] == x.shape[1], f"a weight of width {weight.shape[1]} meets rows of {x.shape[1]}"
    num_outputs = sum(weight.shape[0] for weight in weights)
    is_bf16 = x.dtype == torch.bfloat16 and dtype in (None, torch.bfloat16)
    y = torch.empty(x.shape[0], num_outputs, dtype=torch.bfloat16 if is_bf16 else torch.float32)
    if y.numel():
        plain = x.contiguous() if is_bf16 else x.float().contiguous()
        native.function("linear", "pppiiii")(
            plain.data_ptr(), words.pack(*words.of_weights(weights)), y.data_ptr(),
            x.shape[0], len(weights), num_outputs, is_bf16,
        )  # fmt: skip
    return y.to(dtype or x.dtype)
