"""kv_write on a CPU, in C++"""

import torch
from torch import Tensor

from minnow.formats.quantized import Weight
from minnow.kernels import native, words
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def kv_write(values: Tensor, cache: Weight, slots: Tensor) -> Weight:
    """Write T tokens into their slots, quantised to the cache's format; see reference.py."""
    _, num_heads, _, width = cache.shape
    assert values.shape[1:] == (num_heads, width)
    assert words.format_of(cache) in ("f32", "bf16", "fp8", "nvfp4")
    plain, places = values.float().contiguous(), slots.to(torch.int64).contiguous()
    native.function("kv_write", "pppi")(
        plain.data_ptr(), words.pack(*words.of_cache(cache)), places.data_ptr(), len(values)
    )
    return cache
