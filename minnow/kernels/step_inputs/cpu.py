"""step_inputs on a CPU, in C++"""

import torch
from torch import Tensor

from minnow.kernels import native
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def step_inputs(
    ids: Tensor,
    rows: Tensor,
    starts: Tensor,
    query_start: Tensor,
    last_token: Tensor,
    row_blocks: Tensor,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill in what only the device knows, and find each token's slot; see reference.py."""
    filled, positions = torch.empty_like(ids), torch.empty_like(ids)
    slots = torch.empty(ids.shape, dtype=torch.int64)
    block_table = torch.empty(rows.shape[0], row_blocks.shape[1], dtype=torch.int32)
    tensors = (ids, rows, starts, query_start, last_token, row_blocks, filled, positions, slots, block_table)
    native.function("step_inputs", "ppppppppppiiii")(
        *(tensor.data_ptr() for tensor in tensors),
        rows.shape[0], row_blocks.shape[1], row_blocks.stride(0), block_size,
    )  # fmt: skip
    return filled, positions, slots, block_table
