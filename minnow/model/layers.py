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
        mix: names the matrices that follow.
    """

    def __init__(
        self,
        kernels: Kernels,
        name: str | None,
        inv_freq: Tensor,
        eps: float,
        offset: float,
        mix: str | None = None,
    ) -> None:
        super().__init__()
        self.kernels, self.inv_freq, self.eps, self.offset = kernels, inv_freq, eps, offset
        self._names = (name, mix)
        self.weight_names = tuple(one for one in self._names if one is not None)
        self.weights: tuple[Weight, ...] = ()

    @property
    def parts(self) -> tuple[Tensor | None, Tensor | None]:
        """Norm [H] and mix [M H H], None where there is none."""
        held = iter(self.weights)
        norm, mix = (None if name is None else next(held) for name in self._names)
        return norm, mix  # type: ignore[return-value]

    def forward(self, x_TNH: Tensor, positions_T: Tensor) -> Tensor:
        """[T N H] -> [T N H]."""
        norm, mix = self.parts
        y: Tensor = self.kernels.qk_norm_rope(x_TNH, norm, positions_T, self.inv_freq, self.eps, self.offset, mix)
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
