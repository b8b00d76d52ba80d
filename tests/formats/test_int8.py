"""int8: GGUF's Q8_0 without loss, and encoding from real values."""

import gguf
import numpy as np
import pytest
import torch

from minnow.core.errors import FormatError
from minnow.formats import int8
from tests.formats.samples import spread


def test_q8_0_has_ggufs_values_on_random_bytes() -> None:
    raw = np.random.default_rng(30).integers(0, 256, (200, 160 * 34), dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)
    block = int8.from_q8_0(torch.from_numpy(raw))
    assert block.shape == theirs.shape == (200, 5120)
    decoded = int8.decode(block).numpy()
    assert np.array_equal(decoded, theirs, equal_nan=True)
    numbers = ~np.isnan(theirs)
    assert np.array_equal(decoded.view(np.int32)[numbers], theirs.view(np.int32)[numbers])


def test_q8_0_strides_no_rows_and_blocks_cut_short() -> None:
    raw = torch.randint(0, 120, (6, 68), dtype=torch.uint8, generator=torch.Generator().manual_seed(31))
    whole = int8.decode(int8.from_q8_0(raw))
    cube = int8.from_q8_0(raw.view(3, 2, 68).transpose(0, 1))
    assert torch.equal(int8.decode(cube).transpose(0, 1).reshape(6, 64), whole)
    assert int8.from_q8_0(raw[:0]).shape == (0, 64)
    with pytest.raises(FormatError, match="Q8_0 blocks have 34 bytes; a row of 67 bytes"):
        int8.from_q8_0(raw[:, :67])


def test_encode_as_worked_out_in_numpy() -> None:
    values = spread(1000, 1024, block=32, decades=(-6, 4), seed=32)
    blocks = values.numpy().reshape(1000, 32, 32)
    scale = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    wide = scale.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(wide == 0, 0, np.clip(np.rint(blocks / wide), -127, 127)).astype(np.int8)
    encoded = int8.encode(values)
    assert encoded.scales is not None
    assert np.array_equal(encoded.scales.numpy(), scale)
    assert np.array_equal(encoded.codes.numpy(), codes.reshape(1000, 1024))


def test_ties_go_to_even() -> None:
    values = torch.zeros(1, 32)
    values[0, :5] = torch.tensor([127.0, 0.5, 1.5, -2.5, -3.5])
    assert int8.encode(values).codes[0, :5].tolist() == [127, 0, 2, -2, -4]


def test_encode_of_ggufs_own_values_changes_nothing() -> None:
    theirs = gguf.quants.quantize(
        spread(50, 256, block=32, decades=(-2, 1), seed=33).numpy(), gguf.GGMLQuantizationType.Q8_0
    )
    block = int8.from_q8_0(torch.from_numpy(theirs))
    again = int8.encode(int8.decode(block))
    assert again.scales is not None and block.scales is not None
    assert torch.equal(again.codes, block.codes)
    assert torch.equal(again.scales, block.scales)


def test_zeros_almost_nothing_and_no_rows() -> None:
    for values in (torch.zeros(2, 64), torch.full((2, 64), 1e-7), torch.zeros(0, 64)):
        assert not int8.decode(int8.encode(values)).any()


def test_values_that_do_not_fit_are_refused() -> None:
    for bad in (1e7, float("nan"), float("-inf")):
        values = torch.zeros(1, 32)
        values[0, 9] = bad
        with pytest.raises(FormatError, match="int8 keeps its scales in F16"):
            int8.encode(values)
    for width in (16, 33):
        with pytest.raises(FormatError, match=f"int8 covers 32 values with a scale; a width of {width}"):
            int8.encode(torch.zeros(1, width))
