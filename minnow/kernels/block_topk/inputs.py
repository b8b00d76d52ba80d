"""inputs of block_topk for a case"""

from typing import Any

import torch


def make(device: torch.device, T: int, I: int, M: int, K: int, L: int, init: int) -> dict[str, Any]:
    """Coarse scores, so that many are equal, at positions all over the context."""
    generator = torch.Generator().manual_seed(T + M)
    return {
        "scores": torch.randn(T, I, M, generator=generator).mul(2).round().to(device),
        "positions": torch.randint(0, M * L, (T,), generator=generator, dtype=torch.int32).to(device),
        "num_blocks": K,
        "block_size": L,
        "num_local_blocks": 1,
        "num_init_blocks": init,
    }
