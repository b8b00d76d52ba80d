"""inputs of embed for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode


def make(device: torch.device, T: int, D: int, V: int, format: str) -> dict[str, Any]:
    """Random ids and table."""
    generator = torch.Generator().manual_seed(T + D)
    return {
        "ids": torch.randint(0, V, (T,), generator=generator).to(device),
        "table": encode(format, torch.randn(V, D, generator=generator).to(device)),
        "dtype": torch.bfloat16,
    }
