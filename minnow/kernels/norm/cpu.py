"""C++ for the CPU, through the native library"""

import torch
from torch import Tensor

from minnow.kernels import native
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
    if x.stride(-1) != 1:
        x = x.contiguous()
    assert w.shape == x.shape[1:]
    w = w.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype)
    native.function("norm", "pppiiiiiff")(
        x.data_ptr(), w.data_ptr(), y.data_ptr(), native.dtype_code(x.dtype), native.dtype_code(w.dtype),
        x.shape[0], x.shape[1], x.stride(0), eps, offset,
    )  # fmt: skip
    return y
