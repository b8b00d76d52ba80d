"""sparse_attention, in plain torch: the definition"""

from itertools import pairwise

import torch
from torch import Tensor

from minnow.formats.quantized import Weight, decode, take
from minnow.kernels.contract import Target

_CHUNK_VALUES = 1 << 25  # scores held at once: 128 MiB of f32


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def sparse_attention(
    q: Tensor,
    k_cache: Weight,
    v_cache: Weight,
    block_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    blocks: Tensor,
    scale: float,
    prompt_end: Tensor | None = None,
) -> Tensor:
    """Softmax attention of each query over the visible keys of its chosen blocks, per key/value head.

    Args:
        q: bf16|f32 [T N H]; query heads [g * N/G, (g + 1) * N/G) use key/value head g.
        k_cache, v_cache: [B G L H].
        block_table: i32 [S M]; query_start: i32 [S + 1]; positions: i32 [T].
        blocks: i32 [T G K], blocks of the sequence (not of the pool), -1 unused.
        scale: of the products, usually H^-0.5.
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens another way.

    Returns:
        same dtype as q [T N H]; products, softmax and sums in f32. Zeros where no block is chosen.
    """
    num_groups, block_length = k_cache.shape[1], k_cache.shape[2]
    inside = torch.arange(block_length, device=q.device)
    out = torch.zeros_like(q)
    bounds = query_start.tolist()
    for s, (first, last) in enumerate(pairwise(bounds)):
        step = max(1, _CHUNK_VALUES // (q.shape[1] * block_table.shape[1] * block_length))
        for start in range(first, last, step):
            rows = slice(start, min(start + step, last))
            chosen = blocks[rows].long()  # [t G K]
            union = chosen.unique()
            union = union[union >= 0]  # the blocks that some query of these rows reads
            place = (union[:, None] * block_length + inside).flatten()
            is_read = (chosen[:, :, None] == union[:, None]).any(-1).repeat_interleave(block_length, dim=-1)
            is_read &= (place <= positions[rows, None])[:, None]
            pool_blocks = block_table[s, union].long()
            keys, values = (_gather(cache, pool_blocks, place > positions[rows].max()) for cache in (k_cache, v_cache))
            heads = q[rows].float().unflatten(1, (num_groups, -1))
            scores = torch.einsum("tgrh,gch->tgrc", heads, keys) * scale
            weights = scores.masked_fill(~is_read[:, :, None], -torch.inf).softmax(-1)
            weights = weights.masked_fill(~is_read.any(-1)[:, :, None, None], 0.0)
            out[rows] = torch.einsum("tgrc,gch->tgrh", weights, values).flatten(1, 2).to(q.dtype)
    return out


def _gather(cache: Weight, pool_blocks: Tensor, is_unwritten: Tensor) -> Tensor:
    """[G U*L H] of some blocks; what no query may see becomes zero, whatever rubbish it is."""
    gathered = decode(take(cache, pool_blocks)).transpose(0, 1).flatten(1, 2)
    return gathered.masked_fill(is_unwritten[:, None], 0.0)
