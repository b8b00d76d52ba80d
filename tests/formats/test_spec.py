"""bytes of n values, and widths that do not fit."""

import pytest

from minnow.core.errors import FormatError
from minnow.formats.spec import SPEC_BY_NAME


@pytest.mark.parametrize(
    ("name", "codes", "scales"),
    [
        ("f32", 512, 0),
        ("f16", 256, 0),
        ("bf16", 256, 0),
        ("fp8", 128, 0),
        ("nvfp4", 64, 8),
        ("mxfp4", 64, 4),
        ("mxfp8", 128, 4),
        ("int4", 64, 16),
        ("int8", 128, 8),
    ],
)
def test_bytes_of_a_head_of_128(name: str, codes: int, scales: int) -> None:
    spec = SPEC_BY_NAME[name]
    assert (spec.num_code_bytes(128), spec.num_scale_bytes(128), spec.num_bytes(128)) == (codes, scales, codes + scales)
    assert spec.num_bytes(0) == 0


def test_names_are_keys() -> None:
    assert all(spec.name == name for name, spec in SPEC_BY_NAME.items())


@pytest.mark.parametrize(("name", "block"), [("nvfp4", 16), ("mxfp4", 32), ("mxfp8", 32), ("int4", 32), ("int8", 32)])
def test_broken_blocks_are_refused_by_name(name: str, block: int) -> None:
    spec = SPEC_BY_NAME[name]
    spec.check_width(3 * block)
    for count in (spec.check_width, spec.num_code_bytes, spec.num_scale_bytes, spec.num_bytes):
        with pytest.raises(FormatError, match=f"{name} covers {block} values with a scale; a width of {block + 1}"):
            count(block + 1)


def test_plain_formats_take_any_width() -> None:
    for name in ("f32", "f16", "bf16", "fp8"):
        SPEC_BY_NAME[name].check_width(7)
