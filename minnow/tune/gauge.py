"""the same attention from other projections: keys whose rounding to NVFP4 disturbs it least"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minnow.formats import nvfp4
from minnow.tune.attend import attend_densely
from minnow.tune.target import Target

_SCALES = (1.0, 0.5, 2**-0.5, 2**0.5, 2.0)  # tried for each pair, as factors of what it has
_ANGLES = (0.0, -math.pi / 8, math.pi / 8, -math.pi / 4, math.pi / 4)  # and added to what it has
_SWEEPS = 2
_SLOW_SHARE = 1 / 2  # of the pairs: the others turn so fast that all their dims are alike
_STILL_SHARE = 3 / 16  # of the pairs hardly turn, so where their two dims point matters
_NEAR = 32  # tokens; an error that as many neighbours share changes their attention little


@torch.no_grad()
def gauged(target: Target, ids_T: Tensor) -> dict[str, Tensor]:
    """Query and key projections with the products of before, chosen so that NVFP4 keys err less.

    Two dims that the rotary embedding turns together can be scaled and turned in the keys, and the other way in the
    queries: products stay. Rounding does not: sixteen dims share one scale, so a pair that queries hardly look at need
    not set it, and one that they look at closely should be large.

    Args:
        target: in f32. Where a norm of each head follows the projections, scales would be lost in it: nothing is done.
        ids_T: i64 [T], text to measure queries and keys on; 32 or more.

    Returns:
        f32 by our names: q_proj and k_proj of each layer.
    """
    config = target.config
    spread = config.num_attention_heads // config.num_key_value_heads
    found: dict[str, Tensor] = {}

    def look(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = f"model.layers.{layer}.self_attn."
        keys, queries = target.weights[f"{at}k_proj"], target.weights[f"{at}q_proj"]
        if not config.use_qk_norm:
            looked_GH = torch.unflatten(q[0].square().mean(1), 0, (-1, spread)).mean(1)
            scale, angle = _choose(k[0], looked_GH, config.rotary_dim // 2)
            keys = _turned(keys, scale, angle, config.head_dim)
            inverse, same = (values.repeat_interleave(spread, 0) for values in (1 / scale, angle))
            queries = _turned(queries, inverse, same, config.head_dim)
        found[f"{at}q_proj"], found[f"{at}k_proj"] = queries, keys
        return attend_densely(layer, x, q, k, v)

    target.forward(ids_T[None], attend=look)
    return found


def _choose(k_GTH: Tensor, looked_GH: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Scale and angle of each pair, f32 [G half] each: pair by pair, what disturbs least.

    Args:
        looked_GH: mean square of the queries; both dims of a pair count as its mean.
    """
    pair_GP = (looked_GH[:, :half] + looked_GH[:, half : 2 * half]) / 2
    scale, angle = torch.ones(len(k_GTH), half), torch.zeros(len(k_GTH), half)
    for _ in range(_SWEEPS):
        for pair in range(round(half * (1 - _SLOW_SHARE)), half):
            tried = scale.repeat(len(_SCALES), 1, 1)
            tried[:, :, pair] *= torch.tensor(_SCALES)[:, None]
            scale[:, pair] = _best(tried[:, :, pair], [_noise(k_GTH, pair_GP, t, angle) for t in tried])
            if pair >= round(half * (1 - _STILL_SHARE)):
                tried = angle.repeat(len(_ANGLES), 1, 1)
                tried[:, :, pair] += torch.tensor(_ANGLES)[:, None]
                angle[:, pair] = _best(tried[:, :, pair], [_noise(k_GTH, pair_GP, scale, t) for t in tried])
    return scale, angle


def _best(values_CG: Tensor, noises: list[Tensor]) -> Tensor:
    """Of candidates for each head, the one with the least noise: [G]."""
    return values_CG.gather(0, torch.stack(noises).argmin(0, keepdim=True))[0]


def _noise(k_GTH: Tensor, pair_GP: Tensor, scale_GP: Tensor, angle_GP: Tensor) -> Tensor:
    """Mean square of what rounding adds to a product of queries with keys that are scaled and turned: f32 [G]."""
    half = scale_GP.shape[1]
    real_GTP, other_GTP, rest = k_GTH[..., :half], k_GTH[..., half : 2 * half], k_GTH[..., 2 * half :]
    cos_GTP, sin_GTP = (scale_GP * angle_GP.cos())[:, None], (scale_GP * angle_GP.sin())[:, None]
    turned = (real_GTP * cos_GTP - other_GTP * sin_GTP, other_GTP * cos_GTP + real_GTP * sin_GTP, rest)
    keys_GTH = torch.cat(turned, dim=-1)
    error_GTH = nvfp4.decode(nvfp4.encode(keys_GTH)) - keys_GTH
    near_GKNH = torch.unflatten(error_GTH[:, : error_GTH.shape[1] // _NEAR * _NEAR], 1, (-1, _NEAR))
    square_GH = (near_GKNH - near_GKNH.mean(2, keepdim=True)).square().mean((1, 2))
    noise_G: Tensor = ((square_GH[:, :half] + square_GH[:, half : 2 * half]) * pair_GP / scale_GP.square()).sum(-1)
    return noise_G


def _turned(weight_OI: Tensor, scale_GP: Tensor, angle_GP: Tensor, width: int) -> Tensor:
    """Rows of a projection with each pair scaled and turned."""
    rows_GHI = torch.unflatten(weight_OI, 0, (-1, width))
    half = scale_GP.shape[1]
    real, other, rest = rows_GHI[:, :half], rows_GHI[:, half : 2 * half], rows_GHI[:, 2 * half :]
    cos, sin = (scale_GP * angle_GP.cos())[..., None], (scale_GP * angle_GP.sin())[..., None]
    return torch.cat((real * cos - other * sin, other * cos + real * sin, rest), dim=1).flatten(0, 1)
