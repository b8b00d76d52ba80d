"""inputs of sparse_attention for a case"""

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
    K: int,
    contexts: tuple[int, ...],
    queries: tuple[int, ...],
    format: str,
) -> dict[str, Any]:
    """Random keys in a shuffled pool; each query reads its own block and some earlier ones."""
    generator = torch.Generator().manual_seed(sum(contexts))
    tables, num_pool_blocks = make_tables(device, L, contexts, queries)
    shape = (num_pool_blocks, G, L, H)
    blocks = torch.full((sum(queries), G, K), -1, dtype=torch.int32)
    for t, position in enumerate(tables["positions"].tolist()):
        local = position // L
        for g in range(G):
            earlier = torch.randperm(local, generator=generator)[: K - 1].sort().values
            chosen = torch.cat((earlier, torch.tensor([local])))
            blocks[t, g, : len(chosen)] = chosen
    return {
        "q": torch.randn(sum(queries), N, H, generator=generator).to(device, torch.bfloat16),
        "k_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        "v_cache": encode(format, torch.randn(shape, generator=generator).to(device)),
        **tables,
        "blocks": blocks.to(device),
        "scale": H**-0.5,
    }
