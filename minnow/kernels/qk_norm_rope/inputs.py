"""inputs of qk_norm_rope for a case"""

from typing import Any, Literal

import torch

_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make(
    device: torch.device,
    T: int,
    N: int,
    H: int,
    rotary: int,
    has_norm: bool,
    dtype: Literal["bf16", "f32"] = "bf16",
    is_strided: bool = False,
    mixes: int = 0,
) -> dict[str, Any]:
    """Random heads at spread positions; strided ones are a part of wider rows."""
    generator = torch.Generator().manual_seed(T + H)
    exponent = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
    x = torch.randn(T, N + 2 * is_strided, H, generator=generator).to(device, _DTYPES[dtype])
    return {
        "x": x[:, is_strided : N + is_strided],
        "w": torch.randn(H, generator=generator).to(device, torch.bfloat16) if has_norm else None,
        "positions": torch.randint(0, 1_048_576, (T,), generator=generator, dtype=torch.int32).to(device),
        "inv_freq": (5e6**-exponent).to(device),
        "eps": 1e-6,
        "offset": 1.0,
        "mix": (torch.randn(mixes, H, H, generator=generator) / H**0.5).to(device, torch.bfloat16) if mixes else None,
    }
