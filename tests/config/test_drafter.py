"""what a drafter's config.json may say, and what it may not leave open"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minnow.config.drafter import DrafterConfig, find, parse_drafter, read
from minnow.config.model import ModelConfig, known, known_directory, parse
from minnow.core.errors import ConfigError
from tests import tiny

M31 = {
    "num_hidden_layers": 5,
    "hidden_size": 6144,
    "vocab_size": 200064,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rotary_dim": 64,
    "rope_theta": 5000000,
    "dense_intermediate_size": 12288,
    "dspark_ffn_hidden_size": 12288,
    "dspark_block_size": 7,
    "dspark_noise_token_id": 200058,
    "dspark_markov_rank": 256,
    "dspark_markov_head_type": "vanilla",
    "dspark_target_layer_ids": [3, 17, 31, 45, 59],
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 4096,
    "moe_layer_freq": [0] * 5,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "dspark_use_dense_ffn": True,
    "dspark_hybrid_context_fusion": False,
    "use_gemma_norm": True,
    "hidden_act": "swigluoai",
    "sparse_attention_config": None,
}


def target() -> ModelConfig:
    return parse(tiny.config_json(family="llama"))


def of(**changes: Any) -> DrafterConfig:
    return parse_drafter(tiny.drafter_json(target()) | changes, target())


def test_the_drafter_of_m3_1() -> None:
    flash = known("m3.1-flash")
    assert flash is not None
    config = parse_drafter({"architectures": ["DSparkMiniMaxDraftModel"], "text_config": M31}, flash)
    assert (config.block_size, config.window, config.target_layer_ids) == (7, 4096, (3, 17, 31, 45, 59))
    assert (config.mask_token_id, config.markov_rank, config.markov_head_type) == (200058, 256, "vanilla")
    backbone = config.backbone
    assert (backbone.num_hidden_layers, backbone.dense_intermediate_size, backbone.rotary_dim) == (5, 12288, 64)
    assert backbone.use_qk_norm and backbone.norm_offset == 1.0 and backbone.hidden_act == "swigluoai"
    assert not any(backbone.is_moe) and not any(backbone.sparse.is_sparse) and not config.is_reduced
    published = read(known_directory("MiniMaxAI/MiniMax-M3.1-Flash") / "dspark", flash)
    assert published.backbone.quantization.scheme == "mxfp8"
    plain = replace(published.backbone, quantization=backbone.quantization)
    assert replace(published, backbone=plain) == config


def test_heads_like_the_targets_turn_as_far_as_theirs() -> None:
    half = replace(target(), rotary_dim=8)
    raw = tiny.drafter_json(target())
    assert parse_drafter(raw, half).backbone.rotary_dim == 8
    assert parse_drafter(raw | {"head_dim": 32}, half).backbone.rotary_dim == 32


def test_other_spellings() -> None:
    raw = tiny.drafter_json(target())
    ids, mask = raw.pop("target_layer_ids"), raw.pop("mask_token_id")
    raw["dflash_config"] = {"target_layer_ids": ids, "mask_token_id": mask, "causal": False}
    assert parse_drafter(raw, target()) == of()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dspark_blok_size": 5}, "has dspark_blok_size; nothing here knows what that means"),
        ({"dflash_config": {"swa": 3}}, "has dflash_config.swa; nothing here knows"),
        ({"dspark_block_size": 6}, "contradicts itself: block_size 5 and dspark_block_size 6"),
        ({"block_size": 0}, "block_size is 0; a whole number from 1 on"),
        ({"target_layer_ids": [0, 3]}, r"target_layer_ids is \[0, 3\]; it lists layers of the target, -1 to 2"),
        ({"target_layer_ids": [2, 0]}, "each layer once, in ascending order"),
        ({"hidden_size": 128}, "hidden_size is 128, the model's is 64; it was made for another model"),
        ({"vocab_size": 321}, "vocab_size is 321, the model's is 320"),
        ({"num_target_layers": 30}, "num_target_layers is 30, the model's is 3"),
        ({"sample_from_anchor": False}, "sample_from_anchor is False; here slot k drafts the token after position k"),
        ({"is_causal": True}, "block is causal; a DSpark block sees all of itself"),
        ({"moe_layer_freq": [0, 1]}, "its layers are dense here"),
        ({"layer_types": ["sliding_attention"] * 2}, "names no sliding_window"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "all sliding_attention or all full_attention"),
        ({"markov_head_type": "deep"}, "markov_head_type is 'deep'; it must be vanilla, gated, rnn"),
        ({"mask_token_id": 320}, "mask_token_id is 320; ids are 0 to 319"),
        ({"draft_vocab_size": 400}, "draft_vocab_size is 400; it must be 1 to 320"),
        ({"confidence_temperatures": [1.0]}, "1 confidence_temperatures; 5 are needed"),
        ({"confidence_temperatures": "warm"}, "a list with an entry a layer|numbers above 0"),
        ({"confidence_temperatures": [1, 1, 1, 1, 0]}, "numbers above 0 are needed, one a draft"),
        ({"layer_types": [{}, {}]}, "a word a layer is needed"),
        ({"layer_types": ["full_attention"]}, "a word a layer is needed"),
        ({"enable_confidence_head": "false"}, "enable_confidence_head is 'false'"),
        ({"draft_vocab_size": "90"}, "draft_vocab_size is '90'; it must be 1 to 320"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
        ({"use_qk_norm": False}, "each head of queries and keys has a norm"),
        ({"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        of(**changes)


def test_where_a_drafter_lies(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    tiny.write_tiny_drafter(tmp_path, tiny.write_tiny(tmp_path, family="llama"))
    assert find(tmp_path) == tmp_path / "dspark"
