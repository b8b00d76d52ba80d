"""C++ for the CPU, through the native library"""

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def index_score(
    index_q: Tensor,
    index_cache: Weight,
    block_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    prompt_end: Tensor | None = None,
) -> Tensor:
    """The largest product of an index query with the keys of each block; see reference.py.

    Args:
        index_q: bf16|f32 [T I J].
        index_cache: [B 1 L J].
        block_table: i32 [S M]; query_start: i32 [S + 1]; positions: i32 [T].
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens another way.

    Returns:
        f32 [T I M]; -inf where a block has no visible key, NaN where a visible product is NaN.
    """
    plain = index_q.float().contiguous()
    scores = torch.empty(*index_q.shape[:2], block_table.shape[1])
    native.function("index_score", "ppppii")(
        words.pack(*words.of_sequences(block_table, query_start, positions, prompt_end)), plain.data_ptr(),
        words.pack(*words.of_cache(index_cache)), scores.data_ptr(),
        index_q.shape[1], index_q.dtype == torch.bfloat16,
    )  # fmt: skip
    return scores
