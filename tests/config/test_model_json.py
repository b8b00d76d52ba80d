"""config.json in both of its spellings"""

import copy
from typing import Any

import pytest

from minnow.config.model import parse
from minnow.core.errors import ConfigError
from tests import tiny


def _with(**text: Any) -> dict[str, Any]:
    raw = copy.deepcopy(tiny.config_json(layers=2))
    raw["text_config"].update(text)
    return raw


def test_rope_parameters_are_read() -> None:
    raw = _with(rope_parameters={"rope_type": "default", "rope_theta": 123.0, "partial_rotary_factor": 0.25})
    for name in ("rope_theta", "rotary_dim", "partial_rotary_factor"):
        raw["text_config"].pop(name, None)
    config = parse(raw)
    assert (config.rope_theta, config.rotary_dim, config.rope_scaling) == (123.0, 8, None)
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 99}
    raw["text_config"]["rope_parameters"] |= {"rope_type": "llama3", **scaling}
    assert parse(raw).rope_scaling is not None
    raw["text_config"]["rope_parameters"]["rope_type"] = "yarn"
    with pytest.raises(ConfigError, match="yarn"):
        parse(raw)


def test_explicit_values_win_over_nested_ones() -> None:
    config = parse(_with(index_topk_blocks=2, index_block_size=32))
    assert (config.sparse.num_blocks, config.sparse.block_size) == (2, 32)


def test_transformers_lists_of_layers_are_read() -> None:
    raw = _with(layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"])
    flat = {"index_head_dim": 32, "index_n_heads": 2, "index_topk_blocks": 4, "index_block_size": 16}
    del raw["text_config"]["sparse_attention_config"], raw["text_config"]["moe_layer_freq"]
    raw["text_config"].update(flat, index_local_blocks=1)
    assert parse(raw) == parse(_with())


def test_an_index_head_must_hold_the_rotary_dims() -> None:
    with pytest.raises(ConfigError, match=r"sparse_index_dim is 8; rotary_dim 16"):
        parse(_with(index_head_dim=8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_output_gate", True),
        ("scoring_func", "softmax"),
        ("hidden_act", "gelu"),
        ("num_experts_per_tok", 9),
        ("num_key_value_heads", 3),
        ("moe_layer_freq", [1]),
        ("rotary_dim", 33),
        ("vocab_size", "many"),
    ],
)
def test_what_this_decoder_cannot_do_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        parse(_with(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_key_value_heads", 0, "num_key_value_heads is 0; a whole number of at least 1 is needed"),
        ("hidden_size", -4, "hidden_size is -4; a whole number of at least 1 is needed"),
        ("num_mtp_modules", -1, "num_mtp_modules is -1; a whole number of at least 0 is needed"),
        ("num_local_experts", True, "num_local_experts is True; a whole number"),
        ("intermediate_size", 0, "intermediate_size is 0, but moe_layer_freq has layers with experts"),
        ("moe_layer_freq", 0, "moe_layer_freq is 0; a list with an entry a layer is needed"),
        ("layer_types", 3, "layer_types is 3; a list with an entry a layer is needed"),
        ("mlp_layer_types", "x", "mlp_layer_types is 'x'; a list with an entry a layer is needed"),
        ("sparse_attention_config", "x", "sparse_attention_config is 'x'; an object is needed"),
        ("index_n_heads", 0, "sparse_num_index_heads is 0; a whole number of at least 1 is needed"),
        ("rope_parameters", "x", "rope_parameters is 'x'; an object is needed"),
        ("rope_scaling", "x", "rope_scaling is 'x'; an object is needed"),
        ("rope_scaling", {"rope_type": "llama3"}, r"rope_scaling\.factor is None; a number above 0 is needed"),
        ("rope_theta", 0, "rope_theta is 0; a number above 0 is needed"),
        ("rms_norm_eps", "abc", "rms_norm_eps is 'abc'; a number above 0 is needed"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps is nan; a number above 0 is needed"),
        ("swiglu_limit", [], r"swiglu_limit is \[\]; a number is needed"),
        ("eos_token_id", "x", "eos_token_id is 'x'; a whole number of at least 0 is needed"),
        ("eos_token_id", [1, "x"], "eos_token_id is 'x'; a whole number of at least 0 is needed"),
        ("bos_token_id", 1.5, "bos_token_id is 1.5; a whole number of at least 0 is needed"),
    ],
)
def test_wrong_values_are_one_sentence(field: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: {words}"):
        parse(_with(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("quantization_config", "x", "quantization_config is 'x'; an object is needed"),
        ("quantization_config", {"quant_method": "minnow", "kv_cache": "foo"}, "kv_cache is 'foo'; this decoder knows"),
        ("quantization_config", {"quant_method": "minnow", "formats": 3}, "formats is 3; an object is needed"),
        ("quantization_config", {"quant_method": "mxfp8", "ignored_layers": 3}, "ignored_layers is 3; a list of names"),
        ("vision_config", "x", "vision_config is 'x'; an object is needed"),
        ("vision_config", {"hidden_size": "x"}, "hidden_size is 'x'; a whole number of at least 1 is needed"),
        ("projector_hidden_size", "x", "projector_hidden_size is 'x'; a whole number"),
        ("architectures", 3, "architectures is 3; a list of names is needed"),
    ],
)
def test_wrong_values_beside_the_text_are_one_sentence(field: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: {words}"):
        parse(tiny.config_json(layers=2) | {field: value})


def test_null_is_as_good_as_nothing() -> None:
    text = dict.fromkeys(("rms_norm_eps", "rope_scaling", "rope_parameters", "eos_token_id", "num_mtp_modules"))
    config = parse(_with(**text) | {"vision_config": None, "quantization_config": None})
    assert (config.rms_norm_eps, config.eos_token_ids, config.num_mtp_modules) == (1e-6, (), 0)


def test_unknown_fields_are_named() -> None:
    assert parse(_with(mystery=1)).unknown_fields == ("text_config.mystery",)
