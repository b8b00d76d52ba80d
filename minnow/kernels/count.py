"""counts calls, bytes and host syncs of a step (tests and bench)"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minnow.formats.quantized import Quantized
from minnow.kernels.registry import Kernels, operations

_CPU = torch.device("cpu")

# torch operations whose result the host must wait for: `.item()`, `.tolist()`, and shapes that depend on values
_SYNCS = ("_local_scalar_dense", "nonzero", "_unique2", "masked_select")


class HostSyncs(TorchDispatchMode):
    """Counts waits for the device while it is entered; needs no device, but sees no `.tolist()` without one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count, then run."""
        name = function.overloadpacket.__name__
        is_copy = name == "_to_copy" and args[0].device.type != "cpu" and (kwargs or {}).get("device") == _CPU
        self.count += name in _SYNCS or is_copy
        return function(*args, **(kwargs or {}))


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
