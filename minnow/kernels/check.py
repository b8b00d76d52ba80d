"""verify dtypes and axes of a call against the contract"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized
from minnow.kernels.contract import Argument, Op, parse

_DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def check_call(op: Op, arguments: Mapping[str, Any]) -> None:
    """Refuse a call whose dtypes or axes disagree with the contract.

    Raises:
        TypeError: "norm.w: axis D is 7, elsewhere 8", or a wrong dtype or rank.
    """
    seen: dict[str, int] = {}
    for name, text in op.inputs.items():
        entry, value = parse(text), arguments.get(name)
        where = f"{op.name}.{name}"
        if value is None:
            if not entry.is_optional:
                raise TypeError(f"{where} is missing")
        elif entry.kind == "weights":
            for i, weight in enumerate(value):
                _check_tensor(f"{where}[{i}]", Argument(kind="weight", axes=("*", *entry.axes)), weight, seen)
        elif entry.kind in ("tensor", "weight", "cache"):
            _check_tensor(where, entry, value, seen)


def _check_tensor(where: str, entry: Argument, value: Any, seen: dict[str, int]) -> None:
    if entry.kind == "tensor":
        if not isinstance(value, Tensor):
            raise TypeError(f"{where} is {type(value).__name__}; a tensor is needed")
        if value.dtype not in [_DTYPES[d] for d in entry.dtypes]:
            raise TypeError(f"{where} has dtype {value.dtype}; the contract says {' or '.join(entry.dtypes)}")
    elif not isinstance(value, Tensor | Quantized):
        raise TypeError(f"{where} is {type(value).__name__}; a tensor or Quantized is needed")
    shape = tuple(value.shape)
    if entry.axes and len(shape) != len(entry.axes):
        raise TypeError(f"{where} has shape {list(shape)}; the contract says [{' '.join(entry.axes)}]")
    for axis, length in zip(entry.axes, shape, strict=True):
        if axis != "*" and seen.setdefault(axis, length) != length:
            raise TypeError(f"{where}: axis {axis} is {length}, elsewhere {seen[axis]}")
