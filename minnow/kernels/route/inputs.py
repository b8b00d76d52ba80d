"""inputs of route for a case"""

from typing import Any

import torch


def make(device: torch.device, T: int, D: int, E: int, A: int, has_bias: bool) -> dict[str, Any]:
    """Random tokens and gate."""
    generator = torch.Generator().manual_seed(T + E)
    return {
        "x": torch.randn(T, D, generator=generator).to(device, torch.bfloat16),
        "gate": torch.randn(E, D, generator=generator).to(device) * D**-0.5,
        "bias": torch.randn(E, generator=generator).to(device) if has_bias else None,
        "num_experts": A,
        "scaling": 2.0,
    }
