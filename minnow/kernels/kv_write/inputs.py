"""inputs of kv_write for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode


def make(device: torch.device, T: int, G: int, H: int, B: int, L: int, format: str) -> dict[str, Any]:
    """Random values for distinct slots, one of them padding."""
    generator = torch.Generator().manual_seed(T + H)
    slots = torch.randperm(B * L, generator=generator)[:T].to(torch.int32)
    if T > 2:
        slots[1] = -1
    return {
        "values": torch.randn(T, G, H, generator=generator).to(device, torch.bfloat16),
        "cache": encode(format, torch.zeros(B, G, L, H).to(device)),
        "slots": slots.to(device),
    }
