"""a drafter's first layer before training: every slot receives what the target knew at the newest position"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from minnow.arch.drafter import AT
from minnow.config.drafter import DrafterConfig
from minnow.tune.target import Target

SIZE = 60.0  # of what is fused: steps of training are small beside it; the norm after it takes the size away
_PAIRS = 4  # of rotating dims that heads tell positions by: the fastest
_SHARPNESS = 2.0  # weight of those pairs in the norms of queries and keys
_MASK_SHARE = 0.05  # of all tokens, as far as what distinguishes the mask token goes
_SLOT = 2.5  # positions from a later slot back to the newest features, for want of the slot's number
_RIDGE = 1e-3
_ROUNDS, _SHORT = 8, 0.7  # of fitting; and how far a product may fall short


def layer(config: DrafterConfig, target: Target, context_TD: Tensor, counts_V: Tensor) -> dict[str, Tensor]:
    """Weights of the first layer's attention.

    A draft's first slot knows its token alone; what the target knew lies in the keys and values of the context. A head
    that has to find it there by content takes long to learn: after 95,000 blocks heads of the first layer still spent 1
    to 17 % of their attention on the newest position. So all heads begin with keys that are alike for context (and the
    opposite for slots), and queries turned one position back, which the rotary embedding then makes prefer the newest:
    0.9 of the attention for the first slot. Values and output add what was fused to the residual stream as it is, where
    heads are wide enough.

    Args:
        config: of a drafter with as many key heads as query heads.
        context_TD: f32, what is fused, after its norm.
        counts_V: how often each token occurs.

    Returns:
        By our names; norms as the factors that they are.
    """
    backbone = config.backbone
    width, heads = backbone.head_dim, backbone.num_attention_heads
    half, pairs = backbone.rotary_dim // 2, min(_PAIRS, backbone.rotary_dim // 2)
    embedding_VD = target.weights["model.embed_tokens"].float()
    seen = torch.cat((counts_V.nonzero()[:, 0], torch.tensor([config.mask_token_id])))
    weight_R = (counts_V[seen] + 1.0).sqrt()
    weight_R[-1] = _MASK_SHARE * weight_R[:-1].sum()
    rows_RD = functional.rms_norm(embedding_VD[seen], (backbone.hidden_size,))
    is_mask_R = functional.one_hot(torch.tensor(len(seen) - 1), len(seen)).float()
    anchor_D, mask_D = (_detector(rows_RD, wanted, weight_R) for wanted in (1 - is_mask_R, is_mask_R))
    both_RD = torch.cat((context_TD, -rows_RD))
    share_R = torch.cat((torch.full((len(context_TD),), 1 / len(context_TD)), weight_R / weight_R.sum()))
    context_D = _detector(both_RD, torch.ones(len(both_RD)), share_R)

    def pattern(distance: float) -> Tensor:
        """A query [H] whose product with keys of pattern(0) is largest where they are so far before it."""
        found = torch.zeros(width)
        angle = distance * target.inverse_frequencies[:pairs]
        found[:pairs], found[half : half + pairs] = angle.cos(), -angle.sin()
        return found

    norm = torch.ones(width)
    norm[:pairs] = norm[half : half + pairs] = _SHARPNESS
    size = embedding_VD[seen].square().mean().sqrt() / context_TD.square().mean().sqrt()
    query_HD = pattern(1.0)[:, None] * anchor_D + pattern(_SLOT)[:, None] * mask_D
    at = f"{AT}layers.0.self_attn."
    return {
        f"{at}q_proj": query_HD.repeat(heads, 1),
        f"{at}k_proj": (pattern(0.0)[:, None] * context_D).repeat(heads, 1),
        f"{at}v_proj": torch.eye(heads * width, backbone.hidden_size),
        f"{at}o_proj": torch.eye(backbone.hidden_size, heads * width) * size,
        f"{at}q_norm": norm,
        f"{at}k_norm": norm.clone(),
    }


def _detector(rows_RD: Tensor, wanted_R: Tensor, weight_R: Tensor) -> Tensor:
    """The direction whose products with rows are nearest to what is wanted, 0 or 1: [D].

    The norm after it takes the size of a product away, but not a wrong sign: rows that fall short count more each time.
    """
    for _ in range(_ROUNDS):
        weighted_RD = rows_RD * weight_R[:, None]
        moment_DD = weighted_RD.T @ rows_RD
        ridge_DD = _RIDGE * moment_DD.diagonal().mean() * torch.eye(len(moment_DD))
        found_D: Tensor = torch.linalg.solve(moment_DD + ridge_DD, weighted_RD.T @ wanted_R)
        weight_R = torch.where(rows_RD @ found_D < wanted_R - _SHORT, 3 * weight_R, weight_R)
    return found_D
