"""MXFP4: documented blocks, an independent encoder, torchao's round-up mode, infinity and NaN."""

import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

from minnow.core.errors import FormatError
from minnow.formats import e2m1, mxfp4
from tests.formats import independent
from tests.formats.samples import as_bytes, documented, spread


@pytest.mark.parametrize("number", range(3))
def test_documented_blocks(number: int) -> None:
    block = documented("mxfp4")[number]
    values = torch.tensor([block.values])
    encoded = mxfp4.encode(values)
    assert encoded.scales is not None
    assert (as_bytes(encoded.scales).hex(), as_bytes(encoded.codes)) == (block.scale, block.codes)
    decoded = torch.tensor([block.decoded])
    assert torch.equal(mxfp4.decode(encoded).view(torch.int32), decoded.view(torch.int32))
    assert independent.mxfp4(values[0].numpy()) == (int(block.scale, 16), block.codes)


def test_three_blocks_are_documented() -> None:
    assert len(documented("mxfp4")) == 3


def test_blocks_as_worked_out_independently() -> None:
    values = spread(40, 256, block=32, decades=(-6, 6), seed=11)
    values[0, :32] = 0.0
    values[1, :32] = torch.tensor([2.0**-149, -(2.0**-127), 2.0**-128, -0.0] * 8)
    encoded = mxfp4.encode(values)
    assert encoded.scales is not None
    for scales, codes, row in zip(encoded.scales, encoded.codes, values, strict=True):
        expected = [independent.mxfp4(block) for block in row.numpy().reshape(-1, 32)]
        assert scales.tolist() == [scale for scale, _ in expected]
        assert as_bytes(codes) == b"".join(part for _, part in expected)


@pytest.mark.parametrize("decades", [(-3.0, 3.0), (-30.0, 30.0)])
def test_a_million_values_as_torchao(decades: tuple[float, float]) -> None:
    """torchao rounds a logarithm, so just above a power of two it may choose the lower scale: only there."""
    values = spread(1000, 1024, block=32, decades=decades, seed=12)
    scales, codes = to_mx(values, torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.RCEIL)
    ours = mxfp4.encode(values)
    assert ours.scales is not None
    ratio = values.unflatten(-1, (32, 32)).abs().amax(-1).double() / 6
    excess = ratio / torch.exp2(torch.floor(torch.log2(ratio)))
    safe = (excess > 1 + 2.0**-16) | (excess == 1)
    assert safe.float().mean() > 0.999
    assert torch.equal(ours.scales[safe], scales.view(torch.uint8)[safe])
    assert torch.equal(ours.codes.unflatten(-1, (32, 16))[safe], codes.view(1000, 32, 16)[safe])


def test_zeros_have_scale_byte_zero() -> None:
    encoded = mxfp4.encode(torch.zeros(1, 32))
    assert encoded.scales is not None
    assert as_bytes(encoded.scales) + as_bytes(encoded.codes) == bytes(17)


def test_every_scale_byte_decodes_exactly() -> None:
    codes = e2m1.pack(torch.arange(32, dtype=torch.uint8).remainder(16).expand(256, 32))
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(-1)
    decoded = mxfp4.decode(
        mxfp4.encode(torch.zeros(256, 32)).map(lambda part: codes if part.shape[-1] == 16 else scales)
    )
    for byte in range(255):
        exact = np.array(e2m1.VALUES * 2, np.float64) * 2.0 ** (byte - 127)
        with np.errstate(over="ignore"):
            assert decoded[byte].numpy().tobytes() == exact.astype(np.float32).tobytes()
    assert decoded[255].isnan().all()


def test_e07_infinity_stays_and_nan_takes_its_block() -> None:
    values = torch.ones(1, 96)
    values[0, 3], values[0, 40] = float("-inf"), -float("nan")
    encoded = mxfp4.encode(values)
    assert encoded.scales is not None
    assert encoded.scales.tolist() == [[254, 255, 125]]
    assert as_bytes(encoded.codes[0, 16:32]).hex() == "77" * 16
    decoded = mxfp4.decode(encoded)[0]
    assert decoded[3].item() == float("-inf")
    assert decoded[:32].isfinite().sum() == 31
    assert decoded[32:64].isnan().all()
    assert torch.equal(decoded[64:], torch.ones(32))


def test_leading_dims_strides_and_no_rows() -> None:
    values = spread(6, 128, block=32, decades=(-1, 1), seed=13)
    whole = mxfp4.decode(mxfp4.encode(values))
    cube = mxfp4.encode(values.view(3, 2, 128).transpose(0, 1))
    assert cube.scales is not None
    assert (cube.codes.shape, cube.scales.shape) == ((2, 3, 64), (2, 3, 4))
    assert torch.equal(mxfp4.decode(cube).transpose(0, 1).reshape(6, 128), whole)
    assert mxfp4.decode(mxfp4.encode(values[:0])).shape == (0, 128)


def test_widths_that_break_a_block_are_refused() -> None:
    for width in (1, 16, 48):
        with pytest.raises(FormatError, match=f"mxfp4 covers 32 values with a scale; a width of {width}"):
            mxfp4.encode(torch.zeros(2, width))
