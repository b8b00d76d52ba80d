"""inputs of linear for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode


def make(device: torch.device, T: int, D: int, rows: tuple[int, ...], format: str) -> dict[str, Any]:
    """Random x and weights in a format."""
    generator = torch.Generator().manual_seed(T + D)
    weights = tuple(encode(format, torch.randn(r, D, generator=generator).to(device) * D**-0.5) for r in rows)
    return {"x": torch.randn(T, D, generator=generator).to(device, torch.bfloat16), "weights": weights}
