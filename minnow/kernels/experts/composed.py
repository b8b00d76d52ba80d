"""experts, from the bound linear"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels.contract import Bound, Target
from minnow.kernels.experts.activation import Activation
from minnow.kernels.experts.reference import activate

_Expert = tuple[Weight, Weight, Weight]


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def compose(kernels: Bound) -> Callable[..., Tensor]:
    """The operation on top of whatever `linear` was bound to; see reference.py."""

    def experts(
        x: Tensor, ids: Tensor | None, weights: Tensor | None, table: Sequence[_Expert], activation: Activation
    ) -> Tensor:
        def one(rows: Tensor, expert: _Expert) -> Tensor:
            gate, up = kernels.linear(rows, expert[:2]).float().chunk(2, dim=1)
            inner = activate(gate, up, activation).to(rows.dtype)
            y: Tensor = kernels.linear(inner, expert[2:], torch.float32)
            return y

        if ids is None or weights is None:
            return one(x, table[0]).to(x.dtype)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in ids.unique().tolist():
            token, place = (ids == expert).nonzero(as_tuple=True)
            out.index_add_(0, token, one(x[token], table[expert]) * weights[token, place, None])
        return out.to(x.dtype)

    return experts
