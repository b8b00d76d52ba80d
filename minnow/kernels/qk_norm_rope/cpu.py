"""qk_norm_rope on a CPU, in C++"""

import torch
from torch import Tensor

from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def qk_norm_rope(
    x: Tensor,
    w: Tensor | None,
    positions: Tensor,
    inv_freq: Tensor,
    eps: float,
    offset: float,
    mix: Tensor | None = None,
) -> Tensor:
    """Norm of each head, rotation by position, and a mix of its values; see reference.py."""
    num_tokens, num_heads, width = x.shape
    assert w is None or w.shape == (width,)
    assert 2 * len(inv_freq) <= width
    assert mix is None or (mix.shape[1:] == (width, width) and not num_heads % len(mix))
    y = torch.empty(x.shape).copy_(x)
    w = None if w is None else w.contiguous()
    norm = (0, 1, width, 0, 0, 0, 0) if w is None else words.of_weight(w)
    positions, inv_freq = positions.contiguous(), inv_freq.contiguous()
    mix = None if mix is None else mix.float().contiguous()
    mixing = (*words.of_optional(mix), 1 if mix is None else num_heads // len(mix))
    native.function("qk_norm_rope_write", "piipippiffpi")(
        y.data_ptr(), num_heads * width, num_tokens, words.pack(0, num_heads, *norm, True, 0, *mixing), 1,
        positions.data_ptr(), inv_freq.data_ptr(), len(inv_freq), eps, offset, None, False,
    )  # fmt: skip
    return y.to(x.dtype)
