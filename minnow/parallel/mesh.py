"""axes tp, dp, ep, cp and their groups; Mesh.single() for one device"""

from dataclasses import dataclass
from typing import Literal, Self

Axis = Literal["tp", "dp", "ep", "cp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Where this process stands among the ranks.

    Attributes:
        num_ranks: ranks along each axis.
        rank: this process's place along each axis.
    """

    num_ranks: tuple[tuple[Axis, int], ...]
    rank: tuple[tuple[Axis, int], ...]

    @classmethod
    def single(cls) -> Self:
        """One device: every axis has one rank."""
        axes: tuple[Axis, ...] = ("tp", "dp", "ep", "cp")
        return cls(num_ranks=tuple((a, 1) for a in axes), rank=tuple((a, 0) for a in axes))

    def ranks_of(self, axis: Axis) -> int:
        """Ranks along an axis."""
        return dict(self.num_ranks)[axis]

    def share(self, count: int, axis: Axis) -> int:
        """How many of `count` whole things (heads, experts) a rank of the axis holds; at least one."""
        return max(1, count // self.ranks_of(axis))
