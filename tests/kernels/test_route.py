"""route and embed on every instruction set"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from minnow.formats.quantized import Quantized, decode, encode
from minnow.kernels import native
from minnow.kernels.compare import compare
from minnow.kernels.embed import cpu as embed_cpu
from minnow.kernels.route import OP, cpu, inputs, reference

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", OP.cases, ids=str)
def test_every_instruction_set_routes_as_the_reference(isa: str, case: dict[str, Any]) -> None:
    arguments = inputs.make(CPU, **case)
    assert compare(OP, cpu.route(**arguments), reference.route(**arguments)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_routed_the_same_alone_and_by_any_team(isa: str, dtype: torch.dtype) -> None:
    arguments = inputs.make(CPU, T=700, D=1100, E=18, A=4, has_bias=True)
    arguments["gate"], arguments["bias"] = arguments["gate"].to(dtype), arguments["bias"].to(dtype)
    x = arguments.pop("x")
    ids, weights = cpu.route(x, **arguments)
    assert compare(OP, (ids, weights), reference.route(x, **arguments)) == []
    native.set_threads(2)
    shared = cpu.route(x, **arguments)
    native.set_threads(1)
    assert torch.equal(shared[0], ids) and torch.equal(shared[1], weights)
    for first, count in ((0, 1), (3, 5), (100, 70)):
        part = cpu.route(x[first : first + count], **arguments)
        assert torch.equal(part[0], ids[first : first + count])
        assert torch.equal(part[1], weights[first : first + count])


def test_equal_scores_go_to_the_lower_expert(isa: str) -> None:
    ids, weights = cpu.route(torch.ones(1, 2), torch.zeros(5, 2), None, 3, 1.5)
    assert ids.tolist() == [[0, 1, 2]] and weights[0].tolist() == pytest.approx([0.5] * 3)
    bias = torch.tensor([-0.5, 0.25, -math.inf, 0.25, -0.5])
    assert cpu.route(torch.ones(1, 2), torch.zeros(5, 2), bias, 5, 1.0)[0].tolist() == [[1, 3, 0, 4, 2]]


def test_what_is_not_finite_stays_in_its_row(isa: str) -> None:
    arguments = inputs.make(CPU, T=5, D=40, E=6, A=2, has_bias=True)
    arguments["x"][1, 39], arguments["x"][3, 0] = math.nan, math.inf
    assert compare(OP, cpu.route(**arguments), reference.route(**arguments)) == []


@pytest.mark.parametrize("scale", [40.0, 300.0])
def test_scores_at_their_ends_are_those_of_the_reference(isa: str, scale: float) -> None:
    arguments = inputs.make(CPU, T=20, D=64, E=8, A=3, has_bias=True)
    arguments["gate"] = arguments["gate"] * scale
    arguments["bias"] = torch.arange(8) / 8.0
    assert compare(OP, cpu.route(**arguments), reference.route(**arguments)) == []


@pytest.mark.parametrize("name", ["f32", "bf16", "f16", "fp8", "nvfp4", "mxfp4", "mxfp8", "int4", "int8"])
def test_rows_of_the_table_are_decoded_exactly(isa: str, name: str) -> None:
    table = encode(name, torch.randn(40, 96, generator=torch.Generator().manual_seed(2)))
    for ids in (torch.tensor([39, 0, 7, 7]), torch.arange(40, dtype=torch.int32)):
        assert torch.equal(embed_cpu.embed(ids, table, torch.float32), decode(table)[ids.long()])
        assert torch.equal(embed_cpu.embed(ids, table, torch.bfloat16), decode(table, torch.bfloat16)[ids.long()])


def test_every_scale_byte_is_decoded_by_its_definition(isa: str) -> None:
    """E02: subnormal scales, minus zero and NaN, with every code."""
    codes = torch.arange(8, dtype=torch.uint8) * 2 + (torch.arange(8, dtype=torch.uint8) * 2 + 1) * 16
    table = encode("nvfp4", torch.zeros(256, 32))
    assert isinstance(table, Quantized) and table.scales is not None
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 2).contiguous().view(torch.float8_e4m3fn)
    table = replace(table, codes=codes.repeat(256, 2), scales=scales)
    seen, expected = embed_cpu.embed(torch.arange(256), table, torch.float32), decode(table)
    assert torch.equal(seen.nan_to_num(nan=-1e9).view(torch.int32), expected.nan_to_num(nan=-1e9).view(torch.int32))


def test_an_id_outside_the_table_gives_nan_and_no_wild_read() -> None:
    seen = embed_cpu.embed(torch.tensor([1, -1, 3, 2**31 - 1]), torch.ones(3, 33), torch.float32)
    assert bool(seen[0].eq(1).all()) and bool(seen[1:].isnan().all())
