"""temperatures that make a confidence head say how often drafts are kept"""

from __future__ import annotations

import torch
from torch import Tensor

_GRID = torch.logspace(-3, 3, 49, base=2)  # 1/8 to 8
_BINS = 20


def temperatures(logits_AP: Tensor, survival_AP: Tensor) -> tuple[float, ...]:
    """One for each draft, chosen in order: with those before it fixed, it makes the error of the product least.

    Args:
        logits_AP: f32 [A P] of the confidence head at A places.
        survival_AP: f32 [A P], whether (or how likely) a draft and all before it are kept.

    Source: sequential temperature scaling of DSpark (arXiv 2607.05147).
    """
    found: list[float] = []
    before_A = torch.ones(len(logits_AP))
    for logits_A, survival_A in zip(logits_AP.T, survival_AP.T, strict=True):
        chances = [before_A * torch.sigmoid(logits_A / value) for value in _GRID]
        errors = [calibration_error(chance, survival_A) for chance in chances]
        best = min(range(len(_GRID)), key=errors.__getitem__)
        before_A = chances[best]
        found.append(round(float(_GRID[best]), 4))
    return tuple(found)


def calibration_error(predicted_A: Tensor, outcome_A: Tensor) -> float:
    """How far predictions are from outcomes in bins of similar predictions, weighed by their size."""
    bins = (predicted_A * _BINS).long().clamp(max=_BINS - 1)
    gap = torch.zeros(_BINS).index_add_(0, bins, predicted_A - outcome_A)
    return float(gap.abs().sum() / len(predicted_A))
