"""norm, rotation and quantisation into the cache: exact on every instruction set, alone and fused"""

import ctypes
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from minnow.formats.quantized import Quantized, Weight, decode, encode
from minnow.kernels import native, words
from minnow.kernels.compare import compare
from minnow.kernels.kv_write import OP as KV_WRITE
from minnow.kernels.kv_write import cpu, inputs, reference
from minnow.kernels.qk_norm_rope import OP as QK_NORM_ROPE
from minnow.kernels.qk_norm_rope import cpu as turn_cpu
from minnow.kernels.qk_norm_rope import inputs as turn_inputs
from minnow.kernels.qk_norm_rope import reference as turn_reference

CPU = torch.device("cpu")


def _bytes(cache: Weight) -> list[torch.Tensor]:
    parts = [cache] if isinstance(cache, torch.Tensor) else [cache.codes, cache.scales]
    return [part.view(torch.uint8) for part in parts if part is not None]


def _check_bytes(values: torch.Tensor, name: str, scale: float | None = None) -> None:
    """Write all tokens in order; every byte must be the reference's."""
    num_tokens, num_heads, width = values.shape
    caches = []
    for write in (reference.kv_write, cpu.kv_write):
        cache = encode(name, torch.zeros(num_tokens // 16, num_heads, 16, width))
        if scale is not None:
            assert isinstance(cache, Quantized)
            cache = replace(cache, global_scale=torch.tensor(scale))
        write(values, cache, torch.arange(num_tokens))
        caches.append(cache)
    for expected, seen in zip(*map(_bytes, caches), strict=True):
        assert torch.equal(seen, expected)


def _all_bf16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("scale", [None, 0.25, 3.1])
def test_every_bf16_value_becomes_the_fp8_byte_of_the_reference(isa: str, scale: float | None) -> None:
    _check_bytes(_all_bf16().reshape(512, 1, 128), "fp8", scale)


@pytest.mark.parametrize("scale", [None, 2.0**-7, 0.37, 1e-38])
def test_every_block_becomes_the_nvfp4_bytes_of_the_reference(isa: str, scale: float | None) -> None:
    """Each bf16 value leads a block of smaller ones: zeros, subnormals, saturation, infinity and NaN among them."""
    fractions = torch.rand(2**16, 16, generator=torch.Generator().manual_seed(5)) * 2 - 1
    fractions[:, 7] = 1.0
    fractions[::3, 8:12] = torch.tensor([0.25, 0.75, -0.5, 0.0]) / 6  # halfway between codes, and a zero
    blocks = _all_bf16()[:, None].float() * fractions
    _check_bytes(blocks.bfloat16().reshape(8192, 1, 128), "nvfp4", scale)


def test_f32_values_are_quantised_from_f32(isa: str) -> None:
    generator = torch.Generator().manual_seed(6)
    values = torch.randn(512, 3, 64, generator=generator) * torch.logspace(-4, 4, 512)[:, None, None]
    for name in ("f32", "bf16", "fp8", "nvfp4"):
        _check_bytes(values, name)


def test_a_zero_or_tiny_block_never_gets_a_scale_of_nan(isa: str) -> None:
    """E01."""
    values = torch.zeros(16, 1, 64)
    values[1, 0, :16], values[1, 0, 16:32], values[2, 0, 3] = 1e-30, 1e3, 6 * 448
    cache = encode("nvfp4", torch.zeros(1, 1, 16, 64))
    cpu.kv_write(values, cache, torch.arange(16))
    assert isinstance(cache, Quantized) and cache.scales is not None
    assert not bool(((cache.scales.view(torch.uint8) & 0x7F) == 0x7F).any())
    seen = decode(cache)[0, 0]
    assert bool((seen[[0, *range(3, 16)]] == 0).all()) and bool((seen[1, :16] == 0).all())
    assert float(seen[2, 3]) == 6 * 448


@pytest.mark.parametrize("case", KV_WRITE.cases, ids=str)
def test_every_instruction_set_writes_what_the_reference_writes(isa: str, case: dict[str, Any]) -> None:
    seen, expected = (write(**inputs.make(CPU, **case)) for write in (cpu.kv_write, reference.kv_write))
    for a, b in zip(_bytes(seen), _bytes(expected), strict=True):
        assert torch.equal(a, b)


def test_a_strided_cache_is_written_where_it_lies(isa: str) -> None:
    both = encode("nvfp4", torch.zeros(3, 2, 2, 16, 64))
    assert isinstance(both, Quantized)
    keys = both.map(lambda part: part[:, 1])
    cpu.kv_write(torch.ones(2, 2, 64), keys, torch.tensor([17, -1], dtype=torch.int32))
    written = decode(both).nonzero()
    assert len(written) == 2 * 64 and {tuple(p) for p in written[:, [0, 1, 3]].tolist()} == {(1, 1, 1)}


@pytest.mark.parametrize("case", QK_NORM_ROPE.cases, ids=str)
def test_every_instruction_set_turns_as_the_reference(isa: str, case: dict[str, Any]) -> None:
    arguments = turn_inputs.make(CPU, **case)
    before = arguments["x"].clone()
    seen, expected = turn_cpu.qk_norm_rope(**arguments), turn_reference.qk_norm_rope(**arguments)
    assert compare(QK_NORM_ROPE, seen, expected) == []
    assert torch.equal(arguments["x"], before)


def test_angles_are_exact_up_to_a_million_tokens(isa: str) -> None:
    """Cosine and sine of the f32 angle to a unit in the last place."""
    positions = torch.cat((torch.arange(4096), torch.randint(0, 2**20, (4096,)), torch.tensor([2**20])))
    inv_freq = 5e6 ** -(torch.arange(32) / 32)
    x = torch.zeros(len(positions), 1, 64)
    x[..., :32] = 1.0
    seen = turn_cpu.qk_norm_rope(x, None, positions.to(torch.int32), inv_freq, 0.0, 0.0)[:, 0].double()
    angles = (positions.float()[:, None] * inv_freq).double()
    assert float((seen - torch.cat((angles.cos(), angles.sin()), dim=1)).abs().max()) < 2**-24 * 1.01


def test_nan_and_infinity_stay_in_their_head(isa: str) -> None:
    arguments = turn_inputs.make(CPU, T=4, N=3, H=32, rotary=16, has_norm=True)
    arguments["x"][1, 2, 5], arguments["x"][2, 0, 31] = math.nan, math.inf
    seen, expected = turn_cpu.qk_norm_rope(**arguments), turn_reference.qk_norm_rope(**arguments)
    assert compare(QK_NORM_ROPE, seen, expected) == []


@pytest.mark.parametrize("num_tokens", [0, 1, 37])
@pytest.mark.parametrize("name", ["f32", "bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize(("num_threads", "is_mixed"), [(1, False), (2, False), (2, True)])
def test_the_fused_step_is_the_single_operations(
    isa: str, name: str, num_tokens: int, num_threads: int, is_mixed: bool
) -> None:
    """Queries, keys and values of width 64 and an index key of width 32, bit by bit; a padding slot stores nothing."""
    generator = torch.Generator().manual_seed(8)
    shapes = {"q": (18, 64, True), "k": (2, 64, True), "v": (2, 64, False), "index_k": (1, 32, True)}
    norms = {part: torch.randn(width, generator=generator).bfloat16() for part, (_, width, _) in shapes.items()}
    x = torch.randn(num_tokens, sum(n * w for n, w, _ in shapes.values()), generator=generator).bfloat16()
    positions = torch.randint(0, 2**20, (num_tokens,), generator=generator, dtype=torch.int32)
    slots = torch.randperm(64, generator=generator)[:num_tokens]
    slots[2::7] = -1
    mix = torch.randn(2, 64, 64, generator=generator) / 8
    inv_freq = 1e4 ** -(torch.arange(8) / 8)

    expected: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    packed: list[int] = []
    kept, start = [], 0
    for part, (num_heads, width, is_turned) in shapes.items():
        heads = torch.unflatten(x[:, start : start + num_heads * width], 1, (num_heads, width))
        if is_turned:
            mixes = mix if is_mixed and part in "qk" else None
            heads = turn_cpu.qk_norm_rope(heads, norms[part], positions, inv_freq, 1e-6, 1.0, mixes)
        expected[part] = heads
        address = 0
        if part != "q":
            expected[part], seen[part] = (encode(name, torch.zeros(4, num_heads, 16, width)) for _ in range(2))
            cpu.kv_write(heads, expected[part], slots)
            kept.append(words.pack(*words.of_cache(seen[part])))
            address = ctypes.addressof(kept[-1])
        mixes = mix if is_mixed and part in "qk" else None
        packed += [start, num_heads, *words.of_weight(norms[part]), is_turned, address]
        packed += [*words.of_optional(mixes), num_heads // 2 or 1]
        start += num_heads * width

    fused = x.float()
    native.set_threads(num_threads)
    native.function("qk_norm_rope_write", "piipippiffpi")(
        fused.data_ptr(), fused.shape[1], num_tokens, words.pack(*packed), len(shapes),
        positions.data_ptr(), inv_freq.data_ptr(), len(inv_freq), 1e-6, 1.0, slots.data_ptr(), True,
    )  # fmt: skip
    native.set_threads(1)
    assert torch.equal(fused[:, : 18 * 64], expected["q"].flatten(1).float())
    for part in ("k", "v", "index_k"):
        for a, b in zip(_bytes(seen[part]), _bytes(expected[part]), strict=True):
            assert torch.equal(a, b)
