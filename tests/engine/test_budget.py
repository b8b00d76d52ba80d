"""how many blocks fit"""

from dataclasses import replace

import pytest

from minnow.cache.layout import BlockLayout, PageGroup
from minnow.config.cache import CacheConfig
from minnow.core.errors import CapacityError, ConfigError
from minnow.engine.budget import MemoryPlan, plan_memory
from minnow.formats.spec import SPEC_BY_NAME

GIB = 2**30
LAYOUT = BlockLayout(  # 8 layers x 2 x 4 heads x 128 bytes x 128 tokens = 1 MiB a block
    groups=(
        PageGroup(
            name="kv", layers=tuple(range(8)), num_heads=4, head_dim=128, format=SPEC_BY_NAME["fp8"], has_values=True
        ),
    ),
    block_size=128,
)
CACHE = CacheConfig(gpu_memory_utilization=0.5)


def plan(cache: CacheConfig = CACHE, *, available_gib: int = 8, max_model_len: int = 1000) -> MemoryPlan:
    """The plan with 1 GiB of weights and 1 GiB of workspace."""
    return plan_memory(
        cache,
        LAYOUT,
        available_bytes=available_gib * GIB,
        weights_bytes=GIB,
        workspace_bytes=GIB,
        max_model_len=max_model_len,
    )


def test_the_cache_gets_what_is_left() -> None:
    got = plan()
    assert (got.limit_bytes, got.row_bytes, got.num_blocks) == (4 * GIB, 2**20, 2048)
    assert got.cache_bytes == 2 * GIB and got.total_bytes == 4 * GIB
    assert got.num_tokens == 2047 * 128
    assert got.max_concurrency == 2047 // 8 == 255  # whole blocks, eight for 1,000 tokens


def test_a_given_number_of_bytes_is_taken_where_it_fits() -> None:
    assert plan(replace(CACHE, kv_cache_memory_bytes="1GiB")).num_blocks == 1024
    assert plan(replace(CACHE, kv_cache_memory_bytes="2GiB")).num_blocks == 2048


def test_a_cache_that_does_not_fit_is_refused_with_all_numbers() -> None:
    """Case F04: limit, weights, workspace, cache, and the largest cache that fits."""
    with pytest.raises(CapacityError) as caught:
        plan(replace(CACHE, kv_cache_memory_bytes="3GiB"))
    for words in ("cache of 3 GiB", "limit 4 GiB", "weights 1 GiB", "workspace 1 GiB", "has 2 GiB", str(2 * GIB)):
        assert words in str(caught.value)


def test_one_sequence_must_fit() -> None:
    assert plan(max_model_len=2047 * 128).max_concurrency == 1
    with pytest.raises(CapacityError, match=rf"max_model_len {2047 * 128 + 1} .*--max-model-len {2047 * 128} or less"):
        plan(max_model_len=2047 * 128 + 1)
    with pytest.raises(CapacityError, match="largest cache that fits 0 B; give it more memory"):
        plan(available_gib=4)


def test_an_override_is_taken_as_it_is() -> None:
    got = plan(replace(CACHE, num_gpu_blocks_override=3), available_gib=1)
    assert (got.num_blocks, got.num_tokens, got.max_concurrency) == (3, 256, 0)


@pytest.mark.parametrize(
    "cache",
    [
        replace(CACHE, gpu_memory_utilization=0.0),
        replace(CACHE, gpu_memory_utilization=1.5),
        replace(CACHE, num_gpu_blocks_override=-1),
        replace(CACHE, kv_cache_memory_bytes="much"),
    ],
)
def test_settings_without_a_meaning_are_refused(cache: CacheConfig) -> None:
    with pytest.raises(ConfigError):
        plan(cache)
