"""C++ for the CPU, through the native library"""

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def dense_attention(
    q: Tensor,
    k_cache: Weight,
    v_cache: Weight,
    block_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    scale: float,
    first_keys: Tensor | None = None,
    prompt_end: Tensor | None = None,
) -> Tensor:
    """Softmax attention of each query over the keys from its first one to its position; see reference.py.

    A row's result does not depend on the rows beside it, nor on the number of threads.

    Args:
        q: bf16|f32 [T N H].
        k_cache, v_cache: [B G L H].
        block_table: i32 [S M]; query_start: i32 [S + 1]; positions: i32 [T].
        scale: of the products.
        first_keys: i32 [T], or None.
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens another way.

    Returns:
        same dtype as q [T N H].
    """
    plain = q.float().contiguous()
    out = torch.empty(q.shape)
    native.function("dense_attention", "pppppifi")(
        words.pack(*words.of_sequences(block_table, query_start, positions, prompt_end, first_keys)), plain.data_ptr(),
        words.pack(*words.of_cache(k_cache)), words.pack(*words.of_cache(v_cache)), out.data_ptr(),
        q.shape[1], scale, q.dtype == torch.bfloat16,
    )  # fmt: skip
    return out.to(q.dtype)
