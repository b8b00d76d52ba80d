"""settings that cannot work with the model are refused before any weight is read"""

from dataclasses import replace

import pytest

from minnow.config.cache import CacheConfig
from minnow.config.engine import AttentionConfig, EngineConfig, check, problems
from minnow.config.load import resolve_auto
from minnow.config.model import ModelConfig, SparseConfig
from minnow.config.parallel import ParallelConfig
from minnow.core.errors import ConfigError

MODEL = ModelConfig(
    vocab_size=256, hidden_size=64, num_hidden_layers=1, num_attention_heads=12, num_key_value_heads=4, head_dim=128,
    dense_intermediate_size=64, is_moe=(False,), max_position_embeddings=4096, sparse=SparseConfig(is_sparse=(True,)),
)  # fmt: skip


def _problems(config: EngineConfig, model: ModelConfig = MODEL) -> tuple[str, ...]:
    return problems(resolve_auto(config, model), model)


def test_defaults_work() -> None:
    check(resolve_auto(EngineConfig(), MODEL), MODEL)


@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_a20_block_size_names_flag_value_and_need(block_size: int) -> None:
    with pytest.raises(ConfigError, match=rf"--block-size is {block_size};.*needs 128"):
        check(resolve_auto(EngineConfig(cache=CacheConfig(block_size=block_size)), MODEL), MODEL)


def test_a20_block_size_is_chosen_where_none_is_given() -> None:
    assert resolve_auto(EngineConfig(), MODEL).cache.block_size == 128


def test_dense_models_take_any_block_size() -> None:
    dense = replace(MODEL, sparse=SparseConfig(is_sparse=(False,)))
    assert _problems(EngineConfig(cache=CacheConfig(block_size=16)), dense) == ()


def test_context_longer_than_the_models() -> None:
    (sentence,) = _problems(EngineConfig(max_model_len=4097))
    assert "--max-model-len is 4097" in sentence
    assert "4096" in sentence


def test_many_devices_are_not_served_yet() -> None:
    (sentence,) = _problems(EngineConfig(parallel=ParallelConfig(tensor_parallel_size=4)))
    assert "--tensor-parallel-size is 4" in sentence
    (sentence,) = _problems(EngineConfig(parallel=ParallelConfig(data_parallel_size=2)))
    assert "--data-parallel-size is 2" in sentence


def test_one_block_is_none() -> None:
    (sentence,) = _problems(EngineConfig(cache=CacheConfig(num_gpu_blocks_override=1)))
    assert "--num-gpu-blocks-override is 1" in sentence


def test_nvfp4_cache_needs_whole_scale_blocks() -> None:
    narrow = replace(MODEL, head_dim=24, sparse=SparseConfig(is_sparse=(True,), index_dim=40))
    sentences = _problems(EngineConfig(cache=CacheConfig(kv_cache_dtype="nvfp4")), narrow)
    assert [s.split()[0] for s in sentences] == ["--kv-cache-dtype", "--attention-config.indexer_kv_dtype"]
    mixed = EngineConfig(
        cache=CacheConfig(kv_cache_dtype="fp8"), attention_config=AttentionConfig(indexer_kv_dtype="nvfp4")
    )
    assert [s.split()[0] for s in _problems(mixed, narrow)] == ["--attention-config.indexer_kv_dtype"]


def test_all_problems_in_one_message() -> None:
    config = EngineConfig(max_model_len=5000, cache=CacheConfig(block_size=16))
    with pytest.raises(ConfigError, match=r"--block-size.*; --max-model-len"):
        check(resolve_auto(config, MODEL), MODEL)
