"""index_score, in plain torch: the definition"""

from itertools import pairwise

import torch
from torch import Tensor

from minnow.formats.quantized import Weight, decode, take
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def index_score(
    index_q: Tensor,
    index_cache: Weight,
    block_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    prompt_end: Tensor | None = None,
) -> Tensor:
    """The largest product of an index query with the keys of each block, keys after the query left out.

    Blocks are runs of L *positions* of a sequence, reached through its table; a key is visible to the
    query at position t when its own position is <= t.

    Args:
        index_q: bf16|f32 [T I J], rows of sequence s at [query_start[s], query_start[s + 1]).
        index_cache: [B 1 L J], one key a token for all index heads.
        block_table: i32 [S M], pool blocks of each sequence in order of position; the rest is ignored.
        query_start: i32 [S + 1].
        positions: i32 [T], ascending within a sequence.
        prompt_end: i32 [S], the position from which on a sequence was generated, or None: kernels may compute such
            tokens another way.

    Returns:
        f32 [T I M]; -inf where a block has no visible key. No scale: it would not change the choice.

    Source: MiniMax-M3's index branch: one key head, score type max.
    """
    block_length = index_cache.shape[2]
    num_blocks = block_table.shape[1]
    scores = index_q.new_full((*index_q.shape[:2], num_blocks), -torch.inf, dtype=torch.float32)
    bounds = query_start.tolist()
    for s, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            continue
        num_visible = int(positions[last - 1]) // block_length + 1
        keys = decode(take(index_cache, block_table[s, :num_visible].long())).flatten(0, 2)  # [context, J]
        place = torch.arange(len(keys), device=keys.device)
        is_hidden = place > positions[first:last, None]
        products = torch.einsum("tij,cj->tic", index_q[first:last].float(), keys)
        products = products.masked_fill(is_hidden[:, None], -torch.inf)
        scores[first:last, :, :num_visible] = products.unflatten(-1, (num_visible, block_length)).amax(-1)
    return scores
