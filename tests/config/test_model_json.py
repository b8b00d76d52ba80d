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


def test_unknown_fields_are_named() -> None:
    assert parse(_with(mystery=1)).unknown_fields == ("text_config.mystery",)
