"""dense_attention, in plain torch: the definition"""

from itertools import pairwise

import torch
from torch import Tensor

from minnow.formats.quantized import Weight, decode, take
from minnow.kernels.contract import Target

_CHUNK_VALUES = 1 << 25  # scores held at once: 128 MiB of f32


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


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
    """Softmax attention of each query over the keys from its first one to its position.

    Args:
        q: bf16|f32 [T N H]; query heads [g * N/G, (g + 1) * N/G) use key/value head g.
        k_cache, v_cache: [B G L H].
        block_table: i32 [S M]; query_start: i32 [S + 1].
        positions: i32 [T], ascending within a sequence: the last key that a query sees, which is its own place unless
            it is part of a block that sees all of itself.
        scale: of the products, usually H^-0.5.
        first_keys: i32 [T], the first key that a query sees, ascending within a sequence; None: all from 0 on.
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens another way.

    Returns:
        same dtype as q [T N H]; products, softmax and sums in f32.
    """
    num_groups, block_length = k_cache.shape[1], k_cache.shape[2]
    out = torch.zeros_like(q)
    bounds = query_start.tolist()
    for s, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            continue
        num_keys = int(positions[last - 1]) + 1
        blocks = block_table[s, : -(-num_keys // block_length)].long()
        keys = decode(take(k_cache, blocks)).transpose(0, 1).flatten(1, 2)[:, :num_keys]  # [G context H]
        values = decode(take(v_cache, blocks)).transpose(0, 1).flatten(1, 2)[:, :num_keys]
        place = torch.arange(num_keys, device=q.device)
        step = max(1, _CHUNK_VALUES // (q.shape[1] * num_keys))
        for start in range(first, last, step):
            rows = slice(start, min(start + step, last))
            heads = q[rows].float().unflatten(1, (num_groups, -1))
            scores = torch.einsum("tgrh,gch->tgrc", heads, keys) * scale
            is_hidden = place > positions[rows, None]
            if first_keys is not None:
                is_hidden |= place < first_keys[rows, None]
            weights = scores.masked_fill(is_hidden[:, None, None], -torch.inf).softmax(-1)
            out[rows] = torch.einsum("tgrc,gch->tgrh", weights, values).flatten(1, 2).to(q.dtype)
    return out
