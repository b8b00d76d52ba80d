"""C++ for the CPU, through the native library"""

import torch
from torch import Tensor

from minnow.kernels import native
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def block_topk(
    scores: Tensor, positions: Tensor, num_blocks: int, block_size: int, num_local_blocks: int, num_init_blocks: int
) -> Tensor:
    """The num_blocks best-scored visible blocks, local and initial ones among them; see reference.py.

    Args:
        scores: f32 [T I M].
        positions: i32 [T].

    Returns:
        i32 [T I num_blocks], ascending, -1 in unused places.
    """
    scores, positions = scores.contiguous(), positions.contiguous()
    num_tokens, num_heads, num_table_blocks = scores.shape
    blocks = torch.empty(num_tokens, num_heads, num_blocks, dtype=torch.int32)
    native.function("block_topk", "pppiiiiiii")(
        scores.data_ptr(), positions.data_ptr(), blocks.data_ptr(), num_tokens, num_heads, num_table_blocks,
        num_blocks, block_size, num_local_blocks, num_init_blocks,
    )  # fmt: skip
    return blocks
