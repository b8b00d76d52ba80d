"""plain torch in f32, written to be obviously right; the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs everywhere."""
    return None


def norm(x: Tensor, w: Tensor, eps: float, offset: float) -> Tensor:
    """Scale each row to a root mean square of one, then by a weight for each column.

    Args:
        x: bf16 or f32 [T D].
        w: bf16 or f32 [D].
        eps: added to the mean square.
        offset: added to the weight: 1.0 where a checkpoint stores weights around zero (Gemma's form), else 0.0.

    Returns:
        [T D] in x's dtype, computed in f32 and rounded once.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", without its bias.
    """
    values = x.float()
    scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return (values * scale * (offset + w.float())).to(x.dtype)
