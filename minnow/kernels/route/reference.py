"""route, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def route(x: Tensor, gate: Tensor, bias: Tensor | None, num_experts: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Sigmoid scores choose with a bias, weigh without it.

    Args:
        x: bf16|f32 [T D].
        gate: bf16|f32 [E D]; the product is in f32.
        bias: [E], added for the choice only; None is zero.
        num_experts: A, experts a token uses.
        scaling: multiplies the normalised weights.

    Returns:
        ids i64 [T A], the best first, equal scores to the lower id; weights f32 [T A], summing to scaling.

    Source: MiniMax-M3's router (scoring_func sigmoid, use_routing_bias, routed_scaling_factor).
    """
    scores = torch.sigmoid(x.float() @ gate.float().T)
    ranked = scores if bias is None else scores + bias.float()
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :num_experts]
    chosen = scores.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling
