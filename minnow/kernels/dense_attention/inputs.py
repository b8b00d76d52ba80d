"""inputs of dense_attention for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode
from minnow.kernels.paged import make_tables


def make(
    device: torch.device,
    N: int,
    G: int,
    H: int,
    L: int,
    contexts: tuple[int, ...],
    queries: tuple[int, ...],
    format: str,
) -> dict[str, Any]:
    """Random keys in a shuffled pool, the last queries of each context."""
    generator = torch.Generator().manual_seed(sum(contexts))
    tables, num_pool_blocks = make_tables(device, L, contexts, queries)
    shape = (num_pool_blocks, G, L, H)
    return {
        "q": torch.randn(sum(queries), N, H, generator=generator).to(device, torch.bfloat16),
        "k_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        "v_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        **tables,
        "scale": H**-0.5,
    }
