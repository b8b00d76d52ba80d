"""the tables list exactly the tensors of the published checkpoints"""

import functools
import math
from collections import Counter

import pytest

from minnow.arch import names
from minnow.arch.names import TensorSpec
from minnow.arch.storage import ITEM_BYTES
from minnow.config import model
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError, FormatError
from tests import tiny


def known(name: str) -> ModelConfig:
    config = model.known(name)
    assert config is not None
    return config


@functools.cache
def expected_of(name: str) -> dict[str, TensorSpec]:
    return names.expected(known(name))


def num_bytes(name: str) -> int:
    return sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in expected_of(name).values())


def test_flash_counts_and_bytes() -> None:
    modules, expected = names.modules(known("MiniMaxAI/MiniMax-M3.1-Flash")), expected_of("m3.1-flash")
    assert len(expected) == 89_632
    assert round(num_bytes("m3.1-flash") / 1e9, 1) == 250.1
    count = Counter(modules[spec.module].kind for spec in expected.values())
    assert count["routed expert"] == 57 * 128 * 3 * 4
    in_layers = [s for s in expected.values() if ".self_attn." in s.name or "layernorm" in s.name]
    assert len([s for s in in_layers if s.name.startswith("language_model.")]) == 60 * 18
    assert count["dense ffn"] == 3 * 6
    assert count["router"] + count["router bias"] + count["shared expert"] == 57 * 8
    assert count["embedding"] + count["head"] + ("model.norm" in modules) == 3
    assert count["vision"] == 32 * 16 + 1 + 2 + 4 + 4


def test_mxfp8_and_plain_bytes() -> None:
    assert round(num_bytes("m3-mxfp8") / 1e9, 1) == 443.7
    assert round(num_bytes("m3") / 1e9) == 854


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "part"),
    [
        ("layers.7.block_sparse_moe.experts.5.w1.weight_packed", "U8", (3072, 3072), "codes"),
        ("layers.7.block_sparse_moe.experts.5.w2.weight_scale", "F8_E4M3", (6144, 192), "scales"),
        ("layers.7.block_sparse_moe.experts.5.w3.weight_global_scale", "F32", (1,), "global_scale"),
        ("layers.7.block_sparse_moe.experts.5.w3.input_global_scale", "F32", (1,), "input_scale"),
        ("layers.0.self_attn.index_q_proj.weight", "F8_E4M3", (512, 6144), "codes"),
        ("layers.0.self_attn.index_k_proj.weight_scale_inv", "U8", (128, 192), "scales"),
        ("layers.59.self_attn.o_proj.weight", "F8_E4M3", (6144, 8192), "codes"),
        ("layers.2.mlp.down_proj.weight_scale_inv", "U8", (6144, 384), "scales"),
        ("layers.3.block_sparse_moe.gate.weight", "F32", (128, 6144), "weight"),
        ("layers.3.block_sparse_moe.e_score_correction_bias", "F32", (128,), "weight"),
        ("layers.3.block_sparse_moe.shared_experts.up_proj.weight", "F8_E4M3", (3072, 6144), "codes"),
        ("layers.3.self_attn.index_k_norm.weight", "BF16", (128,), "weight"),
        ("embed_tokens.weight", "BF16", (200064, 6144), "weight"),
    ],
)
def test_flash_tensors(name: str, dtype: str, shape: tuple[int, ...], part: str) -> None:
    spec = expected_of("m3.1-flash")[f"language_model.model.{name}"]
    assert (spec.dtype, spec.shape, spec.part) == (dtype, shape, part)


def test_vision_shapes() -> None:
    expected = expected_of("m3.1-flash")
    tower = "vision_tower.vision_model"
    assert expected[f"{tower}.embeddings.patch_embedding.weight"].shape == (1280, 3, 2, 14, 14)
    assert expected[f"{tower}.encoder.layers.31.mlp.fc1.bias"].shape == (5120,)
    assert expected["patch_merge_mlp.linear_1.weight"].shape == (6144, 24576)
    assert f"{tower}.post_layernorm.weight" not in expected


