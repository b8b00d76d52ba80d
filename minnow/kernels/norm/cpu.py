"""C++ for the CPU, through the native library"""

import torch
from torch import Tensor

from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def norm(x: Tensor, w: Tensor, eps: float, offset: float) -> Tensor:
    """Scale each row to a root mean square of one, then by a weight for each column; see reference.py.

    Args:
        x: bf16 or f32 [T D]; rows may lie apart.
        w: bf16 or f32 [D].
        eps: added to the mean square.
        offset: added to the weight.

    Returns:
        [T D] in x's dtype, dense.
    """
    assert w.shape == x.shape[1:]
    plain, w = x.float().contiguous(), w.contiguous()
    y = torch.empty(x.shape)
    native.function("norm", "pppiiff")(
        plain.data_ptr(), words.pack(*words.of_weight(w)), y.data_ptr(), x.shape[0], x.shape[1], eps, offset
    )
    return y.to(x.dtype)
