"""what a deployment holds, and that the engine would say the same"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minnow.cache.blocks import BlockPool
from minnow.config import load
from minnow.core.errors import CapacityError
from minnow.core.units import parse_bytes
from minnow.engine import container, memory
from minnow.plan import capacity, deployment, hardware, published, report
from minnow.plan.capacity import EVERYTHING, Holding
from tests import tiny
from tests.engine import machine


def hold(strategy: str = "dep4", device: str = "b300", **words: Any) -> Holding:
    return capacity.hold(published.deploy("m3.1-flash", device, strategy, **words), EVERYTHING)


def test_h01_a_token_and_a_block_have_the_published_bytes() -> None:
    whole, rank = hold("dep4").layout, hold("tp4").layout
    by_name = {group.name: group.token_bytes * group.num_layers for group in whole.groups}
    assert by_name == {"kv": 34_560, "index": 4_320, "draft": 5_120}
    assert {g.name: g.token_bytes * g.num_layers for g in rank.groups} == {"kv": 8_640, "index": 4_320, "draft": 1_280}
    assert (rank.row_bytes, rank.num_pages) == (1_822_720, 125)
    assert 4 * rank.token_bytes == 56_960 and whole.token_bytes == 44_000
    hopper = hold("tp8", "h200", kv_cache_dtype="fp8", attention_config={"indexer_kv_dtype": "fp8"}, speculation=False)
    assert hopper.layout.token_bytes == 23_040  # four heads on eight ranks: each is there twice


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("settings", [{}, {"kv_cache_memory_bytes": "16MiB"}, {"gpu_memory_utilization": 0.5}])
def test_h01_planner_engine_and_pool_have_the_same_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drafting: bool, settings: dict[str, Any]
) -> None:
    root = machine.write(tmp_path / "root", {"proc/meminfo": "MemTotal:  64000000 kB\nMemAvailable:  16000000 kB"})
    model = tiny.write_tiny(tmp_path, family="llama")
    tiny.write_tiny_drafter(tmp_path, model)
    config = load.from_values(settings | ({"speculative_config": {"method": "dspark"}} if drafting else {}), {}).config
    of_engine = memory.plan(memory.settle(config, model, tmp_path), torch.device("cpu"), root)
    with monkeypatch.context() as patch:
        patch.setattr(hardware.container, "free_bytes", lambda: container.left_bytes(root) or 16_000_000 * 1024)
        here = hardware.read("here")
    held = capacity.hold(deployment.settle("tiny", model, tmp_path, config, here), EVERYTHING)
    assert held.memory == of_engine
    pool = BlockPool(held.memory.num_blocks, held.memory.block_size)
    assert pool.num_free_blocks * held.memory.block_size == held.memory.num_tokens
    longest = model.max_position_embeddings
    assert held.num_cached == of_engine.max_concurrency == pool.num_free_blocks // -(-longest // pool.block_size)


@settings(max_examples=40, deadline=None)
@given(
    context=st.integers(1_000, 1_000_000),
    utilization=st.floats(0.6, 1.0),
    watermark=st.sampled_from([0.0, 0.05, 0.3]),
    strategy=st.sampled_from(["tp4", "dep4", "tep8"]),
    hybrid=st.booleans(),
)
def test_the_next_step_is_one_step(
    context: int, utilization: float, watermark: float, strategy: str, hybrid: bool
) -> None:
    words = {"watermark": watermark, "max_num_seqs": 10**6, "has_hybrid_manager": hybrid}
    held = hold(strategy, utilization=utilization, context_tokens=context, **words)
    assert held.num_sequences == held.num_cached == held.num_sequences_engine // (4 if strategy == "dep4" else 1)
    assert 0 <= held.slack < 1 and held.next_step.more_bytes > 0
    assert held.next_step.context_tokens % held.memory.block_size == 0
    if held.next_step.context_tokens >= 1_000 and not hybrid:
        shorter = hold(strategy, utilization=utilization, context_tokens=held.next_step.context_tokens, **words)
        assert shorter.num_sequences >= held.num_sequences + 1
    if held.next_step.utilization is not None and held.next_step.utilization < 0.99:
        more = hold(strategy, utilization=float(f"{held.next_step.utilization:.3f}"), context_tokens=context, **words)
        assert more.num_sequences >= held.num_sequences + 1


@pytest.mark.parametrize("context", [262_144, 200_000, 129, 128, 1])
def test_a_pool_hands_out_as_many_sequences(context: int) -> None:
    held = hold(context_tokens=context, num_gpu_blocks_override=5000)
    pool = BlockPool(held.memory.num_blocks, held.memory.block_size)
    num_sequences = 0
    while (blocks := -(-context // pool.block_size)) <= pool.num_free_blocks:
        pool.allocate(blocks)
        num_sequences += 1
    assert held.num_cached == num_sequences


def test_the_printed_next_step_is_enough() -> None:
    for watermark in (0.0, 0.05):
        held = hold(watermark=watermark)
        step = held.next_step
        assert step.utilization is not None
        printed = f"{step.utilization:.3f}"
        assert hold(watermark=watermark, utilization=float(printed)).num_sequences == held.num_sequences + 1
        size = report.next_more(held).removesuffix(" more").replace(" ", "")
        cache_bytes = held.memory.cache_bytes + parse_bytes(size)
        more = hold(watermark=watermark, utilization=1.0, kv_cache_memory_bytes=str(cache_bytes))
        assert more.num_sequences == held.num_sequences + 1


def test_what_binds() -> None:
    assert hold().binds == "cache memory"
    assert hold(watermark=0.05).binds == "watermark"
    assert hold(watermark=1.0).num_cached == 0
    few = hold(context_tokens=8192)
    assert (few.binds, few.num_sequences, few.next_step.max_num_seqs) == ("max_num_seqs", 64, 65)
    assert few.num_cached > 64
    given = hold(kv_cache_memory_bytes="100GB")
    assert given.binds == "kv_cache_memory_bytes" and given.next_step.utilization is None


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError) as caught:
        capacity.measure(published.deploy("m3", "b300", "tp2"))
    assert re.search(
        r"max_model_len 524288 needs a cache of .* weights 399 GiB, .*give it more memory", str(caught.value)
    )
    with pytest.raises(CapacityError, match=r"set --max-model-len \d+ or less"):
        capacity.measure(published.deploy("m3.1-flash", "h100", "tp4"))


def test_shares_of_weights_on_a_rank() -> None:
    found = capacity.measure(published.flash())
    routed = next(share for share in found.weights.shares if share.kind == "routed expert")
    assert round(routed.num_bytes / 1e9, 2) == 58.10
    assert round((found.weights.num_bytes - routed.num_bytes) / 1e9, 2) == 17.72
    assert found.graph_tokens == 64 * 8


@pytest.mark.parametrize(
    ("context_tokens", "percent"),
    [(16_384, 25.0), (65_536, 15.6), (131_072, 14.1), (262_144, 13.3), (524_288, 12.9), (1_048_576, 12.7)],
)
def test_sparse_attention_reads_an_eighth_and_the_chosen_blocks(context_tokens: int, percent: float) -> None:
    layout, model = hold("dep4").layout, published.flash().model
    share = capacity.read_share(layout, model, context_tokens)
    assert share == pytest.approx(0.125 + 2048 / context_tokens) and round(100 * share, 1) == percent
    assert capacity.read_share(layout, model, 100) == pytest.approx(1.125)  # all blocks are chosen, and scored
    dense = published.deploy("m3.1-flash", "b300", "dep4", dense=True, speculation=False)
    assert capacity.read_share(capacity.row(dense, EVERYTHING), dense.model, context_tokens) is None
