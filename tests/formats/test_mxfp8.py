"""MXFP8: golden block F, torchao's round-up mode, infinity and NaN; scale rounding itself is in test_scales.py."""

import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

from minnow.core.errors import FormatError
from minnow.formats import mxfp8
from minnow.formats.quantized import Quantized
from tests.formats.samples import as_bytes, spread

BLOCK_F = [0, 0.01, -0.02, 0.1, -0.5, 1, -1.5, 2, 3.3, -4.4, 5.5, -6.6, 7.7, -8.8, 9.9, -11, 12.1, -13.2, 14.3]
BLOCK_F += [-15.4, 16.5, -17.6, 18.7, -19.8, 20.9, -22, 23.1, -24.2, 25.3, -26.4, 27.5, -1000]
CODES_F = "00 01 83 0d a0 28 ac 30 35 b9 3b bd 3f c1 42 c3 44 c5 46 c7 48 c9 49 ca 4a cb 4c cc 4d cd 4e f8"
DECODED_F = [0, 0.0078125, -0.0234375, 0.1015625, -0.5, 1, -1.5, 2, 3.25, -4.5, 5.5, -6.5, 7.5, -9, 10, -11, 12, -13]
DECODED_F += [14, -15, 16, -18, 18, -20, 20, -22, 24, -24, 26, -26, 28, -1024]


def test_golden_f_block() -> None:
    encoded = mxfp8.encode(torch.tensor([BLOCK_F]))
    assert encoded.scales is not None
    assert encoded.scales.tolist() == [[129]]
    assert as_bytes(encoded.codes).hex(" ") == CODES_F
    assert mxfp8.decode(encoded)[0].tolist() == DECODED_F


def test_golden_f_maxima_and_zeros() -> None:
    values = torch.zeros(3, 32)
    values[0, 0], values[1, 0] = 448, 449
    encoded = mxfp8.encode(values)
    assert encoded.scales is not None
    assert encoded.scales.flatten().tolist() == [127, 128, 0]
    assert [as_bytes(row).hex() for row in encoded.codes] == ["7e" + "00" * 31, "76" + "00" * 31, "00" * 32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decades", [(-3.0, 3.0), (-30.0, 30.0)])
def test_a_million_values_as_torchao(dtype: torch.dtype, decades: tuple[float, float]) -> None:
    """torchao rounds a logarithm, so just above a power of two it may choose the lower scale: only there."""
    values = spread(1000, 1024, block=32, decades=decades, seed=14).to(dtype)
    scales, codes = to_mx(values, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    ours = mxfp8.encode(values)
    assert ours.scales is not None
    ratio = values.unflatten(-1, (32, 32)).abs().amax(-1).double() / 448
    excess = ratio / torch.exp2(torch.floor(torch.log2(ratio)))
    safe = (excess > 1 + 2.0**-16) | (excess == 1)
    assert safe.float().mean() > 0.999
    assert torch.equal(ours.scales[safe], scales.view(torch.uint8)[safe])
    assert torch.equal(
        ours.codes.view(torch.uint8).unflatten(-1, (32, 32))[safe], codes.view(torch.uint8).view(1000, 32, 32)[safe]
    )


def test_zeros_ties_infinity_and_nan_as_torchao() -> None:
    values = torch.zeros(6, 32)
    values[1, ::2] = -0.0
    values[2] = torch.arange(32).mul(0.5).add(17)
    values[3, :3] = torch.tensor([448.0, 17.0, -19.0])
    values[4, :2] = torch.tensor([float("inf"), 3.0e38])
    values[5, 7] = float("nan")
    scales, codes = to_mx(values, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    ours = mxfp8.encode(values)
    assert ours.scales is not None
    assert torch.equal(ours.scales, scales.view(torch.uint8))
    assert torch.equal(ours.codes[:5].view(torch.uint8), codes[:5].view(torch.uint8))
    assert (codes[5].view(torch.uint8) & 0x7F).eq(0x7F).all()  # of either sign there, always 7f here
    assert as_bytes(ours.codes[5]).hex() == "7f" * 32


def test_e07_infinity_stays_and_nan_takes_its_block() -> None:
    values = torch.ones(1, 96)
    values[0, 3], values[0, 40] = float("-inf"), -float("nan")
    encoded = mxfp8.encode(values)
    assert encoded.scales is not None
    assert encoded.scales.tolist() == [[254, 255, 119]]
    decoded = mxfp8.decode(encoded)[0]
    assert decoded[3].item() == float("-inf")
    assert decoded[:32].isfinite().sum() == 31
    assert decoded[32:64].isnan().all()
    assert torch.equal(decoded[64:], torch.ones(32))


def test_below_the_least_scale_values_are_still_scaled() -> None:
    values = torch.full((1, 32), 2.0**-127)
    values[0, 0] = -448 * 2.0**-127
    encoded = mxfp8.encode(values)
    assert encoded.scales is not None
    assert encoded.scales.tolist() == [[0]]
    assert torch.equal(mxfp8.decode(encoded), values)


def test_every_scale_byte_decodes_exactly() -> None:
    codes = torch.arange(32, dtype=torch.uint8).mul(4).expand(256, 32).contiguous().view(torch.float8_e4m3fn)
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(-1)
    decoded = mxfp8.decode(Quantized(spec=mxfp8.SPEC, codes=codes, scales=scales))
    for byte in range(255):
        exact = codes[byte].to(torch.float64).numpy() * 2.0 ** (byte - 127)
        with np.errstate(over="ignore"):
            assert np.array_equal(decoded[byte].numpy(), exact.astype(np.float32))
    assert decoded[255].isnan().all()


def test_leading_dims_strides_and_no_rows() -> None:
    values = spread(6, 128, block=32, decades=(-1, 1), seed=15)
    whole = mxfp8.decode(mxfp8.encode(values))
    cube = mxfp8.encode(values.view(3, 2, 128).transpose(0, 1))
    assert cube.scales is not None
    assert (cube.codes.shape, cube.scales.shape) == ((2, 3, 128), (2, 3, 4))
    assert torch.equal(mxfp8.decode(cube).transpose(0, 1).reshape(6, 128), whole)
    columns = cube.map(lambda part: part[:, 1:])
    assert torch.equal(mxfp8.decode(columns), mxfp8.decode(cube)[:, 1:])
    assert mxfp8.decode(mxfp8.encode(values[:0])).shape == (0, 128)


def test_widths_that_break_a_block_are_refused() -> None:
    for width in (1, 16, 48):
        with pytest.raises(FormatError, match=f"mxfp8 covers 32 values with a scale; a width of {width}"):
            mxfp8.encode(torch.zeros(2, width))
