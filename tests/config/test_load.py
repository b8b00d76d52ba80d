"""where values come from, and how they are read"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from minnow.config import flags, load
from minnow.config.engine import EngineConfig
from minnow.config.model import ModelConfig, QuantizationConfig, SparseConfig
from minnow.core.errors import ConfigError


def _load(*words: str, environ: Mapping[str, str] | None = None) -> load.Loaded:
    parser = flags.new_parser("minnow serve", "about")
    flags.add_arguments(parser)
    return load.load(flags.parse(parser, list(words)), environ or {})


def _model(
    quantization: QuantizationConfig | None = None, block_size: int = 128, is_sparse: bool = True
) -> ModelConfig:
    return ModelConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        dense_intermediate_size=64, is_moe=(False,), max_position_embeddings=4096,
        sparse=SparseConfig(is_sparse=(is_sparse,), block_size=block_size, num_index_heads=2),
        quantization=quantization or QuantizationConfig(),
    )  # fmt: skip


def test_nothing_given_is_all_defaults() -> None:
    loaded = _load()
    assert loaded.config == EngineConfig()
    assert set(loaded.origin_by_field) == set(flags.settings())
    assert set(loaded.origin_by_field.values()) == {"default"}


@pytest.mark.parametrize(("suffix", "text"), [
    ("toml", 'max_num_seqs = 3\nblock-size = 64\nport = 1\n[attention_config]\nindexer_kv_dtype = "fp8"\n'),
    ("json", '{"max_num_seqs": 3, "block_size": 64, "port": 1, "attention_config": {"indexer_kv_dtype": "fp8"}}'),
])  # fmt: skip
def test_flags_win_over_environment_over_file(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"minnow.{suffix}"
    path.write_text(text)
    environ = {"MINNOW_BLOCK_SIZE": "32", "MINNOW_PORT": "2", "MINNOW_HOME": "/models", "OTHER": "1"}
    loaded = _load("--config", str(path), "--port", "3", environ=environ)
    config = loaded.config
    assert (config.scheduler.max_num_seqs, config.cache.block_size, config.server.port) == (3, 32, 3)
    assert config.attention_config.indexer_kv_dtype == "fp8"
    origins = loaded.origin_by_field
    assert origins["max_num_seqs"] == f"file minnow.{suffix}"
    assert origins["attention_config.indexer_kv_dtype"] == f"file minnow.{suffix}"
    assert origins["block_size"] == "environment MINNOW_BLOCK_SIZE"
    assert origins["port"] == "flag --port"
    assert origins["host"] == "default"


def test_json_and_dotted_forms() -> None:
    assert (
        _load("--attention-config", '{"indexer_kv_dtype": "nvfp4"}').config.attention_config.indexer_kv_dtype == "nvfp4"
    )
    both = _load("--attention-config.indexer_kv_dtype", "fp8", "--attention-config", '{"indexer_kv_dtype": "nvfp4"}')
    assert both.config.attention_config.indexer_kv_dtype == "fp8"
    environ = {"MINNOW_ATTENTION_CONFIG": '{"indexer_kv_dtype": "bfloat16"}'}
    assert _load(environ=environ).config.attention_config.indexer_kv_dtype == "bfloat16"
    over = _load("--attention-config", '{"indexer_kv_dtype": "nvfp4"}', environ=environ)
    assert over.config.attention_config.indexer_kv_dtype == "nvfp4"


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8000), ("8K", 8192), ("1M", 1048576), ("1m", 10**6), ("2.5k", 2500), ("1_024", 1024)]
)
def test_human_numbers(text: str, tokens: int) -> None:
    assert _load("--max-model-len", text).config.max_model_len == tokens


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--block-size", "many"], "flag --block-size: 'many' does not fit block_size; it takes a whole number"),
        (["--block-size", "1.5"], "flag --block-size: '1.5' does not fit block_size; it takes a whole number"),
        (["--max-num-seqs", "-4"], "flag --max-num-seqs: max_num_seqs is -4; it must be at least 1"),
        (["--watermark", "nan"], "flag --watermark: 'nan' does not fit watermark; it takes a number"),
        (["--port", "70000"], "flag --port: port is 70000; it must be 0 to 65535"),
        (
            ["--kv-cache-dtype", "fp6"],
            "flag --kv-cache-dtype: 'fp6' does not fit kv_cache_dtype; it takes one of auto, float32",
        ),
        (
            ["--kv-cache-memory-bytes", "2 apples"],
            "flag --kv-cache-memory-bytes: '2 apples' is no number of bytes; write for example 16GiB",
        ),
        (["--attention-config", "{"], "flag --attention-config: '{' is no JSON"),
        (["--attention-config", "[]"], "flag --attention-config: '[]' is no JSON object"),
        (
            ["--attention-config", '{"indexer_dtype": "fp8"}'],
            "flag --attention-config: no setting is called 'attention_config.indexer_dtype'; "
            "did you mean attention_config.indexer_kv_dtype?",
        ),
        (["a", "--model", "b"], "the model is given twice, as 'a' and as --model 'b'; leave one out"),
        (["--config", "x.yaml"], "--config is 'x.yaml'; a .json or .toml file is needed"),
        (["--config", "no-such.json"], "--config: no-such.json cannot be read: No such file or directory"),
    ],
)
def test_wrong_values_are_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        _load(*words)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "x = ["), ("a.json", "{"), ("b.json", "[1]")])
def test_broken_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        _load("--config", str(tmp_path / name))


def test_wrong_name_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("max_seqs = 3")
    with pytest.raises(ConfigError, match=r"file a.toml: no setting is called 'max_seqs'; did you mean max_num_seqs\?"):
        _load("--config", str(tmp_path / "a.toml"))


def test_a_flag_of_several_words_and_a_list_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "minnow.toml"
    path.write_text('numa_bind_nodes = [0, 1]\nnuma_bind_cpus = ["0-3", "4-7"]')
    from_file = _load("--config", str(path)).config.kernel
    assert (from_file.numa_bind_nodes, from_file.numa_bind_cpus) == ("0 1", "0-3 4-7")
    from_flags = _load("--numa-bind", "--numa-bind-nodes", "0", "1", "--numa-bind-cpus", "0-3", "4-7").config.kernel
    assert (from_flags.numa_bind_nodes, from_flags.numa_bind_cpus, from_flags.numa_bind) == ("0 1", "0-3 4-7", True)


def test_wrong_name_in_the_environment() -> None:
    with pytest.raises(ConfigError, match="environment MINNOW_BLOCKSIZE: no setting"):
        _load(environ={"MINNOW_BLOCKSIZE": "128"})


def test_switches_in_the_environment() -> None:
    assert _load(environ={"MINNOW_ENABLE_PREFIX_CACHING": "0"}).config.cache.enable_prefix_caching is False
    with pytest.raises(ConfigError, match="'perhaps' does not fit enable_prefix_caching; it takes true or false"):
        _load(environ={"MINNOW_ENABLE_PREFIX_CACHING": "perhaps"})


def test_from_python() -> None:
    loaded = load.from_values({"max_num_seqs": 5, "kv_cache_dtype": "fp8", "kv_cache_memory_bytes": 4096}, {})
    assert loaded.config.scheduler.max_num_seqs == 5
    assert loaded.config.cache.kv_cache_memory_bytes == "4096"
    assert loaded.origin_by_field["max_num_seqs"] == "argument max_num_seqs"
    with pytest.raises(ConfigError, match="argument max_num_seqs: True does not fit"):
        load.from_values({"max_num_seqs": True}, {})
    with pytest.raises(ConfigError, match=r"did you mean max_num_seqs\?"):
        load.from_values({"max_seqs": 5}, {})


def test_auto_takes_the_models_values() -> None:
    chosen = EngineConfig()
    resolved = load.resolve_auto(chosen, _model(QuantizationConfig(scheme="minnow", kv_cache="fp8"), block_size=16))
    assert resolved.dtype == "bfloat16"
    assert resolved.cache.kv_cache_dtype == "fp8"
    assert resolved.attention_config.indexer_kv_dtype == "fp8"
    assert resolved.max_model_len == 4096
    assert resolved.cache.block_size == 16
    assert chosen == EngineConfig()


def test_auto_without_a_word_from_the_model() -> None:
    resolved = load.resolve_auto(EngineConfig(), _model(is_sparse=False, block_size=16))
    assert (resolved.cache.kv_cache_dtype, resolved.cache.block_size) == ("bfloat16", 128)


def test_what_was_chosen_is_kept() -> None:
    chosen = _load("--kv-cache-dtype", "nvfp4", "--attention-config.indexer_kv_dtype", "bfloat16",
                   "--max-model-len", "100", "--block-size", "64", "--dtype", "float32").config  # fmt: skip
    assert load.resolve_auto(chosen, _model()) == chosen


def test_namespace_of_other_arguments_is_ignored() -> None:
    assert load.load(argparse.Namespace(prompt="x"), {}).config == EngineConfig()
