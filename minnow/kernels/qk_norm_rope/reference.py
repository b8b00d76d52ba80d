"""qk_norm_rope, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def qk_norm_rope(
    x: Tensor,
    w: Tensor | None,
    positions: Tensor,
    inv_freq: Tensor,
    eps: float,
    offset: float,
    mix: Tensor | None = None,
) -> Tensor:
    """Root-mean-square norm of each head, rotate its first 2R dims by position, mix; one rounding, at the end.

    Args:
        x: bf16|f32 [T N H].
        w: [H] shared by the heads, or None for no norm.
        positions: i32 [T].
        inv_freq: f32 [R]; dims (j, j + R) rotate together, dims from 2R on pass through.
        eps, offset: of the norm; the weight used is offset + w.
        mix: f32|bf16 [M H H], each for N/M heads in a row: the head is multiplied by its matrix. Those of queries and
            keys are chosen so that products stay what they are, and what one scale covers in a cache is alike.

    Returns:
        same dtype [T N H].

    Source: RoFormer (rotary embedding, half-split pairs as in GPT-NeoX); per-head norm of MiniMax-M3; what matrices:
        `balance` in minnow/tune/mixing.py.
    """
    y = x.float()
    if w is not None:
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * (offset + w.float())
    half = inv_freq.shape[0]
    angle = positions.float()[:, None, None] * inv_freq
    cos, sin = angle.cos(), angle.sin()
    first, second, rest = y[..., :half], y[..., half : 2 * half], y[..., 2 * half :]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    if mix is not None:
        by_head = mix.float().repeat_interleave(x.shape[1] // len(mix), 0)
        turned = (turned.transpose(0, 1) @ by_head).transpose(0, 1)
    return turned.to(x.dtype)
