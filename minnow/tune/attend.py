"""ways for a layer to attend: exactly, through a rounded cache, over chosen blocks"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minnow.config.model import SparseConfig
from minnow.formats import nvfp4

Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(layer, x [S T D] after the norm, q [S N T H], k [S G T H], v [S G T H]) -> [S N T H], causally."""

Index = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(layer, x [S T D] after the norm) -> index queries [S I T J] and the index key [S 1 T J], rotated."""

_CHUNK_QUERIES = 512


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return nvfp4.decode(nvfp4.encode(x)).to(x.dtype)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def straight_through(x: Tensor) -> Tensor:
    """NVFP4 and back, with the gradient of the identity: [... W] -> the same dtype, which holds every value exactly."""
    rounded: Tensor = _Rounded.apply(x)  # type: ignore[no-untyped-call]
    return rounded


def attend_densely(_: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over all positions with keys and values as they are; an Attend."""
    return functional.scaled_dot_product_attention(q, spread(k, q), spread(v, q), is_causal=True)


def attend_rounded(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over all positions, keys and values through an NVFP4 cache; an Attend."""
    return attend_densely(layer, x, q, straight_through(k), straight_through(v))


def sparsely(index: Index, sparse: SparseConfig, *, is_rounded: bool) -> Attend:
    """Attention over the blocks that the index heads choose.

    Args:
        is_rounded: keys, values and index keys go through an NVFP4 cache.
    """

    def attend(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        index_q, index_k = index(layer, x)
        if is_rounded:
            k, v, index_k = straight_through(k), straight_through(v), straight_through(index_k)
        k, v = spread(k, q), spread(v, q)
        parts = []
        for start in range(0, q.shape[2], _CHUNK_QUERIES):
            place = torch.arange(start, min(start + _CHUNK_QUERIES, q.shape[2]))
            seen = int(place[-1]) + 1
            scores = block_scores(index_q[:, :, place], index_k[:, :, :seen], place, sparse.block_size)
            is_chosen = choose(scores, place, sparse).repeat_interleave(sparse.block_size, dim=-1)[..., :seen]
            is_seen = is_chosen & (torch.arange(seen) <= place[:, None])
            mask = spread(torch.zeros(is_seen.shape, dtype=q.dtype).masked_fill(~is_seen, -torch.inf), q)
            parts.append(
                functional.scaled_dot_product_attention(q[:, :, place], k[:, :, :seen], v[:, :, :seen], attn_mask=mask)
            )
        return torch.cat(parts, dim=2)

    return attend


def block_scores(index_q: Tensor, index_k: Tensor, place: Tensor, block_size: int) -> Tensor:
    """The largest product of each index query with the keys of each block; kernels.index_score is the definition.

    Args:
        index_q: [S I Q J] of queries at the positions `place` [Q].
        index_k: [S 1 T J] of all positions up to the last of them.

    Returns:
        f32 [S I Q B], -inf where a block has no visible key.
    """
    products = (index_q @ index_k.transpose(-1, -2)).float()
    products = products.masked_fill(torch.arange(index_k.shape[2]) > place[:, None], -torch.inf)
    return _blocks(products, block_size, -torch.inf).amax(-1)


def block_mass(q: Tensor, k: Tensor, place: Tensor, block_size: int) -> Tensor:
    """The share of the attention that each block gets, as the mean over the query heads of a key head.

    Args:
        q: [S N Q H] of queries at the positions `place` [Q].
        k: [S G T H] of all positions.

    Returns:
        f32 [S G Q B].
    """
    scores = (q @ spread(k, q).transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.arange(k.shape[2]) > place[:, None], -torch.inf)
    mass = _blocks(scores.softmax(-1), block_size, 0.0).sum(-1)
    return torch.unflatten(mass, 1, (k.shape[1], -1)).mean(2)


def choose(scores: Tensor, place: Tensor, sparse: SparseConfig) -> Tensor:
    """Which blocks a query attends to; kernels.block_topk is the definition.

    Args:
        scores: f32 [S I Q B].
        place: [Q], the queries' positions.

    Returns:
        bool [S I Q B].
    """
    block, local = torch.arange(scores.shape[-1]), (place // sparse.block_size)[:, None]
    is_visible = block <= local
    is_forced = is_visible & ((block > local - sparse.num_local_blocks) | (block < sparse.num_init_blocks))
    ranked = scores.masked_fill(~is_visible, -torch.inf).masked_fill(is_forced, torch.inf)
    best = ranked.sort(dim=-1, descending=True, stable=True).indices[..., : sparse.num_blocks]
    return torch.zeros(scores.shape, dtype=torch.bool).scatter(-1, best, True) & is_visible


def spread(heads_SGTH: Tensor, q_SNTH: Tensor) -> Tensor:
    """Key or value heads repeated for each query head that uses them: [S N T H]."""
    return heads_SGTH.repeat_interleave(q_SNTH.shape[1] // heads_SGTH.shape[1], dim=1)


def _blocks(x: Tensor, block_size: int, fill: float) -> Tensor:
    """[... T] -> [... B block_size], the last block filled up."""
    padded = functional.pad(x, (0, -x.shape[-1] % block_size), value=fill)
    return torch.unflatten(padded, -1, (-1, block_size))
