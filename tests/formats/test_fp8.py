"""FP8: documented blocks, all 256 bytes, compressed-tensors' per-tensor weights, caches at scale 1."""

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams

from minnow.core.errors import FormatError
from minnow.formats import fp8
from minnow.formats.quantized import Quantized
from tests.formats import independent
from tests.formats.samples import as_bytes, documented, spread


@pytest.mark.parametrize("number", range(3))
def test_documented_blocks(number: int) -> None:
    block = documented("fp8")[number]
    scale = np.frombuffer(bytes.fromhex(block.scale), np.float32)[0]
    values = torch.tensor([block.values])
    encoded = fp8.encode(values, 1.0 if number == 0 else None)
    assert as_bytes(encoded.codes) == block.codes == independent.fp8(values.numpy(), scale)
    found = np.float32(1) if encoded.global_scale is None else encoded.global_scale.numpy()
    assert found.tobytes().hex(" ") == block.scale
    assert torch.equal(fp8.decode(encoded).view(torch.int32), torch.tensor([block.decoded]).view(torch.int32))


def test_three_blocks_are_documented() -> None:
    assert len(documented("fp8")) == 3


def test_all_bytes_decode_by_the_definition_and_encode_back() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(4, 64)
    decoded = fp8.decode(Quantized(spec=fp8.SPEC, codes=every.view(torch.float8_e4m3fn)))
    theirs = every.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(decoded.numpy(), theirs, equal_nan=True)
    assert np.array_equal(np.signbit(decoded.numpy()), np.signbit(theirs))
    back = fp8.encode(decoded, 1.0).codes.view(torch.uint8)
    assert torch.equal(back, torch.where(every & 0x7F == 0x7F, torch.tensor(0x7F, dtype=torch.uint8), every))


@pytest.mark.parametrize("decades", [(-3.0, 0.0), (-20.0, 20.0)])
def test_a_million_weights_as_compressed_tensors(decades: tuple[float, float]) -> None:
    values = spread(1000, 1024, block=32, decades=decades, seed=16)
    settings = QuantizationArgs(num_bits=8, type="float", strategy="tensor")
    scale, zero = calculate_qparams(values.amin(), values.amax(), settings)
    codes = quantize(values, scale, zero, settings, dtype=torch.float8_e4m3fn)
    ours = fp8.encode(values)
    assert ours.global_scale is not None
    assert torch.equal(ours.global_scale, scale.reshape(()))
    assert torch.equal(ours.codes.view(torch.uint8), codes.view(torch.uint8))


def test_a_million_cache_values_as_ml_dtypes() -> None:
    values = spread(1000, 1024, block=32, decades=(-4, 4), seed=17)
    encoded = fp8.encode(values, 1.0)
    assert encoded.global_scale is None and encoded.scales is None
    assert as_bytes(encoded.codes) == independent.fp8(values.numpy(), np.float32(1))


def test_given_scales() -> None:
    values = torch.tensor([[0.5, -3.0, 1e6]])
    for scale in (2.0, torch.tensor([2.0])):
        encoded = fp8.encode(values, scale)
        assert encoded.global_scale is not None and encoded.global_scale.shape == ()
        assert fp8.decode(encoded).tolist() == [[0.5, -3.0, 896.0]]
    with pytest.raises(FormatError, match="positive and finite, not 0"):
        fp8.encode(values, 0.0)


def test_weights_of_zeros_of_almost_nothing_and_of_no_rows() -> None:
    for values in (torch.zeros(2, 3), torch.full((2, 3), 2.0**-149), torch.zeros(0, 3)):
        encoded = fp8.encode(values)
        assert encoded.global_scale is not None
        assert encoded.global_scale.item() == 1.0
        assert fp8.decode(encoded).shape == values.shape
        assert not fp8.decode(encoded).any()


def test_e07_caches_keep_nan_in_place_and_weights_are_refused() -> None:
    values = torch.tensor([[1.0, float("nan"), float("inf"), -float("nan"), -2.0]])
    encoded = fp8.encode(values, 1.0)
    assert as_bytes(encoded.codes).hex() == "387f7e7fc0"
    with pytest.raises(FormatError, match="whose largest magnitude is nan"):
        fp8.encode(values)


def test_leading_dims_odd_widths_and_strides() -> None:
    values = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(18))
    whole = fp8.encode(values, 1.0)
    assert whole.codes.shape == whole.shape == (2, 3, 7)
    strided = fp8.encode(values.transpose(0, 2), 1.0)
    assert torch.equal(fp8.decode(strided).transpose(0, 2), fp8.decode(whole))
