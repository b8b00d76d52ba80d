"""attention and index kernels of the C++ library: every instruction set, odd caches, batches, teams"""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import pytest
import torch

from minnow.core import folder
from minnow.formats.quantized import Quantized, Weight
from minnow.kernels import native, registry
from minnow.kernels.compare import compare

CPU = torch.device("cpu")
NAMES = ("index_score", "sparse_attention", "dense_attention")
CASES: dict[str, dict[str, Any]] = {
    "index_score": {"I": 4, "J": 64, "L": 32, "contexts": (100, 64, 7), "queries": (6, 1, 7)},
    "sparse_attention": {"N": 8, "G": 2, "H": 64, "L": 32, "K": 3, "contexts": (200, 64, 7), "queries": (20, 1, 7)},
    "dense_attention": {"N": 6, "G": 2, "H": 64, "L": 32, "contexts": (700, 64, 7), "queries": (30, 1, 7)},
}
FORMATS = ("f32", "bf16", "fp8", "nvfp4")
CACHES = ("index_cache", "k_cache", "v_cache")


@pytest.fixture(params=native.usable_instruction_sets(), autouse=True)
def _isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MINNOW_ISA", request.param)
    native.instruction_set.cache_clear()
    native.function.cache_clear()
    yield
    monkeypatch.undo()
    native.set_threads(1)
    native.instruction_set.cache_clear()
    native.function.cache_clear()


def function(name: str, backend: str = "cpu") -> Callable[..., torch.Tensor]:
    return getattr(folder.load(f"minnow.kernels.{name}", backend), name)  # type: ignore[no-any-return]


def inputs_of(name: str, number_format: str, **changes: Any) -> dict[str, Any]:
    return folder.load(f"minnow.kernels.{name}", "inputs").make(  # type: ignore[no-any-return]
        CPU, **{**CASES[name], "format": number_format, **changes}
    )


def query_of(name: str) -> str:
    return "index_q" if name == "index_score" else "q"


def check(name: str, inputs: dict[str, Any]) -> torch.Tensor:
    """Compare with the reference, more closely than the contract asks where results are not rounded to BF16."""
    seen, expected = function(name)(**inputs), function(name, "reference")(**inputs)
    assert compare(registry.operations()[name], seen, expected) == []
    if seen.dtype == torch.float32:
        is_finite = expected.isfinite()
        assert torch.allclose(seen[is_finite], expected[is_finite], rtol=2e-5, atol=2e-5)
    return seen


