"""counts calls and bytes of a step (tests and bench)"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from minnow.formats.quantized import Quantized
from minnow.kernels.registry import Kernels, operations


class CallCount:
    """Calls of each operation, and the bytes of the tensors handed to it.

    `CallCount().wrap(kernels)` gives kernels that count into it.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.input_bytes: Counter[str] = Counter()

    def wrap(self, kernels: Kernels) -> Kernels:
        """The same kernels, counted."""
        functions = {name: self._counted(name, getattr(kernels, name)) for name in operations()}
        return Kernels(functions, kernels.choices, kernels.target)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.calls[name] += 1
            self.input_bytes[name] += sum(_num_bytes(a) for a in (*args, *named.values()))
            return function(*args, **named)

        return call


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Quantized):
        return value.num_bytes
    if isinstance(value, tuple | list):
        return sum(_num_bytes(v) for v in value)
    return 0
