"""inputs of index_score for a case"""

from typing import Any

import torch

from minnow.formats.quantized import encode
from minnow.kernels.paged import ends, make_tables, query_dtype


def make(
    device: torch.device,
    I: int,
    J: int,
    L: int,
    contexts: tuple[int, ...],
    queries: tuple[int, ...],
    format: str,
    prompts: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Random keys in a shuffled pool, the last queries of each context."""
    generator = torch.Generator().manual_seed(sum(contexts))
    tables, num_pool_blocks = make_tables(device, L, contexts, queries)
    num_queries = sum(queries)
    keys = torch.randn(num_pool_blocks, 1, L, J, generator=generator).to(device)
    return {
        "index_q": torch.randn(num_queries, I, J, generator=generator).to(device, query_dtype(prompts)),
        "index_cache": encode(format, keys),
        **tables,
        **ends(device, prompts),
    }
