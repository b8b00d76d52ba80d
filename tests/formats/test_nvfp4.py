"""NVFP4: golden blocks, both global-scale conventions, compressed-tensors and torchao, cases E01, E02, E07."""

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

from minnow.core.errors import FormatError
from minnow.formats import e2m1, nvfp4
from minnow.formats.quantized import Quantized
from tests.formats.samples import as_bytes, spread

BLOCK_A = [0.1, -0.2, 0.3, -0.4, 0.5, -0.75, 1.0, -1.25, 1.5, -2.0, 2.5, -3.0, 0.0, 0.05, -0.05, 3.25]
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]


def parts(encoded: Quantized) -> tuple[str, str]:
    """Scale and code bytes in hexadecimal."""
    assert encoded.scales is not None
    return as_bytes(encoded.scales).hex(), as_bytes(encoded.codes).hex()


def step(encoded: Quantized) -> Tensor:
    assert encoded.scales is not None
    return encoded.scales.to(torch.float32)


def row(*values: float) -> Tensor:
    """One block, filled up with zeros."""
    return torch.tensor([[*values, *[0.0] * (16 - len(values))]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_golden_a_block_and_fp8_operand(dtype: torch.dtype) -> None:
    encoded = nvfp4.encode(torch.tensor([BLOCK_A], dtype=dtype))
    assert parts(encoded) == ("31", "9091b2c4e5f60078")
    operand = nvfp4.to_fp8(encoded)
    assert as_bytes(operand).hex(" ") == "00 a9 29 a9 31 b6 39 b9 3e c1 41 c6 00 00 80 46"
    assert operand.to(torch.float32).tolist()[0] == [
        0, -0.28125, 0.28125, -0.28125, 0.5625, -0.875, 1.125, -1.125, 1.75, -2.25, 2.25, -3.5, 0, 0, -0.0, 3.5
    ]  # fmt: skip
    exact = nvfp4.decode(encoded)[0]
    assert [exact[index].item() for index in (5, 8, 11, 15)] == [-0.84375, 1.6875, -3.375, 3.375]


def test_golden_b_ties() -> None:
    encoded = nvfp4.encode(torch.tensor([TIES + [-value for value in TIES]]))
    assert parts(encoded) == ("38", "20426476a8caecfe")


def test_golden_c_saturation() -> None:
    encoded = nvfp4.encode(row(3000, -1500, 700))
    assert parts(encoded) == ("7e", "d703" + "00" * 6)
    assert as_bytes(nvfp4.to_fp8(encoded)).hex() == "7efe7e" + "00" * 13


def test_golden_d_underflow_has_no_floor() -> None:
    assert parts(nvfp4.encode(row(0.004, *[0.0] * 14, -0.003))) == ("00", "00" * 8)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.125, "31393e4146494e"), (1.375, "333b4043484b50"), (2.0**-9, "00010202030406"), (448.0, "767e7e7e7e7e7e")],
)
def test_golden_e_scale_times_code(scale: float, expected: str) -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, *[0] * 9]], dtype=torch.uint8)
    scales = torch.tensor([[scale]]).to(torch.float8_e4m3fn)
    operand = nvfp4.to_fp8(Quantized(spec=nvfp4.SPEC, codes=e2m1.pack(codes), scales=scales))
    assert as_bytes(operand[:, :7]).hex() == expected


def every_scale_and_code() -> Quantized:
    """One row a scale byte, holding the sixteen codes."""
    codes = e2m1.pack(torch.arange(16, dtype=torch.uint8).expand(256, 16))
    scales = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).unsqueeze(-1)
    return Quantized(spec=nvfp4.SPEC, codes=codes, scales=scales)


def test_e02_every_scale_byte_times_every_code() -> None:
    scale = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    code = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    exact = scale[:, None] * code[None, :]
    decoded = nvfp4.decode(every_scale_and_code()).numpy()
    assert np.array_equal(decoded, exact, equal_nan=True)
    assert np.array_equal(np.signbit(decoded)[~np.isnan(exact)], np.signbit(exact)[~np.isnan(exact)])
    assert decoded[[0x01, 0x07, 0x08, 0x7E], 2].tolist() == [2.0**-9, 7 * 2.0**-9, 2.0**-6, 448]
    assert np.isnan(decoded[[0x7F, 0xFF]]).all()


