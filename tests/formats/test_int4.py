"""int4: GGUF's Q4_0 and Q4_1 without loss, and encoding from real values."""

import gguf
import numpy as np
import pytest
import torch

from minnow.core.errors import FormatError
from minnow.formats import e2m1, int4
from tests.formats.samples import as_bytes, spread


def random_blocks(num_rows: int, num_blocks: int, block_bytes: int, num_halves: int, seed: int) -> np.ndarray:
    """u8 [num_rows, num_blocks * block_bytes]: random bytes, whose leading F16 numbers are finite and below 8000."""
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (num_rows, num_blocks, block_bytes), dtype=np.uint8)
    halves = raw[..., : 2 * num_halves].copy().view(np.float16)
    halves[~(np.abs(halves) < 8000)] = -0.37
    raw[..., : 2 * num_halves] = halves.view(np.uint8)
    return raw.reshape(num_rows, num_blocks * block_bytes)


def test_q4_0_has_ggufs_values_on_random_bytes() -> None:
    raw = random_blocks(200, 160, 18, 1, seed=20)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    ours = int4.from_q4_0(torch.from_numpy(raw))
    assert ours.shape == theirs.shape == (200, 5120)
    decoded = int4.decode(ours).numpy()
    assert np.array_equal(decoded, theirs)
    # Equal, bit for bit, but for the sign of zero where d is negative (or d itself is a zero).
    numbers = theirs != 0
    assert np.array_equal(decoded.view(np.int32)[numbers], theirs.view(np.int32)[numbers])


def test_q4_1_has_ggufs_values_on_random_bytes() -> None:
    raw = random_blocks(200, 160, 20, 2, seed=21)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_1)
    decoded = int4.decode(int4.from_q4_1(torch.from_numpy(raw))).numpy()
    assert np.array_equal(decoded.view(np.int32), theirs.view(np.int32))


def test_q4_1_keeps_infinite_and_nan_scales_as_gguf() -> None:
    raw = np.random.default_rng(22).integers(0, 256, (64, 20 * 64), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_1)
    assert not np.isfinite(theirs).all()
    assert np.array_equal(int4.decode(int4.from_q4_1(torch.from_numpy(raw))).numpy(), theirs, equal_nan=True)


def test_q4_0_codes_are_reordered_and_the_minimum_is_exact() -> None:
    raw = torch.tensor([[0x00, 0x38, *range(16)]], dtype=torch.uint8)  # d = 0.5; low halves 0..15, high halves 0
    raw[0, 2] = 0xF0
    block = int4.from_q4_0(raw)
    assert block.scales is not None and block.minimums is not None
    assert (block.scales.item(), block.minimums.item()) == (0.5, -4.0)
    assert e2m1.unpack(block.codes)[0].tolist() == [*range(16), 15, *[0] * 15]
    assert as_bytes(block.codes).hex() == "1032547698badcfe0f" + "00" * 7


@pytest.mark.parametrize("scale", [8192.0, -8192.0, 65504.0, float("-inf")])
def test_q4_0_scales_beyond_f16_are_refused(scale: float) -> None:
    raw = np.zeros((1, 36), np.uint8)
    raw[0, 18:20] = np.array([scale], np.float16).view(np.uint8)
    with pytest.raises(FormatError, match=f"a Q4_0 block has the scale {scale},"):
        int4.from_q4_0(torch.from_numpy(raw))


@pytest.mark.parametrize("scale", [8188.0, -8188.0, 2.0**-24, -(2.0**-24), 0.0])
def test_q4_0_scales_at_the_ends_are_exact(scale: float) -> None:
    raw = np.full((1, 18), 0x5E, np.uint8)
    raw[0, :2] = np.array([scale], np.float16).view(np.uint8)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(int4.decode(int4.from_q4_0(torch.from_numpy(raw))).numpy(), theirs)


