"""block_topk, in plain torch: the definition"""

import torch
from torch import Tensor
from torch.nn import functional

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def block_topk(
    scores: Tensor, positions: Tensor, num_blocks: int, block_size: int, num_local_blocks: int, num_init_blocks: int
) -> Tensor:
    """The num_blocks best-scored visible blocks; local and initial ones are always among them.

    The local block of a query at position t is t // block_size; later blocks are never chosen. Equal
    scores: the lower block wins.

    Args:
        scores: f32 [T I M].
        positions: i32 [T].

    Returns:
        i32 [T I num_blocks], ascending (so the local block is last), -1 in unused places.

    Source: MiniMax-M3's sparse_attention_config; order and ties are ours (docs/decisions).
    """
    place = torch.arange(scores.shape[-1], device=scores.device)
    local = (positions // block_size)[:, None, None]
    is_visible = place <= local
    is_forced = is_visible & ((place > local - num_local_blocks) | (place < num_init_blocks))
    ranked = scores.masked_fill(~is_visible, -torch.inf).masked_fill(is_forced, torch.inf)
    best = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :num_blocks]
    never = scores.shape[-1]
    chosen = torch.where(best <= local, best, never).sort(dim=-1).values
    chosen = functional.pad(chosen, (0, num_blocks - chosen.shape[-1]), value=never)
    return chosen.masked_fill(chosen == never, -1).to(torch.int32)