def test_e02_fp8_operands_of_every_pair() -> None:
    exact = nvfp4.decode(every_scale_and_code()).numpy()
    theirs = np.clip(exact, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    ours = nvfp4.to_fp8(every_scale_and_code()).view(torch.uint8).numpy()
    numbers = ~np.isnan(exact)
    assert np.array_equal(ours[numbers], theirs[numbers])
    assert (ours[~numbers] == 0x7F).all()
    unchanged = (nvfp4.to_fp8(every_scale_and_code()).to(torch.float32).numpy() == exact)[1:0x7F, 1:8]
    assert unchanged.sum() == 607  # of 126 * 7 = 882: the count of exact pairs in the model's specification


def test_a_million_values_as_torchao() -> None:
    """torchao puts a floor of 2^-6 under its scales; every magnitude above that must have its bytes."""
    values = spread(1000, 1024, block=16, decades=(-1.5, 4), seed=5)
    amax = values.unflatten(-1, (64, 16)).abs().amax(-1)
    scales, codes = nvfp4_quantize(values)
    ours = nvfp4.encode(values)
    assert ours.scales is not None
    above = amax / 6 >= 2.0**-6
    assert above.float().mean() > 0.95
    assert torch.equal(ours.scales.view(torch.uint8)[above], scales.view(torch.uint8).view(1000, 64)[above])
    assert torch.equal(ours.codes.unflatten(-1, (64, 8))[above], codes.view(1000, 512).unflatten(-1, (64, 8))[above])


def test_small_magnitudes_as_worked_out_in_numpy() -> None:
    values = spread(500, 256, block=16, decades=(-5, -1), seed=6)
    blocks = values.numpy().reshape(500, 16, 16)
    scale = (np.abs(blocks).max(-1) / np.float32(6)).astype(ml_dtypes.float8_e4m3fn)
    wide = scale.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(wide == 0, np.float32(0), blocks * (np.float32(1) / wide))
    codes = scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    encoded = nvfp4.encode(values)
    assert 0.2 < (wide == 0).mean() < 0.8
    assert encoded.scales is not None
    assert as_bytes(encoded.scales) == scale.tobytes()
    assert np.array_equal(e2m1.unpack(encoded.codes).numpy().reshape(500, 16, 16), codes)


@pytest.mark.parametrize("decades", [(-0.3, 0.3), (-3.0, 3.0), (-22.0, -16.0)])
def test_weights_as_compressed_tensors(decades: tuple[float, float]) -> None:
    """Its scale for blocks that would get 0 is 0.125, and it drops the sign of zero: nothing else may differ."""
    values = spread(1000, 1024, block=16, decades=decades, seed=7)
    blocks = values.unflatten(-1, (64, 16))
    settings = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn
    )
    encode_scale = generate_gparam(values.amin(), values.amax())
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), settings, global_scale=encode_scale)
    codes = e2m1.unpack(quantize_and_pack_fp4(values, scales, encode_scale)).unflatten(-1, (64, 16))

    ours = nvfp4.encode_weight(values)
    our_codes = e2m1.unpack(ours.codes).unflatten(-1, (64, 16))
    empty = step(ours) == 0
    assert torch.equal(step(ours)[~empty], scales[~empty])
    assert bool((scales[empty] == 0.125).all())
    assert torch.equal(our_codes[~empty], codes[~empty])
    assert not our_codes[empty].any()
    assert not (codes[empty] & 7).any()
    assert ours.global_scale is not None
    assert torch.equal(ours.global_scale, encode_scale.reciprocal().reshape(()))


def test_weight_global_scale_is_the_decode_side() -> None:
    values = spread(8, 64, block=16, decades=(-2.5, -1.5), seed=8)
    values[3, 5] = -0.25
    encoded = nvfp4.encode_weight(values)
    assert encoded.global_scale is not None
    assert encoded.global_scale.item() == pytest.approx(0.25 / 2688, rel=1e-6)
    assert nvfp4.decode(encoded)[3, 5].item() == pytest.approx(-0.25, rel=1e-6)
    assert ((nvfp4.decode(encoded) - values).norm() / values.norm()).item() < 0.12


