"""Linear, Norm, Embedding: thin modules over bound operations"""

import torch
from torch import Tensor, nn

from minnow.formats.quantized import Weight
from minnow.kernels.registry import Kernels

# Every module with weights of its own has `weight_names`, the canonical names, and `weights`,
# which checkpoint/load.py fills in the same order.


class Linear(nn.Module):
    """y = x @ W^T over row segments that stay where the checkpoint has them."""

    def __init__(self, kernels: Kernels, *names: str, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.kernels, self.dtype = kernels, dtype
        self.weight_names = names
        self.weights: tuple[Weight, ...] = ()

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T D] -> [T sum of rows], in `dtype` or that of x."""
        y: Tensor = self.kernels.linear(x_TD, self.weights, self.dtype)
        return y


class Norm(nn.Module):
    """Root-mean-square norm over the last dim; `offset` is 1 in the Gemma form."""

    def __init__(self, kernels: Kernels, name: str, eps: float, offset: float) -> None:
        super().__init__()
        self.kernels, self.eps, self.offset = kernels, eps, offset
        self.weight_names = (name,)
        self.weights: tuple[Weight, ...] = ()

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T D] -> [T D]."""
        y: Tensor = self.kernels.norm(x_TD, self.weights[0], self.eps, self.offset)
        return y


class HeadNormRope(nn.Module):
    """Per-head norm (left out without a name) and rotary position of queries or keys.

    Args:
        is_mixed: a Hadamard matrix follows; `shift` names what is taken off before it.
    """

    def __init__(
        self,
        kernels: Kernels,
        name: str | None,
        inv_freq: Tensor,
        eps: float,
        offset: float,
        *,
        is_mixed: bool = False,
        shift: str | None = None,
    ) -> None:
        super().__init__()
        self.kernels, self.inv_freq, self.eps, self.offset, self.is_mixed = kernels, inv_freq, eps, offset, is_mixed
        self._has_norm, self._has_shift = name is not None, shift is not None
        self.weight_names = tuple(one for one in (name, shift) if one is not None)
        self.weights: tuple[Weight, ...] = ()

    @property
    def norm(self) -> Weight | None:
        """[H], or None."""
        return self.weights[0] if self._has_norm else None

    @property
    def shift(self) -> Weight | None:
        """[N H] in one row, or None."""
        return self.weights[-1] if self._has_shift else None

    def forward(self, x_TNH: Tensor, positions_T: Tensor) -> Tensor:
        """[T N H] -> [T N H]."""
        shift = None if self.shift is None else self.shift.view(x_TNH.shape[1:])  # type: ignore[union-attr]
        y: Tensor = self.kernels.qk_norm_rope(
            x_TNH, self.norm, positions_T, self.inv_freq, self.eps, self.offset, shift, self.is_mixed
        )
        return y


class Embedding(nn.Module):
    """Token ids to rows of the table; without a name somebody else's."""

    def __init__(self, kernels: Kernels, name: str | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.kernels, self.dtype = kernels, dtype
        self.weight_names = () if name is None else (name,)
        self.weights: tuple[Weight, ...] = ()

    def forward(self, ids_T: Tensor) -> Tensor:
        """i32 [T] -> dtype [T D]."""
        x: Tensor = self.kernels.embed(ids_T, self.weights[0], self.dtype)
        return x