def test_dense_layers_of_m3_have_no_index() -> None:
    expected = expected_of("m3")
    assert "language_model.model.layers.2.self_attn.index_q_proj.weight" not in expected
    assert "language_model.model.layers.3.self_attn.index_q_proj.weight" in expected


def test_router_takes_f32_and_bf16_but_no_f16() -> None:
    spec = expected_of("m3")["language_model.model.layers.3.block_sparse_moe.gate.weight"]
    assert {spec.dtype, *spec.also} == {"F32", "BF16"}


def test_llama_falls_out_of_the_same_table() -> None:
    config = model.parse(tiny.config_json(family="llama", layers=2))
    found = set(names.modules(config))
    layer = {"input_layernorm", "post_attention_layernorm"}
    layer |= {f"self_attn.{p}_proj" for p in "qkvo"} | {f"mlp.{p}_proj" for p in ("gate", "up", "down")}
    assert found == {"model.embed_tokens", "model.norm"} | {f"model.layers.{i}.{n}" for i in (0, 1) for n in layer}


def test_own_conversions_name_formats_by_module() -> None:
    formats = {"model.layers.*.self_attn.q_proj": "int4", "model.embed_tokens": "int8", "model.layers.1.mlp.*": "fp8"}
    config = model.parse(tiny.config_json(family="llama", layers=2, formats=formats))
    expected = names.expected(config)
    prefix = "language_model.model"
    assert expected[f"{prefix}.layers.1.self_attn.q_proj.weight_packed"].shape == (64, 32)
    assert expected[f"{prefix}.layers.1.self_attn.q_proj.weight_min"].dtype == "F16"
    assert expected[f"{prefix}.embed_tokens.weight"].dtype == "I8"
    assert expected[f"{prefix}.embed_tokens.weight_scale"].shape == (320, 2)
    # "*" stands for a number, so no mlp projection is meant
    assert set(expected[f"{prefix}.layers.1.mlp.up_proj.weight"].also) == {"F32", "F16"}


def test_unknown_format_is_refused() -> None:
    config = model.parse(tiny.config_json(family="llama", formats={"model.embed_tokens": "int3"}))
    with pytest.raises(ConfigError, match=r"format 'int3' of model\.embed_tokens"):
        names.expected(config)


@pytest.mark.parametrize(
    "entry",
    [
        "model.layers.1.self_attn.o_proj",
        "language_model.model.layers.1.self_attn.o_proj.weight",
        "self_attn.o_proj",
        "language_model.model.layers.1",
        "model.layers.1*",
        "*.o_proj",
        r"re:.*o_proj$",
    ],
)
def test_ignored_modules_stay_plain(entry: str) -> None:
    raw = tiny.config_json(format="mxfp8")
    raw["quantization_config"] = {"quant_method": "mxfp8", "ignored_layers": [entry]}
    expected = names.expected(model.parse(raw))
    assert expected["language_model.model.layers.1.self_attn.o_proj.weight"].dtype == "BF16"
    assert expected["language_model.model.layers.2.self_attn.q_proj.weight"].dtype == "F8_E4M3"


def test_ignoring_the_gate_does_not_ignore_gate_proj() -> None:
    expected = names.expected(model.parse(tiny.config_json(format="mxfp8")))
    assert expected["language_model.model.layers.0.mlp.gate_proj.weight"].dtype == "F8_E4M3"


def test_widths_that_fill_no_block_are_refused_by_name() -> None:
    config = model.parse(tiny.config_json(format="mxfp8", dense_intermediate_size=48))
    with pytest.raises(FormatError, match=r"model\.layers\.0\.mlp\.down_proj: .*48"):
        names.expected(config)


def test_multi_token_prediction_is_ignored() -> None:
    assert names.is_ignored("language_model.model.mtp.layers.0.enorm.weight")
    assert names.is_ignored("model.mtp.0.eh_proj.weight")
    assert not names.is_ignored("language_model.model.norm.weight")
