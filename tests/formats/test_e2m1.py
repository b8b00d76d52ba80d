"""the sixteen values against ml_dtypes, code by code and around every threshold."""

import ml_dtypes
import numpy as np
import pytest
import torch

from minnow.core.errors import FormatError
from minnow.formats import e2m1
from tests.formats.samples import around, special, spread


def their_codes(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def our_codes(values: np.ndarray) -> np.ndarray:
    return e2m1.round_codes(torch.from_numpy(values)).numpy()


def test_values_are_the_sixteen_of_the_format() -> None:
    theirs = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array(e2m1.VALUES, np.float32).tobytes() == theirs.tobytes()


def test_every_value_keeps_its_code() -> None:
    assert our_codes(np.array(e2m1.VALUES, np.float32)).tolist() == list(range(16))


def test_ties_go_to_the_even_code() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    assert our_codes(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert our_codes(-ties).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_thresholds_values_and_their_neighbours_as_ml_dtypes() -> None:
    points = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 1e4], np.float32)
    values = around(points)
    assert np.array_equal(our_codes(values), their_codes(values))


def test_zeros_subnormals_and_infinities_as_ml_dtypes() -> None:
    assert np.array_equal(our_codes(special()), their_codes(special()))
    assert our_codes(np.array([-0.0, -1e-30, np.inf, -np.inf], np.float32)).tolist() == [8, 8, 7, 15]


def test_a_million_values_as_ml_dtypes() -> None:
    values = spread(1000, 1024, block=16, decades=(-3, 2), seed=1).numpy()
    assert np.array_equal(our_codes(values), their_codes(values))


def test_nan_of_either_sign_is_seven() -> None:
    assert our_codes(np.array([np.nan, -np.nan], np.float32)).tolist() == [7, 7]


def test_pack_puts_the_even_index_low() -> None:
    packed = e2m1.pack(torch.tensor([2, 15, 0, 8], dtype=torch.uint8))
    assert packed.tolist() == [0xF2, 0x80]


def test_unpack_undoes_pack_for_every_byte() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(2, 8, 16)
    assert e2m1.unpack(every).shape == (2, 8, 32)
    assert torch.equal(e2m1.pack(e2m1.unpack(every)), every)


def test_unpack_values_of_every_byte_and_of_a_strided_view() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    table = torch.tensor(e2m1.VALUES)
    for packed in (every, every.T, every[::3, 1::2]):
        expected = table[e2m1.unpack(packed).int()]
        assert torch.equal(e2m1.unpack_values(packed).view(torch.int32), expected.view(torch.int32))


def test_no_rows_and_odd_widths() -> None:
    assert e2m1.unpack_values(torch.zeros(0, 8, dtype=torch.uint8)).shape == (0, 16)
    assert e2m1.pack(torch.zeros(0, 8, dtype=torch.uint8)).shape == (0, 4)
    with pytest.raises(FormatError, match="width of 7 is odd"):
        e2m1.pack(torch.zeros(2, 7, dtype=torch.uint8))
