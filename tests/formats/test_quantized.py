"""the one quantised tensor type, dispatch by name, and the same bytes on every device."""

import pytest
import torch

from minnow.core.errors import FormatError
from minnow.formats import nvfp4
from minnow.formats.quantized import Quantized, decode, encode
from minnow.formats.spec import SPEC_BY_NAME
from tests.formats.samples import spread

NAMES = ("fp8", "nvfp4", "mxfp4", "mxfp8", "int4", "int8")
CODES = {"fp8": torch.float8_e4m3fn, "mxfp8": torch.float8_e4m3fn, "int8": torch.int8}
SCALES = {"nvfp4": torch.float8_e4m3fn, "int4": torch.float16, "int8": torch.float16}
RELATIVE_ERROR = {"fp8": 0.03, "nvfp4": 0.11, "mxfp4": 0.13, "mxfp8": 0.03, "int4": 0.09, "int8": 0.007}


@pytest.mark.parametrize("name", NAMES)
def test_encode_dispatches_and_keeps_the_shape(name: str) -> None:
    values = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(40))
    encoded = encode(name, values)
    assert isinstance(encoded, Quantized)
    spec = SPEC_BY_NAME[name]
    assert encoded.spec is spec
    assert encoded.shape == (3, 5, 96)
    assert encoded.codes.dtype == CODES.get(name, torch.uint8)
    assert encoded.device == values.device
    assert encoded.num_bytes == 15 * spec.num_bytes(96)
    if spec.block:
        assert encoded.scales is not None
        assert encoded.scales.shape == (3, 5, 96 // spec.block)
        assert encoded.scales.dtype == SCALES.get(name, torch.uint8)
    assert (encoded.minimums is not None) == spec.has_minimum
    decoded = decode(encoded)
    assert decoded.dtype == torch.float32
    assert ((decoded - values).norm() / values.norm()).item() < RELATIVE_ERROR[name]


@pytest.mark.parametrize("name", NAMES)
def test_decode_rounds_once_to_a_narrower_type(name: str) -> None:
    encoded = encode(name, torch.randn(4, 64, generator=torch.Generator().manual_seed(41)))
    assert torch.equal(decode(encoded, torch.bfloat16), decode(encoded).to(torch.bfloat16))


@pytest.mark.parametrize("name", NAMES)
def test_bf16_values_are_read_as_they_are(name: str) -> None:
    values = spread(8, 64, block=32, decades=(-1, 1), seed=42).to(torch.bfloat16)
    narrow, wide = encode(name, values), encode(name, values.to(torch.float32))
    assert isinstance(narrow, Quantized) and isinstance(wide, Quantized)
    assert torch.equal(decode(narrow), decode(wide))


@pytest.mark.parametrize("name", NAMES)
def test_map_moves_every_part(name: str) -> None:
    encoded = encode(name, torch.randn(6, 64, generator=torch.Generator().manual_seed(43)))
    assert isinstance(encoded, Quantized)
    assert torch.equal(decode(encoded.map(lambda part: part[2:5])), decode(encoded)[2:5])


def test_map_keeps_the_global_scale() -> None:
    encoded = nvfp4.encode_weight(torch.randn(6, 64, generator=torch.Generator().manual_seed(44)))
    assert encoded.map(lambda part: part[:1]).global_scale is encoded.global_scale


def test_plain_formats_are_casts() -> None:
    values = torch.randn(3, 7, generator=torch.Generator().manual_seed(45))
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        plain = encode(name, values)
        assert isinstance(plain, torch.Tensor)
        assert torch.equal(plain, values.to(dtype))
        assert torch.equal(decode(plain), values.to(dtype).to(torch.float32))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8", "int4", "int8"])
def test_broken_blocks_are_refused_before_the_work(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name} covers"):
        encode(name, torch.zeros(2, 40))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bytes_on_a_gpu(name: str) -> None:
    values = spread(256, 1024, block=32, decades=(-30, 30) if name.startswith("mx") else (-3, 3), seed=47)
    values[0, :32] = 0.0
    values[1, :4] = torch.tensor([2.0**-149, -0.0, 1e-40, -1e-30])
    if name in ("nvfp4", "mxfp4", "mxfp8"):
        values[2, 5], values[2, 70], values[2, 200] = float("nan"), float("inf"), -float("nan")
    here, there = encode(name, values), encode(name, values.cuda())
    assert isinstance(here, Quantized) and isinstance(there, Quantized)
    for one, other in ((here.codes, there.codes), (here.scales, there.scales), (here.minimums, there.minimums)):
        if one is not None and other is not None:
            assert torch.equal(one.view(torch.uint8), other.cpu().view(torch.uint8))
    torch.testing.assert_close(decode(there).cpu(), decode(here), rtol=0, atol=0, equal_nan=True)
