"""Llama-family configs become M3 configs, or are refused with a reason"""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from minnow.checkpoint import llama
from minnow.config.model import parse
from minnow.core.errors import CheckpointError
from tests.checkpoint import llama_files

STRETCHED = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def hf(**changed: Any) -> dict[str, Any]:
    raw = llama_files.llama_config().to_dict() | {"architectures": ["LlamaForCausalLM"]}
    return raw | changed


def test_the_result_is_read_without_unknown_fields() -> None:
    config = parse(llama.to_m3(hf()))
    assert config.unknown_fields == ()
    assert (config.use_gemma_norm, config.use_qk_norm, config.hidden_act) == (False, False, "silu")
    assert (config.rotary_dim, config.head_dim, config.dense_intermediate_size) == (32, 32, 96)
    assert not any(config.is_moe) and not any(config.sparse.is_sparse)
    assert config.tie_word_embeddings and config.eos_token_ids == (257,)
    assert config.rms_norm_eps == 1e-5 and config.rope_theta == 10000.0


def test_old_and_new_spellings_mean_the_same() -> None:
    new = hf(rope_parameters=STRETCHED | {"rope_theta": 5e5})
    old = {k: v for k, v in hf(rope_scaling=STRETCHED, rope_theta=5e5).items() if k != "rope_parameters"}
    assert parse(llama.to_m3(new)) == parse(llama.to_m3(old))
    scaling = parse(llama.to_m3(new)).rope_scaling
    assert scaling is not None and scaling.factor == 32.0


def test_missing_fields_take_the_familys_defaults() -> None:
    raw = {k: v for k, v in hf().items() if k not in ("head_dim", "num_key_value_heads", "rope_parameters")}
    config = parse(llama.to_m3(raw))
    assert (config.head_dim, config.num_key_value_heads, config.rope_theta) == (32, 4, 10000.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_activations_are_f32_only_where_the_model_is(dtype: str) -> None:
    assert parse(llama.to_m3(hf(dtype=dtype))).dtype == ("float32" if dtype == "float32" else "bfloat16")


def test_mistral_without_a_window_is_the_same_model() -> None:
    raw = hf(architectures=["MistralForCausalLM"], sliding_window=None)
    assert parse(llama.to_m3(raw)) == parse(llama.to_m3(hf()))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            r"is a \['Qwen2ForCausalLM'\]; LlamaForCausalLM and Mistral",
        ),
        ({"architectures": None}, "LlamaForCausalLM"),
        ({"attention_bias": True}, "attention_bias is True.*biases"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"sliding_window": 4096}, "sliding_window is 4096.*whole context"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type is 'yarn'; 'default' and 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type is 'linear'"),
        ({"hidden_size": None}, "hidden_size is None; a whole number"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_what_the_decoder_is_not_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        llama.to_m3(hf(**changed))


def of_gguf(factors: list[float] | None = None, **changed: Any) -> dict[str, Any]:
    pairs = llama_files.metadata_of_llama() | {key.replace("__", "."): value for key, value in changed.items()}
    present = {key: value for key, value in pairs.items() if value is not None}
    return llama.to_m3(llama.config_of_gguf(present, is_tied=True, rope_factors=factors))


def test_gguf_metadata_say_the_same_config() -> None:
    eps = {"llama__attention__layer_norm_rms_epsilon": 9.999999747378752e-06}  # 1e-5 as F32
    config = parse(of_gguf(**eps))
    assert config == parse(llama.to_m3(hf(eos_token_id=[257], dtype="float32")))


def test_gguf_end_of_turn_ends_generation_too() -> None:
    assert parse(of_gguf(tokenizer__ggml__eot_token_id=258)).eos_token_ids == (257, 258)


def test_llama3_scaling_is_found_behind_the_divisors() -> None:
    plain = LlamaConfig(hidden_size=128, num_attention_heads=4, head_dim=64)
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, head_dim=64, rope_parameters=STRETCHED | {"rope_theta": 5e5}
    )
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert plain.head_dim == 64
    frequencies = 5e5 ** (-torch.arange(0, 64, 2) / 64)
    divisors = (frequencies / stretched).tolist()
    shape = {"llama__rope__freq_base": 5e5, "llama__rope__dimension_count": 64, "llama__attention__key_length": 64}
    shape |= {"llama__attention__value_length": 64}
    scaling = parse(of_gguf(divisors, **shape)).rope_scaling
    assert scaling is not None
    assert scaling.factor == pytest.approx(32.0) and scaling.original_max_position_embeddings == 8192
    with pytest.raises(CheckpointError, match="not Llama 3's rule"):
        of_gguf([d * 1.1 for d in divisors], **shape)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"general__architecture": "qwen2"}, "general.architecture is 'qwen2'"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
        ({"llama__rope__dimension_count": 16}, "heads have 32 values, of which 16 are rotated"),
        ({"llama__attention__head_count": None}, "head_count None"),
        ({"llama__block_count": None}, "num_hidden_layers is None"),
        ({"llama__attention__sliding_window": 512}, "sliding_window is 512"),
    ],
)
def test_ggufs_of_other_models_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        of_gguf(**changed)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("token_embd.weight", "model.embed_tokens"),
        ("output.weight", "lm_head"),
        ("output_norm.weight", "model.norm"),
        ("blk.11.attn_output.weight", "model.layers.11.self_attn.o_proj"),
        ("blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj"),
        ("blk.0.attn_q.bias", "blk.0.attn_q.bias"),
        ("blk.0.output.weight", "blk.0.output.weight"),
        ("attn_q.weight", "attn_q.weight"),
        ("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight"),
    ],
)
def test_gguf_names(name: str, module: str) -> None:
    assert llama.module_of_gguf(name) == module


def test_stored_rows_undo_the_ggufs_order() -> None:
    rows = torch.arange(3 * 8)
    in_file = torch.from_numpy(llama_files.interleaved(rows.numpy(), 3))
    assert in_file.tolist()[:8] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert in_file[llama.stored_rows(range(24), 8)].tolist() == rows.tolist()
