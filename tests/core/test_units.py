"""units are read and printed apart: binary and decimal"""

import pytest

from minnow.core.units import parse_bytes, show_bytes, show_decimal


@pytest.mark.parametrize(
    ("num_bytes", "binary", "decimal"),
    [
        (512, "512 B", "512 B"),
        (1_822_720, "1.74 MiB", "1.823 MB"),
        (275_040 * 2**20, "269 GiB", "288.4 GB"),
        (9 * 10**9, "8.38 GiB", "9 GB"),
        (4 * 560 * 2**30, "2.188 TiB", "2.405 TB"),
        (0, "0 B", "0 B"),
    ],
)
def test_one_number_in_both(num_bytes: int, binary: str, decimal: str) -> None:
    assert (show_bytes(num_bytes), show_decimal(num_bytes)) == (binary, decimal)


def test_decimal_and_binary_are_read_apart() -> None:
    assert parse_bytes("288 GB") == 288 * 10**9 != parse_bytes("288 GiB") == 288 * 2**30
