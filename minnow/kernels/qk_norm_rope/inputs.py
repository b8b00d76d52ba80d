"""inputs of qk_norm_rope for a case"""

from typing import Any

import torch


def make(device: torch.device, T: int, N: int, H: int, rotary: int, has_norm: bool) -> dict[str, Any]:
    """Random heads at spread positions."""
    generator = torch.Generator().manual_seed(T + H)
    exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    return {
        "x": torch.randn(T, N, H, generator=generator).to(device, torch.bfloat16),
        "w": torch.randn(H, generator=generator).to(device, torch.bfloat16) if has_norm else None,
        "positions": torch.randint(0, 100_000, (T,), generator=generator, dtype=torch.int32).to(device),
        "inv_freq": (5e6**-exponent).to(device),
        "eps": 1e-6,
        "offset": 1.0,
    }
