"""step_inputs, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def step_inputs(
    ids: Tensor,
    rows: Tensor,
    starts: Tensor,
    query_start: Tensor,
    last_token: Tensor,
    row_blocks: Tensor,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill in what only the device knows, and find each token's slot.

    Args:
        ids: i32 [T], tokens of sequence s at [query_start[s], query_start[s + 1]); -1 stands for the
            token that the row drew last.
        rows: i32 [S], the row of each sequence; starts: i32 [S], position of its first token here.
        last_token: i32 [R]; row_blocks: i32 [R M], pool blocks of each row.

    Returns:
        ids i32 [T], positions i32 [T], slots i64 [T] (block * block_size + place), block_table i32 [S M].
    """
    counts = (query_start[1:] - query_start[:-1]).long()
    sequence = torch.repeat_interleave(torch.arange(len(counts), device=ids.device), counts)
    place = torch.arange(len(ids), device=ids.device) - query_start.long()[sequence]
    positions = starts.long()[sequence] + place
    block_table = row_blocks[rows.long()]
    block = block_table[sequence, positions // block_size].long()
    filled = torch.where(ids < 0, last_token[rows.long()[sequence]], ids)
    return filled, positions.to(torch.int32), block * block_size + positions % block_size, block_table