def test_raw_blocks_cut_short_are_refused() -> None:
    with pytest.raises(FormatError, match="Q4_0 blocks have 18 bytes; a row of 35 bytes"):
        int4.from_q4_0(torch.zeros(2, 35, dtype=torch.uint8))
    with pytest.raises(FormatError, match="Q4_1 blocks have 20 bytes; a row of 36 bytes"):
        int4.from_q4_1(torch.zeros(2, 36, dtype=torch.uint8))


def test_raw_blocks_with_leading_dims_strides_and_no_rows() -> None:
    raw = torch.from_numpy(random_blocks(6, 8, 18, 1, seed=23))
    whole = int4.decode(int4.from_q4_0(raw))
    cube = int4.from_q4_0(raw.view(3, 2, 144).transpose(0, 1))
    assert cube.shape == (2, 3, 256)
    assert torch.equal(int4.decode(cube).transpose(0, 1).reshape(6, 256), whole)
    odd_offset = torch.cat((torch.zeros(6, 1, dtype=torch.uint8), raw), dim=-1)[:, 1:]
    assert torch.equal(int4.decode(int4.from_q4_0(odd_offset)), whole)
    assert int4.from_q4_0(raw[:0]).shape == (0, 256)


def test_encode_as_worked_out_in_numpy() -> None:
    values = spread(200, 1024, block=32, decades=(-3, 2), seed=24)
    blocks = values.numpy().reshape(200, 32, 32)
    minimum = blocks.min(-1).astype(np.float16)
    scale = ((blocks.max(-1) - blocks.min(-1)) / np.float32(15)).astype(np.float16)
    ratio = (blocks - minimum.astype(np.float32)[..., None]) / scale.astype(np.float32)[..., None]
    codes = np.clip(np.rint(ratio), 0, 15).astype(np.uint8)
    encoded = int4.encode(values)
    assert encoded.scales is not None and encoded.minimums is not None
    assert np.array_equal(encoded.scales.numpy(), scale)
    assert np.array_equal(encoded.minimums.numpy(), minimum)
    assert np.array_equal(e2m1.unpack(encoded.codes).numpy(), codes.reshape(200, 1024))


def test_encode_errs_by_half_a_step_at_most() -> None:
    values = spread(200, 1024, block=32, decades=(-2, 2), seed=25)
    encoded = int4.encode(values)
    assert encoded.scales is not None and encoded.minimums is not None
    error = (int4.decode(encoded) - values).abs().unflatten(-1, (32, 32)).amax(-1)
    step, least = encoded.scales.float(), encoded.minimums.float().abs()
    # F16 rounding of the scale (15 steps of 2^-11) and of the minimum (2^-11 of itself) comes on top.
    assert bool((error <= step * (0.5 + 15 * 2.0**-11) + least * 2.0**-10).all())


def test_encode_of_its_own_values_changes_nothing() -> None:
    # Where the least code is 0 and the greatest 15, minimum and scale are found again.
    raw = random_blocks(50, 8, 20, 2, seed=26)
    raw.reshape(50, 8, 20)[..., 4] = 0xF0
    raw.reshape(50, 8, 20)[..., :4] = np.array([0.01171875, -0.125], np.float16).view(np.uint8)
    block = int4.from_q4_1(torch.from_numpy(raw))
    again = int4.encode(int4.decode(block))
    assert torch.equal(again.codes, block.codes)


def test_equal_values_zeros_and_no_rows() -> None:
    equal = int4.encode(torch.full((1, 32), -2.5))
    assert not equal.codes.any()
    assert int4.decode(equal).tolist() == [[-2.5] * 32]
    assert not int4.decode(int4.encode(torch.zeros(2, 64))).any()
    assert int4.decode(int4.encode(torch.zeros(0, 64))).shape == (0, 64)


def test_values_that_do_not_fit_are_refused() -> None:
    for bad in (2e6, -1e6, float("nan"), float("inf")):
        values = torch.zeros(1, 32)
        values[0, 9] = bad
        with pytest.raises(FormatError, match="int4 keeps its scales in F16"):
            int4.encode(values)
    for width in (16, 33):
        with pytest.raises(FormatError, match=f"int4 covers 32 values with a scale; a width of {width}"):
            int4.encode(torch.zeros(1, width))
