"""make(device, **dims): inputs for a case; tests and bench share it"""

from typing import Literal

import torch

_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def make(
    device: torch.device,
    *,
    T: int,
    D: int,
    dtype: Literal["bf16", "f32"] = "bf16",
    w_dtype: Literal["bf16", "f32"] = "bf16",
    offset: float = 0.0,
    scale: float = 1.0,
    is_strided: bool = False,
) -> dict[str, object]:
    """Arguments of one call: normal values times `scale`; strided rows are the middle of wider ones."""
    random = torch.Generator().manual_seed(1000 * T + D)
    x = (torch.randn(T, D + 16, generator=random) * scale).to(device, _DTYPES[dtype])
    w = torch.randn(D, generator=random).to(device, _DTYPES[w_dtype])
    rows = x[:, 8 : 8 + D] if is_strided else x[:, :D].contiguous()
    return {"x": rows, "w": w, "eps": 1e-6, "offset": offset}
