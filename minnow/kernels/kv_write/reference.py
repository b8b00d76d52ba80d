"""kv_write, in plain torch: the definition"""

from torch import Tensor, uint8

from minnow.formats.fp8 import encode as encode_fp8
from minnow.formats.nvfp4 import encode as encode_nvfp4
from minnow.formats.quantized import Weight
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def kv_write(values: Tensor, cache: Weight, slots: Tensor) -> Weight:
    """Write T tokens into their slots, quantised to the cache's format; the cache changes in place.

    Args:
        values: bf16|f32 [T G H].
        cache: [B G L H]; a tensor, or a Quantized of fp8 or nvfp4, whose global scale (1 without one) is heeded.
        slots: [T], block * L + place in the block; -1 writes nothing.

    Returns:
        cache.
    """
    block_length = cache.shape[2]
    kept = slots >= 0
    slots, values = slots[kept].long(), values[kept]
    block, place = slots // block_length, slots % block_length
    if isinstance(cache, Tensor):
        cache[block, :, place] = values.to(cache.dtype)
        return cache
    scale = cache.global_scale
    if cache.spec.name == "nvfp4":
        encoded = encode_nvfp4(values, global_scale=scale)
    else:
        encoded = encode_fp8(values, scale=1.0 if scale is None else scale)
    for stored, part in ((cache.codes, encoded.codes), (cache.scales, encoded.scales)):
        if stored is not None and part is not None:
            stored.view(uint8)[block, :, place] = part.view(uint8)
    return cache
