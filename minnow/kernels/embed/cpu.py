"""embed on a CPU: C++ that decodes the rows"""

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def embed(ids: Tensor, table: Weight, dtype: torch.dtype) -> Tensor:
    """Look up and dequantise rows; see reference.py. An id outside the table gives a row of NaN."""
    plain = ids.to(torch.int32).contiguous()
    x = torch.empty(len(ids), table.shape[1])
    native.function("embed", "pppi")(plain.data_ptr(), words.pack(*words.of_weight(table)), x.data_ptr(), len(ids))
    return x.to(dtype)
