"""inputs of dense_attention for a case"""

from typing import Any

import torch

from minnow.kernels.paged import make_attention


def make(device: torch.device, **dims: Any) -> dict[str, Any]:
    """Random keys in a shuffled pool, the last queries of each context; dims as in the cases."""
    return make_attention(device, **dims)
