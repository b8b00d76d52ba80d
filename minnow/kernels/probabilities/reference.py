"""probabilities, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The distribution of each row that `sample` draws its token from.

    Args:
        logits: f32 [S V]; -inf bans a token.
        temperature: f32 [S]; 0 gives all to the largest logit, the lower id among equals.
        top_k, top_p, min_p: i64, f32, f32 [S], as of `sample`.

    Returns:
        f32 [S V], rows that sum to 1; NaN all through where a logit of the row is NaN or plus infinity, zeros where all
        are banned.
    """
    if logits.shape[0] == 0:
        return logits.clone()
    is_broken = (logits.isnan() | (logits == torch.inf)).any(-1)
    is_closed = (logits == -torch.inf).all(-1)
    logits = logits.masked_fill((is_broken | is_closed)[:, None], 0.0)
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    is_greedy = temperature <= 0
    heat = torch.where(is_greedy, 1.0, temperature)[:, None]
    p = ((ranked - ranked[:, :1]).double() / heat).softmax(-1)
    place = torch.arange(p.shape[-1], device=p.device)
    is_kept = torch.where(is_greedy[:, None], place < 1, (top_k[:, None] <= 0) | (place < top_k[:, None]))
    is_kept &= p >= min_p[:, None].double() * p[:, :1]
    p = p * is_kept
    p = p / p.sum(-1, keepdim=True)
    p = p * ((p.cumsum(-1) - p) < top_p[:, None].double())
    p = p / p.sum(-1, keepdim=True)
    p = torch.zeros_like(p).scatter_(1, order, p).float()
    return p.masked_fill(is_closed[:, None], 0.0).masked_fill(is_broken[:, None], torch.nan)