def test_weight_of_zeros_or_of_nothing_has_global_scale_one() -> None:
    for values in (torch.zeros(2, 32), torch.zeros(0, 32), torch.full((1, 16), 1e-38)):
        encoded = nvfp4.encode_weight(values)
        assert encoded.global_scale is not None
        assert encoded.global_scale.item() == 1.0
        assert not nvfp4.decode(encoded).any()


def test_weight_with_nan_or_infinity_is_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(FormatError, match="nvfp4 takes one scale for the whole tensor"):
            nvfp4.encode_weight(row(1.0, bad))


def test_global_scale_changes_bytes_and_not_values() -> None:
    values = spread(64, 256, block=16, decades=(-0.5, 0.5), seed=9)
    plain, quartered = nvfp4.encode(values), nvfp4.encode(values, 0.25)
    assert plain.global_scale is None
    assert torch.equal(step(quartered), step(plain) * 4)
    assert torch.equal(nvfp4.decode(quartered), nvfp4.decode(plain))
    assert torch.equal(nvfp4.to_fp8(quartered).view(torch.uint8), nvfp4.to_fp8(plain).view(torch.uint8))
    as_tensor = nvfp4.encode(values, torch.tensor([0.25]))
    assert torch.equal(as_tensor.codes, quartered.codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_e01_no_scale_is_nan(dtype: torch.dtype) -> None:
    zeros, tiny, large, top = row(), row(1e-30), row(1e3, -1e3), row(0.0, 6 * 448.0)
    values = torch.cat((zeros, tiny, large, top), dim=-1).to(dtype)
    for encoded in (nvfp4.encode(values), nvfp4.encode_weight(values)):
        assert step(encoded).isfinite().all()
        assert not nvfp4.decode(encoded)[0, :32].any()
        assert nvfp4.decode(encoded)[0, 49].item() == pytest.approx(2688, rel=1e-6)
    assert nvfp4.decode(nvfp4.encode(row(-0.0, 0.0))).view(torch.int32).eq(0).all()


def test_e07_nan_goes_to_the_scale_of_its_block_alone() -> None:
    values = torch.ones(2, 48)
    for sign in (1.0, -1.0):
        values[1, 20] = sign * float("nan")
        encoded = nvfp4.encode(values)
        assert parts(encoded.map(lambda part: part[1]))[0][2:4] == "7f"
        assert as_bytes(encoded.codes[1, 8:16]).hex() == "77" * 8
        broken = nvfp4.decode(encoded).isnan()
        assert broken[1, 16:32].all() and broken.sum() == 16
        assert as_bytes(nvfp4.to_fp8(encoded)[1, 16:32]).hex() == "7f" * 16


def test_e07_infinity_saturates() -> None:
    encoded = nvfp4.encode(row(1.0, float("inf"), float("-inf"), 500.0))
    assert parts(encoded) == ("7e", "702f" + "00" * 6)
    assert nvfp4.decode(encoded)[0, :4].tolist() == [0.0, 2688.0, -2688.0, 448.0]


def test_leading_dims_strides_and_no_rows() -> None:
    values = spread(6, 256, block=16, decades=(-1, 1), seed=10)
    whole = nvfp4.encode(values)
    cube = nvfp4.encode(values.view(2, 3, 256))
    assert cube.scales is not None
    assert (cube.codes.shape, cube.scales.shape, cube.shape) == ((2, 3, 128), (2, 3, 16), (2, 3, 256))
    strided = nvfp4.encode(values.T.contiguous().T)
    for other in (cube, strided):
        assert torch.equal(nvfp4.decode(other).reshape(6, 256), nvfp4.decode(whole))
    empty = nvfp4.encode(values[:0].view(0, 2, 128))
    assert nvfp4.decode(empty).shape == (0, 2, 128)


def test_widths_that_break_a_block_are_refused() -> None:
    for encode in (nvfp4.encode, nvfp4.encode_weight):
        for width in (1, 8, 24, 130):
            with pytest.raises(FormatError, match=f"nvfp4 covers 16 values with a scale; a width of {width}"):
                encode(torch.zeros(2, width))
