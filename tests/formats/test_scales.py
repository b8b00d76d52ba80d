"""E4M3 and E8M0 against ml_dtypes and exact fractions; the rounding of MXFP8 scales (case E03)."""

import ml_dtypes
import numpy as np
import pytest
import torch

from minnow.core.errors import FormatError
from minnow.formats import mxfp8, scales
from minnow.formats.spec import SPEC_BY_NAME
from tests.formats import independent
from tests.formats.samples import around, special, spread


def e4m3_bytes(values: np.ndarray) -> np.ndarray:
    return scales.to_e4m3(torch.from_numpy(values)).view(torch.uint8).numpy()


def their_e4m3_bytes(values: np.ndarray) -> np.ndarray:
    """ml_dtypes turns what is beyond 464 into NaN; saturating is clamping first."""
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def test_e4m3_codes_their_midpoints_and_neighbours_as_ml_dtypes() -> None:
    finite = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (finite[1:] + finite[:-1]) / 2
    values = around(np.concatenate((finite, middles, np.array([464, 465, 480, 1e30], np.float32))))
    assert np.array_equal(e4m3_bytes(values), their_e4m3_bytes(values))


def test_e4m3_zeros_subnormals_and_infinities_as_ml_dtypes() -> None:
    assert np.array_equal(e4m3_bytes(special()), their_e4m3_bytes(special()))


def test_e4m3_a_million_values_as_ml_dtypes() -> None:
    values = spread(1000, 1024, block=32, decades=(-4, 3), seed=2).numpy()
    assert np.array_equal(e4m3_bytes(values), their_e4m3_bytes(values))


def test_e4m3_nan_of_either_sign_is_7f() -> None:
    assert e4m3_bytes(np.array([np.nan, -np.nan], np.float32)).tolist() == [0x7F, 0x7F]


def test_e8m0_every_byte_and_its_reciprocal() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    theirs = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values, reciprocals = scales.e8m0_values(every), scales.e8m0_reciprocals(every)
    assert np.array_equal(values.numpy(), theirs, equal_nan=True)
    assert values[0].item() == 2.0**-127
    assert values[254].item() == 2.0**127
    assert torch.equal((values * reciprocals)[:255], torch.ones(255))
    assert reciprocals[255].isnan()


@pytest.mark.parametrize("element", [448, 6])
def test_e8m0_is_the_exact_ceiling(element: int) -> None:
    powers = np.ldexp(np.float32(element), np.arange(-148, 120)).astype(np.float32)
    random = np.exp2(np.random.default_rng(3).uniform(-149, 128, 3000)).astype(np.float32)
    values = np.abs(np.concatenate((around(powers), random, special()[:-2])))
    values = values[np.isfinite(values)]
    expected = [independent.ceil_exponent(value, element) for value in values.tolist()]
    assert scales.to_e8m0(torch.from_numpy(values), element).tolist() == expected


def test_e8m0_zero_infinity_and_nan() -> None:
    amax = torch.tensor([0.0, 2.0**-149, float("inf"), float("nan"), 3.4028234663852886e38])
    assert scales.to_e8m0(amax, 448).tolist() == [0, 0, 254, 255, 247]


def exponent_of_block(amax: float) -> int:
    block = torch.zeros(1, 32)
    block[0, 7] = -amax
    encoded = mxfp8.encode(block)
    assert encoded.scales is not None
    return int(encoded.scales.item()) - 127


def test_e03_named_maxima() -> None:
    assert exponent_of_block(4.8046875) == -6
    assert exponent_of_block(448.0) == 0
    assert exponent_of_block(449.0) == 1
    assert [exponent_of_block(448.0 * 2.0**k) for k in range(-100, 101)] == list(range(-100, 101))


def test_e03_one_unit_above_an_exact_power_rounds_up() -> None:
    just_above = [float(np.nextafter(np.float32(448.0 * 2.0**k), np.float32(np.inf))) for k in range(-100, 101)]
    assert [exponent_of_block(amax) for amax in just_above] == list(range(-99, 102))


def test_e03_ten_thousand_blocks_never_clip() -> None:
    values = spread(10_000, 32, block=32, decades=(-20, 20), seed=4)
    encoded = mxfp8.encode(values)
    assert encoded.scales is not None
    step = scales.e8m0_values(encoded.scales).squeeze(-1)
    amax, place = values.abs().max(dim=-1)
    assert bool((amax / step <= 448).all())
    assert bool((amax / step > 224).all())
    kept = mxfp8.decode(encoded).abs().gather(-1, place.unsqueeze(-1)).squeeze(-1)
    assert float(((kept - amax).abs() / amax).max()) <= 0.0625


def test_e03_smallest_and_largest_exponents_and_subnormals() -> None:
    assert exponent_of_block(2.0**-149) == -127
    assert exponent_of_block(448 * 2.0**-127) == -127
    assert exponent_of_block(float(np.nextafter(np.float32(448 * 2.0**-127), np.float32(1)))) == -126
    assert exponent_of_block(3.4028234663852886e38) == 120
    smallest = torch.zeros(1, 32)
    smallest[0, 0], smallest[0, 1] = 2.0**-136, -(2.0**-127)
    assert torch.equal(mxfp8.decode(mxfp8.encode(smallest)), smallest)


def test_largest_passes_nan_on() -> None:
    blocks = torch.ones(2, 3, 16)
    blocks[0, 1, 5] = float("nan")
    blocks[1, 2, 3] = -7.0
    found = scales.largest(blocks)
    assert found.isnan().nonzero().tolist() == [[0, 1]]
    assert found[1].tolist() == [1.0, 1.0, 7.0]


def test_largest_of_weight_refuses_what_is_not_finite() -> None:
    assert scales.largest_of_weight(torch.tensor([[1.0, -3.0]]), "fp8").item() == 3.0
    assert scales.largest_of_weight(torch.zeros(0, 4), "fp8").item() == 0.0
    for bad in (float("nan"), float("-inf")):
        with pytest.raises(FormatError, match="fp8 takes one scale"):
            scales.largest_of_weight(torch.tensor([1.0, bad]), "fp8")


def test_global_scales_are_one_positive_number() -> None:
    device = torch.device("cpu")
    assert scales.as_global_scale(None, device) is None
    assert scales.as_global_scale(1.0, device) is None
    half = scales.as_global_scale(torch.tensor([0.5]), device)
    assert half is not None and half.shape == () and half.item() == 0.5
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(FormatError, match="positive and finite"):
            scales.as_global_scale(bad, device)
    with pytest.raises(FormatError, match=r"shape \(2,\)"):
        scales.as_global_scale(torch.ones(2), device)


def test_split_blocks_reads_bf16_and_refuses_broken_blocks() -> None:
    assert scales.split_blocks(torch.ones(3, 64, dtype=torch.bfloat16), SPEC_BY_NAME["nvfp4"]).shape == (3, 4, 16)
    with pytest.raises(FormatError, match="width of 40"):
        scales.split_blocks(torch.ones(3, 40), SPEC_BY_NAME["mxfp4"])
