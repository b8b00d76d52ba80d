"""what drafts lose against what the target expects, and the gradients of it"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from minnow.model.dspark import Drafter
from minnow.tune.blocks import Blocks

_DIVERGENCE, _DISTANCE = 0.3, 0.9
_DECAY = 4.0  # slots between two weights that differ by e
_ROWS = 256  # at a time, so that what lies between two products stays in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Means over rows, later slots of a block counting less.

    Attributes:
        divergence: - sum over what can be drafted of p log q, in nats.
        distance: sum over the vocabulary of |q - p|, 0 to 2: twice the chance that a draft is not kept.
        confidence: the confidence head's cross-entropy against the true chance.
        accepted: the true chance, f32 [R].
    """

    divergence: float
    distance: float
    confidence: float
    accepted: Tensor

    @property
    def total(self) -> float:
        """What is made small."""
        return _DIVERGENCE * self.divergence + _DISTANCE * self.distance + self.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Of each row: its two losses, and the gradient of their weighted sum by what made its logits."""

    divergence: Tensor
    distance: Tensor
    hidden: Tensor
    code: Tensor
    table: Tensor


def learn(drafter: Drafter, blocks: Blocks) -> Losses:
    """Add the gradients of a loss to the drafter's weights.

    Rows are weighed where the text before them is given (teacher forcing). The logits of all rows over what can be
    drafted, and all that is made of them, would not stay in a cache; so gradients by the logits are made at once, some
    rows at a time, and carried on to what the logits were made of.

    Source: DSpark's loss (DeepSpec), whose cross-entropy of the text's token is here that of the target's distribution,
        which says more a row, and counts three times as much.
    """
    weight_R = _row_weights(blocks)
    code_Rr, _ = drafter.markov.code(blocks.before, blocks.hidden, None)  # of a head that carries nothing between slots
    table_Wr, head_WD = drafter.markov.weights[1], drafter.head.weights[0]
    assert isinstance(table_Wr, Tensor) and isinstance(head_WD, Tensor) and drafter.confidence is not None
    rows = _weigh(blocks.hidden.detach(), code_Rr.detach(), table_Wr.detach(), head_WD, blocks, weight_R)
    accepted_R = 1 - rows.distance / 2
    seen_R = drafter.confidence(blocks.hidden, drafter.markov.look_up(blocks.before))
    missed_R = functional.binary_cross_entropy_with_logits(seen_R, accepted_R, reduction="none")
    confidence = (weight_R * missed_R).sum()
    torch.autograd.backward(
        (confidence, blocks.hidden, code_Rr, table_Wr), (torch.ones(()), rows.hidden, rows.code, rows.table)
    )
    return Losses(
        divergence=float((weight_R * rows.divergence).sum()),
        distance=float((weight_R * rows.distance).sum()),
        confidence=confidence.item(),
        accepted=accepted_R,
    )


def _row_weights(blocks: Blocks) -> Tensor:
    """f32 [R], 1 in all: later slots count less, and those that the text does not reach nothing."""
    weight_R = blocks.is_valid * torch.exp(-blocks.slot / _DECAY)
    return weight_R / weight_R.sum()


def _weigh(
    hidden_RD: Tensor, code_Rr: Tensor, table_Wr: Tensor, head_WD: Tensor, blocks: Blocks, weight_R: Tensor
) -> _Rows:
    """Losses and gradients of logits = hidden head^T + code table^T, q being their softmax.

    By the logits, sum |q - p| has the gradient q (s - q.s) with s the sign of q - p, and - p.log q has q sum(p) - p.
    """
    by_hidden, by_code, by_table = torch.empty_like(hidden_RD), torch.empty_like(code_Rr), torch.zeros_like(table_Wr)
    divergence_R, distance_R = torch.empty_like(weight_R), torch.empty_like(weight_R)
    for start in range(0, len(hidden_RD), _ROWS):
        rows = slice(start, min(start + _ROWS, len(hidden_RD)))
        logits_RW = torch.addmm(hidden_RD[rows] @ head_WD.T, code_Rr[rows], table_Wr.T)
        logits_RW -= logits_RW.logsumexp(-1, keepdim=True)
        p_RW = torch.addmm(-blocks.normaliser[rows][:, None], blocks.wanted[rows], head_WD.T).exp_()
        mass_R = p_RW.sum(-1)
        divergence_R[rows] = -(p_RW * logits_RW).sum(-1)
        q_RW = logits_RW.exp_()
        gap_RW = q_RW - p_RW
        slope_RW = gap_RW.sign()
        distance_R[rows] = (gap_RW * slope_RW).sum(-1) + (1 - mass_R).clamp(min=0)
        slope_RW -= (q_RW * slope_RW).sum(-1, keepdim=True)
        slope_RW.mul_(_DISTANCE).add_(_DIVERGENCE * mass_R[:, None]).mul_(q_RW).sub_(p_RW, alpha=_DIVERGENCE)
        slope_RW *= weight_R[rows][:, None]
        by_hidden[rows], by_code[rows] = slope_RW @ head_WD, slope_RW @ table_Wr
        by_table.addmm_(slope_RW.T, code_Rr[rows])
    return _Rows(divergence=divergence_R, distance=distance_R, hidden=by_hidden, code=by_code, table=by_table)
