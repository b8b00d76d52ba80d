"""linear with many rows: every format and odd shape on every instruction set, AMX also where there is none"""

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight, decode, encode
from minnow.kernels import native
from minnow.kernels.linear import cpu

FORMATS = ("f32", "bf16", "f16", "fp8", "nvfp4", "mxfp4", "mxfp8", "int4", "int8")
PLAIN = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
Linear = Callable[[Tensor, Sequence[Weight]], Tensor]


def _weight(name: str, num_outputs: int, width: int) -> Weight:
    values = torch.randn(num_outputs, width, generator=torch.Generator().manual_seed(width)) * width**-0.5
    return values.to(PLAIN[name]) if name in PLAIN else encode(name, values)


def _values(weight: Weight) -> Tensor:
    return (decode(weight) if isinstance(weight, Quantized) else weight).double()


def _rows(num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(num_rows)).to(dtype)


def _check(linear: Linear, x: Tensor, weights: Sequence[Weight]) -> None:
    """Within what the order of FP32 sums and, for BF16, one rounding can change."""
    values = torch.cat([_values(weight) for weight in weights])
    exact, bound = x.double() @ values.T, 2.0**-20 * (x.double().abs() @ values.T.abs())
    if x.dtype == torch.bfloat16:
        bound = bound + exact.abs() * 2.0**-8
    seen = linear(x, weights)
    assert seen.dtype == x.dtype
    assert torch.equal(seen.isnan(), exact.isnan())
    assert bool(((seen.double() - exact).abs() <= bound).logical_or(exact.isnan()).all())


def _check_formats(linear: Linear, dtype: torch.dtype) -> None:
    for name in FORMATS:
        for width in (32, 96, 2208) if name in ("mxfp4", "mxfp8", "int4", "int8") else (32, 80, 2224):
            _check(linear, _rows(19, width, dtype), (_weight(name, 50, width), _weight(name, 3, width)))
        if name in ("f32", "bf16", "f16", "fp8"):
            _check(linear, _rows(17, 77, dtype), (_weight(name, 33, 77),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_format_and_width_is_exact_but_for_the_order_of_sums(isa: str, dtype: torch.dtype) -> None:
    _check_formats(cpu.linear, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_call_takes_weights_of_several_formats(isa: str, dtype: torch.dtype) -> None:
    _check(cpu.linear, _rows(40, 64, dtype), [_weight(name, rows, 64) for rows, name in enumerate(FORMATS, 44)])


@pytest.mark.parametrize("name", ["int4", "nvfp4"])
def test_a_row_is_the_same_whatever_rows_stand_beside_it(isa: str, name: str) -> None:
    dtype = torch.float32 if name == "int4" else torch.bfloat16
    weight, x = _weight(name, 97, 1344), _rows(600, 1344, dtype)
    whole = cpu.linear(x, (weight,))
    _check(lambda *_: whole, x, (weight,))
    for start, end in ((0, 17), (1, 19), (5, 28), (100, 164), (70, 599)):
        assert torch.equal(cpu.linear(x[start:end], (weight,)), whole[start:end])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_do_not_change_a_result(isa: str, num_threads: int) -> None:
    weights, x = (_weight("int4", 96, 576), _weight("int8", 50, 576)), _rows(300, 576, torch.float32)
    before, alone = native.num_threads(), cpu.linear(x, weights)
    native.set_threads(num_threads)
    try:
        assert torch.equal(cpu.linear(x, weights), alone)
    finally:
        native.set_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_scales_at_the_limits_are_read_right(isa: str, dtype: torch.dtype) -> None:
    x = _rows(20, 96, dtype)
    for name, scales in (("mxfp8", (0, 7, 240, 255)), ("mxfp4", (0, 7, 240, 255)), ("nvfp4", (0, 1, 0x7E, 0x7F))):
        for scale in scales:
            weight = encode(name, torch.randn(20, 96))
            assert isinstance(weight, Quantized) and weight.scales is not None
            weight.scales.view(torch.uint8)[17, 1] = scale
            _check(cpu.linear, x, (weight,))
    for name in ("mxfp8", "fp8"):
        weight = encode(name, torch.randn(20, 96))
        assert isinstance(weight, Quantized)
        weight.codes.view(torch.uint8)[3, 40] = 0xFF
        _check(cpu.linear, x, (weight,))
    x[18, 5] = float("nan")
    _check(cpu.linear, x, (_weight("nvfp4", 20, 96),))


@pytest.mark.skipif("amx" not in native.usable_instruction_sets(), reason="this processor has no AMX")
def test_the_first_amx_call_of_a_process_works() -> None:
    """In a process of its own: the permission, the tiles' configuration and a product on two threads."""
    code = (
        "import torch; from minnow.kernels import native; from minnow.kernels.linear.cpu import linear;"
        "native.set_threads(2); x = torch.ones(64, 64, dtype=torch.bfloat16);"
        "assert (linear(x, (x,)) == 64).all() and native.instruction_set() == 'amx'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"MINNOW_ISA": "amx"})
