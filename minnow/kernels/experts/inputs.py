"""inputs of experts for a case"""

from typing import Any, Literal

import torch

from minnow.formats.quantized import encode
from minnow.kernels.experts.activation import Activation


def make(
    device: torch.device, T: int, D: int, F: int, E: int, A: int, format: str, act: Literal["silu", "swigluoai"]
) -> dict[str, Any]:
    """Random experts; A = 0 is the dense form."""
    generator = torch.Generator().manual_seed(T + D)

    def weight(rows: int, width: int) -> Any:
        return encode(format, torch.randn(rows, width, generator=generator).to(device) * width**-0.5)

    ids = torch.stack([torch.randperm(E, generator=generator)[:A] for _ in range(T)]) if A and T else None
    if A and not T:
        ids = torch.zeros(0, A, dtype=torch.int64)
    return {
        "x": torch.randn(T, D, generator=generator).to(device, torch.bfloat16),
        "ids": None if ids is None else ids.to(device),
        "weights": None if ids is None else torch.rand(T, A, generator=generator).to(device),
        "table": tuple((weight(F, D), weight(F, D), weight(D, F)) for _ in range(E)),
        "activation": Activation(kind=act),
    }
