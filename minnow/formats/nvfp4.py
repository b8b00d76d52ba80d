"""NVFP4: E2M1 codes, an E4M3 scale for every 16 values, one multiplier for the tensor"""

from __future__ import annotations

import torch
from torch import Tensor

from minnow.formats import e2m1
from minnow.formats.quantized import Quantized
from minnow.formats.scales import E4M3_LARGEST, as_global_scale, largest, largest_of_weight, split_blocks, to_e4m3
from minnow.formats.spec import SPEC_BY_NAME

SPEC = SPEC_BY_NAME["nvfp4"]


def encode(values: Tensor, global_scale: float | Tensor | None = None) -> Quantized:
    """Encode by the rule of the K/V and index-key caches.

    For each 16 values: scale = E4M3(amax / 6 / global_scale), with no floor; code = E2M1(x * r) with
    r = 1 / (scale * global_scale). Where the scale rounds to zero every code is 0 (+0). Magnitudes above
    2688 * global_scale, infinity among them, saturate; a NaN makes its block's scale NaN and its codes 7.

    Args:
        values: f32|bf16|f16 [..., W]; the caches hand over bf16.
        global_scale: the DECODE side: every decoded value is multiplied by it. None for 1.

    Returns:
        codes u8 [..., W/2], scales float8_e4m3fn [..., W/16].

    Raises:
        FormatError: W is no multiple of 16, or the global scale is no positive number.

    Source: the quantiser of the published engines for M3.1 caches (docs/concepts/formats.md has examples).
    """
    blocks = split_blocks(values, SPEC)
    decode_scale = as_global_scale(global_scale, values.device)
    wanted = largest(blocks) / e2m1.LARGEST
    scales = to_e4m3(wanted if decode_scale is None else wanted / decode_scale)
    step = scales.to(torch.float32)
    scaled = blocks * (1.0 / (step if decode_scale is None else step * decode_scale)).unsqueeze(-1)
    return _quantized(scaled, scales, decode_scale)


def encode_weight(values: Tensor, amax: Tensor | None = None) -> Quantized:
    """Encode a weight, whose blocks use the whole range of the scale.

    The encode scale is Gw = 448 * 6 / (largest magnitude of the tensor), 1 where that is zero or too small to
    invert. For each 16 values: scale = E4M3(Gw * (amax / 6)), code = E2M1(x / (scale / Gw)).

    Args:
        values: f32|bf16|f16 [..., W].
        amax: the largest magnitude to reckon with, f32 scalar tensor: of the whole tensor where values are some of
            its rows, of two tensors that share a global scale. None takes that of values.

    Returns:
        codes u8 [..., W/2], scales float8_e4m3fn [..., W/16], and as global_scale the DECODE multiplier 1 / Gw.
        A checkpoint's `weight_global_scale` (compressed-tensors) is the encode side, Gw = 1 / global_scale;
        ModelOpt's `weight_scale_2` is global_scale itself.

    Raises:
        FormatError: W is no multiple of 16, or a value is NaN or infinite.

    Source: compressed-tensors' NVFP4 weights; the same bytes, but that blocks whose scale rounds to zero keep
        scale 0 here (there 0.125; every value is zero either way).
    """
    blocks = split_blocks(values, SPEC)
    amax = largest_of_weight(values, SPEC.name) if amax is None else amax
    encode_scale = E4M3_LARGEST * e2m1.LARGEST / amax
    encode_scale = torch.where(encode_scale.isfinite(), encode_scale, 1.0)
    scales = to_e4m3(encode_scale * (largest(blocks) / e2m1.LARGEST))
    scaled = blocks / (scales.to(torch.float32) / encode_scale).unsqueeze(-1)
    return _quantized(scaled, scales, encode_scale.reciprocal())


def decode(quantized: Quantized) -> Tensor:
    """The values: E2M1 times E4M3 exactly, then, where there is one, times the global scale, rounded once.

    Args:
        quantized: logical shape [..., W].

    Returns:
        f32 [..., W].
    """
    assert quantized.scales is not None
    values = e2m1.unpack_values(quantized.codes)
    blocks = torch.unflatten(values, -1, (quantized.scales.shape[-1], SPEC.block))
    blocks.mul_(quantized.scales.to(torch.float32).unsqueeze(-1))
    if quantized.global_scale is not None:
        values.mul_(quantized.global_scale)
    return values


def to_fp8(quantized: Quantized) -> Tensor:
    """The FP8 operands of GPU kernels: each decoded value rounded once more, to E4M3 (nearest even, saturating).

    Args:
        quantized: logical shape [..., W].

    Returns:
        float8_e4m3fn [..., W].
    """
    return to_e4m3(decode(quantized))


def _quantized(scaled: Tensor, scales: Tensor, global_scale: Tensor | None) -> Quantized:
    """Round scaled f32 [..., W/16, 16] to codes, 0 (never -0) throughout a block of scale zero."""
    scaled = torch.where((scales.to(torch.float32) == 0).unsqueeze(-1), 0.0, scaled)
    codes = e2m1.pack(e2m1.round_codes(scaled.flatten(-2)))
    return Quantized(spec=SPEC, codes=codes, scales=scales, global_scale=global_scale)