def change_caches(inputs: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    def apply(cache: Weight) -> Weight:
        return cache.map(change) if isinstance(cache, Quantized) else change(cache)

    return {name: apply(value) if name in CACHES else value for name, value in inputs.items()}


@pytest.mark.parametrize("name", [*NAMES, "block_topk"])
def test_every_case_agrees_with_the_reference(name: str) -> None:
    for case in registry.operations()[name].cases:
        inputs = folder.load(f"minnow.kernels.{name}", "inputs").make(CPU, **case)
        seen, expected = function(name)(**inputs), function(name, "reference")(**inputs)
        assert compare(registry.operations()[name], seen, expected) == []


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", [0, 20, 690])
def test_generated_rows_lose_no_bits(name: str, number_format: str, end: int) -> None:
    """All rows are, some sequences', or the last ones of the longest."""
    for dims in ({}, {"J" if name == "index_score" else "H": 128}, {"I": 7} if name == "index_score" else {}):
        inputs = inputs_of(name, number_format, **dims)
        q = inputs[query_of(name)].float() * 1.001
        ends = torch.full((len(inputs["block_table"]),), end, dtype=torch.int32)
        for dtype in (torch.float32, torch.bfloat16):
            check(name, inputs | {query_of(name): q.to(dtype), "prompt_end": ends})


@pytest.mark.parametrize("place", [3, 61, 62, 63])
def test_a_generated_row_sees_an_index_key_that_is_no_number(place: int) -> None:
    """And nothing else does, nor a row that stands before it."""
    inputs = inputs_of("index_score", "fp8", I=3, J=128, L=64, contexts=(64,), queries=(2,))
    inputs["index_q"] = inputs["index_q"].float()
    inputs["index_cache"].codes[inputs["block_table"][0, 0], 0, place, 5] = torch.nan
    check("index_score", inputs | {"prompt_end": torch.zeros(1, dtype=torch.int32)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["sparse_attention", "dense_attention"])
def test_keys_and_values_may_differ_in_format(name: str, dtype: torch.dtype) -> None:
    for keys, values in product(FORMATS, FORMATS):
        inputs = inputs_of(name, keys, H=64) | {"v_cache": inputs_of(name, values, H=64)["v_cache"]}
        check(name, {**inputs, "q": inputs["q"].to(dtype)})


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_lose_no_bits(name: str, number_format: str, dtype: torch.dtype) -> None:
    inputs = inputs_of(name, number_format)
    q = inputs[query_of(name)].float() * 1.001
    check(name, {**inputs, query_of(name): q.to(dtype)})


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_alone_and_for_any_team(name: str, number_format: str) -> None:
    inputs = inputs_of(name, number_format)
    together = function(name)(**inputs)
    for num_threads in (2, 3):
        native.set_threads(num_threads)
        assert torch.equal(function(name)(**inputs), together)
    starts = inputs["query_start"].tolist()
    for s, (first, last) in enumerate(pairwise(starts)):
        for row in {first, (first + last) // 2, last - 1}:
            one = {key: inputs[key][row : row + 1] for key in (query_of(name), "positions")}
            if name == "sparse_attention":
                one["blocks"] = inputs["blocks"][row : row + 1]
            start = torch.tensor([0, 1], dtype=torch.int32)
            alone = function(name)(
                **{**inputs, **one, "query_start": start, "block_table": inputs["block_table"][s : s + 1]}
            )
            assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("width", [32, 48, 64, 96, 128])
@pytest.mark.parametrize("heads", [2, 6, 8])
def test_float_rows_of_any_width_are_the_same_alone(number_format: str, width: int, heads: int) -> None:
    """Few rows have loops of their own, which must not show."""
    inputs = inputs_of("dense_attention", number_format, N=heads, H=width, L=48, contexts=(130,), queries=(9,))
    inputs["q"] = inputs["q"].float() * 1.001
    together = check("dense_attention", inputs)
    start = torch.tensor([0, 1], dtype=torch.int32)
    for row in range(9):
        one = {key: inputs[key][row : row + 1] for key in ("q", "positions")}
        assert torch.equal(function("dense_attention")(**{**inputs, **one, "query_start": start})[0], together[row])


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [40, 160, 200])
@pytest.mark.parametrize("num_queries", [1, 9])
def test_blocks_may_be_longer_than_a_panel_and_end_in_half_a_strip(
    name: str, number_format: str, length: int, num_queries: int
) -> None:
    inputs = inputs_of(name, number_format, L=length, contexts=(length + 199,), queries=(num_queries,))
    check(name, {**inputs, query_of(name): inputs[query_of(name)].float()})


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_strided_caches_are_read_right(name: str, number_format: str) -> None:
    def spread(part: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(
            *part.shape[:3], part.shape[3] + 16, dtype=torch.uint8 if part.element_size() == 1 else part.dtype
        )
        target = wide.transpose(1, 2).contiguous().transpose(1, 2)[..., : part.shape[3]]
        target.copy_(part.view(target.dtype))
        return target.view(part.dtype)

    inputs = inputs_of(name, number_format)
    assert torch.equal(function(name)(**change_caches(inputs, spread)), function(name)(**inputs))


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("poison", [0xFF, 0x7F])
def test_unwritten_slots_change_nothing(name: str, number_format: str, poison: int) -> None:
    """0xff is NaN in every format, 0x7f is NaN or large."""
    inputs = inputs_of(name, number_format)
    lengths = [int(inputs["positions"][last - 1]) + 1 for last in inputs["query_start"][1:].tolist()]
    block_length = CASES[name]["L"]

    def rot(part: torch.Tensor) -> torch.Tensor:
        is_written = torch.zeros(part.shape[0], block_length, dtype=torch.bool)
        for s, length in enumerate(lengths):
            for place in range(length):
                is_written[inputs["block_table"][s, place // block_length], place % block_length] = True
        raw = part.clone().view(torch.uint8)
        raw.masked_fill_(~is_written[:, None, :, None], poison)
        return raw.view(part.dtype)

    assert torch.equal(function(name)(**change_caches(inputs, rot)), function(name)(**inputs))


def spoil(cache: Weight, block: int, head: int, token: int) -> None:
    raw = cache if isinstance(cache, torch.Tensor) else cache.codes if cache.scales is None else cache.scales
    raw.view(torch.uint8)[block, head, token, :4] = 0xFF


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("num_rows", [70, 1])
@pytest.mark.parametrize("part", ["k_cache", "v_cache"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_in_the_cache_spoils_what_reads_it(
    number_format: str, num_rows: int, part: str, dtype: torch.dtype
) -> None:
    """Keys: the rows that see the token; values may spoil rows before it too, by weight zero times NaN."""
    inputs = inputs_of("dense_attention", number_format, contexts=(70,), queries=(num_rows,))
    inputs["q"] = inputs["q"].to(dtype)
    spoil(inputs[part], int(inputs["block_table"][0, 1]), 1, 5)  # token 37 of key/value head 1
    seen, first = function("dense_attention")(**inputs), max(0, num_rows - 33)
    assert bool(seen[first:, 3:].isnan().any(-1).all())
    assert bool(seen[:, :3].isfinite().all())
    if part == "k_cache":
        assert bool(seen[:first].isfinite().all())
        check("dense_attention", inputs)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("num_rows", [70, 1])
def test_a_nan_in_an_index_key_is_its_blocks_score(number_format: str, num_rows: int) -> None:
    inputs = inputs_of("index_score", number_format, contexts=(70,), queries=(num_rows,))
    spoil(inputs["index_cache"], int(inputs["block_table"][0, 1]), 0, 5)
    assert bool(check("index_score", inputs)[-1, :, 1].isnan().all())


@pytest.mark.parametrize("name", NAMES)
def test_every_e4m3_number_and_a_global_scale(name: str) -> None:
    inputs = inputs_of(name, "fp8", L=32, **({"J": 64} if name == "index_score" else {"H": 64}))
    every = torch.arange(256, dtype=torch.uint8)
    every[(every & 0x7F) == 0x7F] = 0

    def fill(part: torch.Tensor) -> torch.Tensor:
        return every.repeat(part.numel() // 256).view(part.shape).view(part.dtype)

    changed = change_caches(inputs, fill)
    q = changed[query_of(name)]
    check(name, {**changed, query_of(name): q.float() * 1e-3})
    for cache in [name for name in CACHES if name in changed]:
        old = changed[cache]
        changed[cache] = Quantized(spec=old.spec, codes=old.codes, global_scale=torch.tensor(0.25))
    check(name, {**changed, query_of(name): (q.float() * 1e-3).bfloat16()})


@pytest.mark.parametrize("name", NAMES)
def test_nvfp4_with_odd_scales(name: str) -> None:
    """Subnormal, zero and negative scales and a global one, which the caches' quantiser would not write."""
    inputs = inputs_of(name, "nvfp4")
    for cache in [name for name in CACHES if name in inputs]:
        old = inputs[cache]
        scales = old.scales.view(torch.uint8).clone()
        scales[..., 0] = torch.arange(scales[..., 0].numel()).remainder(10).view(scales[..., 0].shape).to(torch.uint8)
        scales[:, :, ::3] |= 0x80
        inputs[cache] = Quantized(
            spec=old.spec, codes=old.codes, scales=scales.view(torch.float8_e4m3fn), global_scale=torch.tensor(3.0)
        )
    q = inputs[query_of(name)]
    check(name, inputs)
    check(name, {**inputs, query_of(name): q.float()})


def test_duplicate_absent_and_later_blocks_are_not_read_twice() -> None:
    inputs = inputs_of("sparse_attention", "fp8", contexts=(200,), queries=(3,))
    blocks = torch.tensor([[-1, -1, -1], [2, 2, 0], [6, 1, 1]], dtype=torch.int32)
    inputs["blocks"] = blocks[:, None].expand(3, 2, 3).contiguous()
    seen = check("sparse_attention", inputs)
    assert bool((seen[0] == 0).all())


def test_no_tokens_and_no_sequences() -> None:
    for name in NAMES:
        inputs = inputs_of(name, "fp8", queries=(0, 0, 0))
        assert function(name)(**inputs).shape[0] == 0


@pytest.mark.parametrize("num_blocks", [1, 5, 16, 40])
@pytest.mark.parametrize("num_init", [0, 3])
def test_block_choice_with_ties_and_odd_scores(num_blocks: int, num_init: int) -> None:
    generator = torch.Generator().manual_seed(num_blocks)
    scores = torch.randn(6, 3, 517, generator=generator).mul(3).round()
    scores[torch.rand(scores.shape, generator=generator) < 0.02] = torch.inf
    scores[torch.rand(scores.shape, generator=generator) < 0.02] = torch.nan
    scores[torch.rand(scores.shape, generator=generator) < 0.3] = -torch.inf
    scores[1] = -0.0
    scores[1, :, ::7] = 0.0
    scores[2] = -torch.inf
    scores[3, :, 250:] = torch.nan
    positions = torch.tensor([517 * 128 - 1, 66000, 40000, 60000, 127, 128 * 20], dtype=torch.int32)
    arguments = (scores, positions, num_blocks, 128, 2, num_init)
    expected = function("block_topk", "reference")(*arguments)
    for num_threads in (1, 2):
        native.set_threads(num_threads)
        assert torch.equal(function("block_topk")(*arguments), expected)


def test_long_contexts_have_longer_chunks() -> None:
    inputs = inputs_of("dense_attention", "bf16", N=1, G=1, H=32, L=128, contexts=(13000,), queries=(2,))
    check("dense_attention", {**inputs, "q": inputs["q"].float()})
