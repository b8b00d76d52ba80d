"""tiles: the same values as the weight they are made from, multiplied as exactly as FP32 can"""

import pytest
import torch

from minnow.formats.quantized import Quantized, decode, encode
from minnow.kernels import native, words
from minnow.kernels.tiles import can_tile, tile

FORMATS = ("int4", "int8")


def _weight(name: str, num_rows: int, width: int) -> Quantized:
    weight = encode(name, torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows + width)))
    assert isinstance(weight, Quantized)
    return weight


def _linear(x: torch.Tensor, weight: Quantized, digits: int = 3) -> torch.Tensor:
    tiled = tile(weight, digits)
    y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    call = native.function("linear", "pppiiii")
    is_bf16 = x.dtype == torch.bfloat16
    call(x.data_ptr(), words.pack(*words.of_weight(tiled)), y.data_ptr(), x.shape[0], 1, weight.shape[0], is_bf16)
    return y


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_rows", "width"), [(16, 32), (48, 96), (576, 160)])
def test_a_tiled_product_is_as_exact_as_one_in_fp32(name, num_rows, width, isa):
    """Against FP64: no error above what sums of as many FP32 products may have."""
    weight = _weight(name, num_rows, width)
    for count in (1, 2, 3, 4, 5, 17, 131):
        x = torch.randn(count, width, generator=torch.Generator().manual_seed(count))
        x[0, 3] *= 1000.0  # its neighbours in the block keep fewer bits, and no fewer than the sum has
        exact = x.double() @ decode(weight).double().T
        bound = 4 * 2.0**-24 * (x.double().abs() @ decode(weight).double().abs().T)
        largest = x.double().abs().amax(1, keepdim=True) * decode(weight).double().abs().sum(1) * 2.0**-22
        assert bool(((_linear(x, weight) - exact).abs() <= bound + largest).all())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("digits", "least"), [(1, 127), (2, 127 * 256)])
def test_rounded_activations_are_off_by_half_a_step_at_the_most(name, digits, least, isa):
    """And by more than FP32 sums are: the rounding is really there."""
    weight = _weight(name, 48, 96)
    for scale in (1.0, 1e-6, 1.5e-30, 1e20):
        x = scale * torch.randn(14, 96, generator=torch.Generator().manual_seed(7))
        exact = x.double() @ decode(weight).double().T
        half_step = x.double().view(14, 3, 32).abs().amax(2) / least / 2
        bound = half_step @ decode(weight).double().abs().view(48, 3, 32).sum(2).T
        seen = (_linear(x, weight, digits) - exact).abs()
        assert bool((seen <= 1.001 * bound + 2.0**-20 * exact.abs().amax()).all())
        assert bool((seen > 0.01 * bound).any())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_rows", "width"), [(16, 32), (48, 96), (1040, 608)])
def test_bf16_rows_lose_no_more_than_their_own_rounding(name, num_rows, width, isa):
    """A weight keeps sixteen bits at the least; the result is rounded to eight, which hides what FP32 sums lose."""
    weight = _weight(name, num_rows, width)
    decoded = decode(weight).double()
    for count in (1, 2, 8, 9, 16, 17, 32, 33, 131):
        x = torch.randn(count, width, generator=torch.Generator().manual_seed(count)).bfloat16()
        exact = x.double() @ decoded.T
        bound = 2.0**-8 * exact.abs() + 2.0**-15 * (x.double().abs() @ decoded.abs().T)
        assert bool(((_linear(x, weight).double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("name", FORMATS)
def test_whole_numbers_come_out_exactly(name, isa):
    """What FP32 and fixed point both hold has one answer."""
    weight = _weight(name, 32, 64)
    assert weight.scales is not None
    ones = Quantized(
        spec=weight.spec,
        codes=weight.codes,
        scales=torch.ones_like(weight.scales),
        minimums=None if weight.minimums is None else torch.full_like(weight.minimums, -8.0),
    )
    x = torch.randint(-500, 500, (9, 64), generator=torch.Generator().manual_seed(1)).float()
    assert torch.equal(_linear(x, ones), x @ decode(ones).T)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours_or_threads(name, dtype, isa):
    """Of BF16 rows, nine and more are alike: AMX takes those, or its emulation in a build for AVX-512."""
    weight = _weight(name, 1056, 96)
    x = torch.randn(300, 96, generator=torch.Generator().manual_seed(3)).to(dtype)
    before, seen = native.num_threads(), []
    try:
        for num_threads in (1, 2, 3):
            native.set_threads(num_threads)
            seen.append(_linear(x, weight))
    finally:
        native.set_threads(before)
    assert all(torch.equal(y, seen[0]) for y in seen)
    for first, count in ((0, 1), (7, 2), (100, 16), (250, 50)):
        if dtype == torch.bfloat16 and count < 9:
            continue
        assert torch.equal(_linear(x[first : first + count].clone(), weight), seen[0][first : first + count])


@pytest.mark.parametrize("name", FORMATS)
def test_extreme_rows(name, isa):
    """Zeros, the smallest numbers, large ones, and what is no number spoils its own row alone."""
    weight = _weight(name, 16, 64)
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(4))
    x[0] = 0.0
    x[1] *= 1e-30
    x[2] *= 1e30
    x[3, 40], x[4, 1] = float("nan"), float("inf")
    y = _linear(x, weight)
    assert not y[0].any()
    assert y[3].isnan().all() and not y[4].isfinite().any()
    for row in (1, 2, 5):
        torch.testing.assert_close(y[row], (x[row].double() @ decode(weight).double().T).float(), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_tiled_table_are_its_values(name, isa):
    weight = _weight(name, 48, 96)
    tiled = tile(weight)
    ids = torch.tensor([0, 17, 47, 16, 15], dtype=torch.int32)
    x = torch.empty(5, 96)
    call = native.function("embed", "pppi")
    call(ids.data_ptr(), words.pack(*words.of_weight(tiled)), x.data_ptr(), 5)
    assert torch.equal(x, decode(weight)[ids.long()])


def test_what_has_no_tiles():
    assert can_tile(_weight("int4", 32, 64))
    assert not can_tile(_weight("int4", 40, 64))
    assert not can_tile(encode("mxfp8", torch.randn(32, 64)))
    assert not can_tile(torch.randn(32, 64))


@pytest.mark.parametrize("name", FORMATS)
def test_tiles_take_no_more_bytes(name):
    weight = _weight(name, 32, 64)
    assert tile(weight).data.nbytes == weight.num_bytes
