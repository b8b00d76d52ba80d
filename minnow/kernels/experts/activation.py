"""Activation: which gated unit, with its constants"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """silu: silu(gate) * up. swigluoai: (clamp(up) + beta) * min(gate) * sigmoid(alpha * min(gate))."""

    kind: Literal["silu", "swigluoai"]
    alpha: float = 1.702
    limit: float = 7.0
    beta: float = 1.0
