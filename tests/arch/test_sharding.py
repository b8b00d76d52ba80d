"""every weight has a way to split, and it is the intended one"""

import pytest

from minnow.arch import names
from minnow.arch.sharding import REPLICATED, ShardSpec, spec_of
from minnow.config import model


def test_every_weight_is_in_the_table() -> None:
    config = model.known("m3.1-flash")
    assert config is not None
    for name in names.modules(config):
        spec_of(name)


@pytest.mark.parametrize(
    ("name", "axis", "dim", "unit"),
    [
        ("model.layers.0.self_attn.q_proj", "tp", 0, "head"),
        ("model.layers.0.self_attn.k_proj", "tp", 0, "kv head"),
        ("model.layers.0.self_attn.index_q_proj", "tp", 0, "kv head"),
        ("model.layers.0.self_attn.q_mix", "tp", 0, "kv head"),
        ("model.layers.0.self_attn.k_mix", "tp", 0, "kv head"),
        ("model.layers.0.self_attn.o_proj", "tp", 1, "head"),
        ("model.layers.0.mlp.down_proj", "tp", 1, "value"),
        ("model.layers.9.block_sparse_moe.shared_experts.gate_proj", "tp", 0, "value"),
        ("model.layers.9.block_sparse_moe.experts.127.w2", "ep", 0, "expert"),
        ("model.embed_tokens", "tp", 0, "token id"),
        ("lm_head", "tp", 0, "token id"),
    ],
)
def test_split(name: str, axis: str, dim: int, unit: str) -> None:
    assert spec_of(name) == ShardSpec(axis=axis, dim=dim, unit=unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.index_k_proj",
        "model.layers.0.self_attn.index_k_norm",
        "model.layers.0.input_layernorm",
        "model.layers.4.block_sparse_moe.gate",
        "model.layers.4.block_sparse_moe.e_score_correction_bias",
        "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
    ],
)
def test_copied(name: str) -> None:
    assert spec_of(name) == REPLICATED


def test_unknown_names_are_no_silent_copy() -> None:
    with pytest.raises(KeyError):
        spec_of("model.layers.0.self_attn.g_proj")
