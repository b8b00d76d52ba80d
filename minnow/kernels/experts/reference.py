"""experts, in plain torch: the definition"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.formats.quantized import Weight, decode
from minnow.kernels.contract import Target
from minnow.kernels.experts.activation import Activation


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def experts(
    x: Tensor,
    ids: Tensor | None,
    weights: Tensor | None,
    table: Sequence[tuple[Weight, Weight, Weight]],
    activation: Activation,
) -> Tensor:
    """y = sum over a token's experts of weight * down(act(gate x, up x)).

    Args:
        x: bf16|f32 [T D].
        ids: i64 [T A], experts of each token; None sends every token to expert 0 with weight 1.
        weights: f32 [T A].
        table: (gate [F D], up [F D], down [D F]) of each expert, in any format.
        activation: the gated unit between.

    Returns:
        same dtype [T D]. Products are rounded to it before and after the activation, as a chain of
        matrix products would; the sum over experts is in f32.
    """
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if ids is None or weights is None:
        return _one(x, table[0], activation).to(x.dtype)
    for expert in ids.unique().tolist():
        token, place = (ids == expert).nonzero(as_tuple=True)
        y.index_add_(0, token, _one(x[token], table[expert], activation) * weights[token, place, None])
    return y.to(x.dtype)


def _one(x: Tensor, parts: tuple[Weight, Weight, Weight], activation: Activation) -> Tensor:
    gate, up = ((x.float() @ decode(w).T).to(x.dtype).float() for w in parts[:2])
    inner = activate(gate, up, activation).to(x.dtype)
    return inner.float() @ decode(parts[2]).T


def activate(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """The gated unit, elementwise in f32.

    Source: swigluoai as in MiniMax-M3 (clamped gate and up, up offset by beta); silu as in Llama.
    """
    if activation.kind == "silu":
        return gate * torch.sigmoid(gate) * up
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return (up + activation.beta) * gate * torch.sigmoid(activation.alpha * gate)
