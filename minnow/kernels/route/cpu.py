"""route on a CPU, in C++"""

import torch
from torch import Tensor

from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def route(x: Tensor, gate: Tensor, bias: Tensor | None, num_experts: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Choose experts and their weights; see reference.py. A row's results do not depend on the others."""
    assert gate.shape[1] == x.shape[1] and 0 < num_experts <= gate.shape[0]
    assert bias is None or bias.shape == gate.shape[:1]
    plain, gate = x.float().contiguous(), gate.contiguous()
    bias = None if bias is None else bias.contiguous()
    ids = torch.empty(len(x), num_experts, dtype=torch.int64)
    weights = torch.empty(len(x), num_experts)
    native.function("route", "pppppiif")(
        plain.data_ptr(), words.pack(*words.of_weight(gate)),
        None if bias is None else words.pack(*words.of_weight(bias)),
        ids.data_ptr(), weights.data_ptr(), len(x), num_experts, scaling,
    )  # fmt: skip
    return ids, weights
