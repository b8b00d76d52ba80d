"""inputs of step_inputs for a case"""

from typing import Any

import torch


def make(device: torch.device, queries: tuple[int, ...], L: int) -> dict[str, Any]:
    """Sequences in shuffled rows, single tokens taken from the row."""
    generator = torch.Generator().manual_seed(len(queries))
    num_rows, num_blocks = len(queries) + 2, 4 + max(queries) // L
    ids = torch.cat([torch.full((q,), -1) if q == 1 else torch.arange(q) for q in queries])
    named = {
        "ids": ids,
        "rows": torch.randperm(num_rows, generator=generator)[: len(queries)],
        "starts": torch.randint(0, 2 * L, (len(queries),), generator=generator),
        "query_start": torch.tensor((0, *queries)).cumsum(0),
        "last_token": torch.randint(0, 99, (num_rows,), generator=generator),
        "row_blocks": torch.randint(1, 50, (num_rows, num_blocks), generator=generator),
    }
    return {**{k: v.to(device, torch.int32) for k, v in named.items()}, "block_size": L}
