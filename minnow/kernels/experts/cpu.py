"""experts on a CPU: C++, each expert's weights read once for all of its tokens"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target
from minnow.kernels.experts.activation import Activation


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def experts(
    x: Tensor,
    ids: Tensor | None,
    weights: Tensor | None,
    table: Sequence[tuple[Weight, Weight, Weight]],
    activation: Activation,
) -> Tensor:
    """y = sum over a token's experts of weight * down(act(gate x, up x)); see reference.py."""
    is_bf16 = x.dtype == torch.bfloat16
    y = torch.empty(x.shape, dtype=torch.bfloat16 if is_bf16 else torch.float32)
    if not y.numel():
        return y.to(x.dtype)
    plain = x.contiguous() if is_bf16 else x.float().contiguous()
    chosen = None if ids is None else ids.contiguous()
    factors = None if weights is None else weights.float().contiguous()
    native.function("experts", "ppppppiiii")(
        plain.data_ptr(),
        None if chosen is None else chosen.data_ptr(),
        None if factors is None else factors.data_ptr(),
        words.pack(*(word for expert in table for word in words.of_weights(expert))),
        words.pack(*words.of_activation(activation)),
        y.data_ptr(),
        x.shape[0], 1 if chosen is None else chosen.shape[1], len(table), is_bf16,
    )  # fmt: skip
    return y.to(x.dtype)
