"""inputs of kv_write for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode


def make(
    device: torch.device, T: int, G: int, H: int, B: int, L: int, format: str, is_strided: bool = False
) -> dict[str, Any]:
    """Random values for distinct slots, one of them padding; strided ones are a part of wider rows."""
    generator = torch.Generator().manual_seed(T + H)
    slots = torch.randperm(B * L, generator=generator)[:T].to(torch.int32)
    if T > 2:
        slots[1] = -1
    values = torch.randn(T, G + 2 * is_strided, H, generator=generator).to(device, torch.bfloat16)
    return {
        "values": values[:, is_strided : G + is_strided],
        "cache": encode(format, torch.zeros(B, G, L, H).to(device)),
        "slots": slots.to(device),
    }
