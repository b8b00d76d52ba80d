"""matrices for queries and keys, so that rounding keys moves their products least"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from minnow.tune.attend import attend_densely
from minnow.tune.target import Target

_LEAST = 1e-5  # of the largest moment: dims that are used less are not stretched further


def mixed(target: Target, mixing: dict[str, Tensor]) -> Target:
    """The same model, its keys mixed and its queries mixed the inverse way, so that their products stay what they are.

    docs/experiments/2026-11-30-what-training-needs.md has what that is worth.
    """
    config = replace(target.config, use_qk_mix=target.config.use_qk_mix or bool(mixing))
    return Target(config, {**target.weights, **mixing}, target.dtype, target.start)


@torch.no_grad()
def measure_mixing(target: Target, windows: Tensor) -> dict[str, Tensor]:
    """Matrices for every layer, from windows i64 [count T] of text: by our names; none where heads are mixed already.

    `k_mix` bf16 [G H H] is what `balance` finds, `q_mix` what undoes it in products. The windows lie all over the
    context: dims that turn slowly hardly change in the first of them, and matrices that were measured there would
    stretch them until they dwarf all others in the last.
    """
    if target.config.use_qk_mix:
        return {}
    sums: dict[int, tuple[Tensor, Tensor]] = {}

    def look(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = sums.get(layer, (torch.zeros(()), torch.zeros(())))
        sums[layer] = before[0] + queries_that_matter(q[0], k[0], v[0]), before[1] + _moments(k[0].float())
        return attend_densely(layer, x, q, k, v)

    for ids, start in zip(windows, starts(target, windows), strict=True):
        target.moved(start).forward(ids[None], attend=look)
    mixing: dict[str, Tensor] = {}
    for layer, moments in sums.items():
        k_mix = torch.stack([balance(*pair) for pair in zip(*moments, strict=True)]).bfloat16()
        q_mix = torch.linalg.inv(k_mix.double()).transpose(1, 2).bfloat16()
        at = f"model.layers.{layer}.self_attn."
        mixing |= {at + "q_mix": q_mix, at + "k_mix": k_mix}
    return mixing


def starts(target: Target, windows: Tensor) -> list[int]:
    """Where windows i64 [count T] begin, so that they are spread over all positions of the model."""
    last = last_start(target, windows.shape[1])
    return [last * i // max(len(windows) - 1, 1) for i in range(len(windows))]


def last_start(target: Target, num_tokens: int) -> int:
    """The last position at which a window of so many tokens may begin."""
    return max(target.config.max_position_embeddings - num_tokens, 0)


def balance(of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """The matrix M of mixed keys k M under which rounding them moves a head's scores least.

    With errors of one size in all dims of k M, a score's error is as tr(M^T K M) tr(M^-1 Q M^-T); that is least where
    both second moments, K of keys and Q of queries, become the same. Turned so that they are diagonal, and then mixed
    by a Hartley matrix: no dim stands out among the sixteen that share a scale.

    Args:
        of_queries, of_keys: second moments f32 [H H].

    Returns:
        f32 [H H].
    """
    root, inverse = _power(of_keys, 0.5), _power(of_keys, -0.5)
    values, vectors = torch.linalg.eigh(inverse @ _power(root @ of_queries.double() @ root, 0.5) @ inverse)
    balanced = values.clamp(min=values.max() * _LEAST).sqrt()[:, None] * vectors.T
    _, axes = torch.linalg.eigh(balanced @ of_keys.double() @ balanced.T)
    width = len(axes)
    turns = 2 * math.pi / width * torch.outer(*2 * [torch.arange(width, dtype=torch.float64)])
    mix: Tensor = balanced.T @ axes @ (turns.cos() + turns.sin()) / math.sqrt(width)
    return mix.float()


def queries_that_matter(q_NTH: Tensor, k_GTH: Tensor, v_GTH: Tensor) -> Tensor:
    """Second moments of queries, each weighed by what errors of its scores do to what it attends to: f32 [G H H].

    Errors e of the scores, one size and independent, move the output o by the sum of p e (v - o); its square is the sum
    of p^2 |v - o|^2.
    """
    found = []
    groups = torch.split(q_NTH.float(), len(q_NTH) // len(k_GTH))
    for of_group, k, v in zip(groups, k_GTH.float(), v_GTH.float(), strict=True):
        moments, total = torch.zeros(()), torch.zeros(())
        for q in of_group:
            scores = (q @ k.T * k.shape[-1] ** -0.5).masked_fill(torch.ones(len(q), len(k)).triu(1) > 0, -torch.inf)
            shares = scores.softmax(-1)
            out = shares @ v
            apart = v.square().sum(-1) - 2 * out @ v.T + out.square().sum(-1, keepdim=True)
            weights = (shares.square() * apart.clamp(min=0.0)).sum(-1)  # rounding may leave less than nothing
            moments, total = moments + (q * weights[:, None]).T @ q, total + weights.sum()
        found.append(moments / total.clamp(min=1e-30))
    return torch.stack(found)


def _moments(x: Tensor) -> Tensor:
    """[G T H] -> f32 [G H H], the mean of x x^T."""
    return x.transpose(1, 2) @ x / x.shape[1]


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive matrix: f64."""
    values, vectors = torch.linalg.eigh(matrix.double())
    powers: Tensor = vectors * values.clamp(min=values.max() * _LEAST) ** exponent @ vectors.T
    return powers
