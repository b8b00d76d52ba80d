"""sample, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target
from minnow.kernels.sample import NONE_OPEN, NOT_FINITE


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token a row by inverting the cumulative distribution, likeliest token first.

    A row is a function of its own inputs alone, whatever rows stand beside it.

    Args:
        logits: f32 [S V]; -inf bans a token.
        temperature: f32 [S]; 0 takes the largest logit, the lower id among equals.
        top_k: i64 [S]; 0 or less keeps all.
        top_p: f32 [S]; keeps the smallest set of likeliest tokens whose mass reaches it.
        min_p: f32 [S]; drops tokens less likely than min_p times the likeliest.
        uniform: f64 [S] in [0, 1).

    Returns:
        i64 [S]; NOT_FINITE where a logit of the row is NaN or plus infinity, else NONE_OPEN where all are banned.
    """
    if logits.shape[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    is_broken = (logits.isnan() | (logits == torch.inf)).any(-1)
    is_closed = (logits == -torch.inf).all(-1)
    logits = logits.masked_fill((is_broken | is_closed)[:, None], 0.0)
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    is_greedy = temperature <= 0
    heat = torch.where(is_greedy, 1.0, temperature)[:, None]
    p = ((ranked - ranked[:, :1]).double() / heat).softmax(-1)
    place = torch.arange(p.shape[-1], device=p.device)
    is_kept = (top_k[:, None] <= 0) | (place < top_k[:, None])
    is_kept &= p >= min_p[:, None].double() * p[:, :1]
    p = p * is_kept
    p = p / p.sum(-1, keepdim=True)
    # a token stays while the mass before it is short of top_p, so the first always stays
    p = p * ((p.cumsum(-1) - p) < top_p[:, None].double())
    mass = p.cumsum(-1)
    drawn = torch.searchsorted(mass, uniform[:, None] * mass[:, -1:], right=True).squeeze(1)
    last = (p > 0).sum(-1) - 1  # rounding must not draw a dropped token
    drawn = torch.where(is_greedy, 0, torch.minimum(drawn, last))
    ids = order.gather(1, drawn[:, None]).squeeze(1)
    return ids.masked_fill(is_closed, NONE_OPEN).masked_fill(is_broken, NOT_FINITE)
