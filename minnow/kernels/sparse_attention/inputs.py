"""inputs of sparse_attention for a case"""

from typing import Any

import torch

from minnow.kernels.paged import make_attention


def make(device: torch.device, K: int, **dims: Any) -> dict[str, Any]:
    """Random keys in a shuffled pool; each query reads its own block and up to K - 1 earlier ones."""
    inputs = make_attention(device, **dims)
    generator = torch.Generator().manual_seed(K)
    positions, num_groups = inputs["positions"].tolist(), dims["G"]
    blocks = torch.full((len(positions), num_groups, K), -1, dtype=torch.int32)
    for t, position in enumerate(positions):
        local = position // dims["L"]
        for g in range(num_groups):
            earlier = torch.randperm(local, generator=generator)[: K - 1].sort().values
            chosen = torch.cat((earlier, torch.tensor([local])))
            blocks[t, g, : len(chosen)] = chosen
    return {**inputs, "blocks": blocks.to(device)}
