"""trained parts in a checkpoint: what they replace, what they add, what they cannot"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from minnow.checkpoint import verify
from minnow.checkpoint.load import open_weights
from minnow.checkpoint.trained import combine, merged
from minnow.config import drafter, model
from minnow.core.errors import CheckpointError
from minnow.formats import mxfp8
from minnow.formats.quantized import Quantized, decode
from tests import tiny

AT = "language_model.model.layers"
SPARSE: dict[str, Any] = {
    "use_sparse_attention": True,
    "sparse_index_dim": 32,
    "sparse_num_index_heads": 2,
    "sparse_topk_blocks": 16,
    "sparse_block_size": 128,
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_attention_freq": [1, 1],
    "sparse_disable_index_value": [1, 1],
}


def write_base(directory: Path) -> model.ModelConfig:
    formats = tiny.layer_formats("llama", "int4", "int4")
    config = tiny.write_tiny(directory, family="llama", layers=2, head_dim=32, rotary_dim=32, formats=formats)
    tiny.write_tiny_tokenizer(directory)
    return config


def write_part(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "trained.json").write_text(json.dumps({"stage": "test", "config": config}))
    if tensors:
        save_file(tensors, directory / "trained.safetensors")
    return directory


def test_parts_replace_and_add(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    new_q = {f"{AT}.{i}.self_attn.q_proj.weight": torch.randn(128, 64).bfloat16() for i in range(2)}
    heads = {f"{AT}.{i}.self_attn.index_q_proj.weight": torch.randn(64, 64).bfloat16() for i in range(2)}
    heads |= {f"{AT}.{i}.self_attn.index_k_proj.weight": torch.randn(32, 64).bfloat16() for i in range(2)}
    first = write_part(tmp_path / "cache", new_q, {"quantization_config": {"kv_cache": "nvfp4"}})
    second = write_part(tmp_path / "index", heads, {"text_config": {"sparse_attention_config": SPARSE}})
    tiny.write_tiny_drafter(second, base)
    combine(tmp_path / "base", [first, second], tmp_path / "whole")
    config = model.read(tmp_path / "whole")
    assert config.sparse.is_sparse == (True, True) and config.quantization.kv_cache == "nvfp4"
    report = verify.verify(tmp_path / "whole", config, digests=True)
    assert not report.num_problems and report.checked_files
    before, after = open_weights(tmp_path / "base", base), open_weights(tmp_path / "whole", config)
    for name in after.names:
        ours = f"language_model.{name}.weight"
        wanted = {**new_q, **heads}.get(ours)
        found = after.take(name)
        if wanted is not None:
            assert isinstance(found, torch.Tensor) and torch.equal(found, wanted)
        else:
            assert torch.equal(decode(found), decode(before.take(name)))
    assert isinstance(after.take("model.layers.0.self_attn.k_proj"), Quantized)
    assert drafter.find(tmp_path / "whole") is not None
    assert (tmp_path / "whole" / "tokenizer.json").read_bytes() == (tmp_path / "base" / "tokenizer.json").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_part_may_be_quantised_already(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    encoded = [mxfp8.encode(torch.randn(128, 64)) for _ in range(2)]
    tensors = {}
    for i, weight in enumerate(encoded):
        assert weight.scales is not None
        tensors[f"{AT}.{i}.self_attn.q_proj.weight"] = weight.codes
        tensors[f"{AT}.{i}.self_attn.q_proj.weight_scale_inv"] = weight.scales
    formats = {"quantization_config": {"formats": {"model.layers.*.self_attn.q_proj": "mxfp8"}}}
    combine(tmp_path / "base", [write_part(tmp_path / "part", tensors, formats)], tmp_path / "whole")
    source = open_weights(tmp_path / "whole", model.read(tmp_path / "whole"))
    for i, weight in enumerate(encoded):
        assert torch.equal(decode(source.take(f"model.layers.{i}.self_attn.q_proj")), decode(weight))


def test_a_part_that_lacks_something_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    part = write_part(tmp_path / "part", {}, {"text_config": {"sparse_attention_config": SPARSE}})
    with pytest.raises(CheckpointError, match=r"hold .*layers\.0\.self_attn\.index_q_proj\.weight"):
        combine(tmp_path / "base", [part], tmp_path / "whole")
    assert not (tmp_path / "whole").exists() and not list(tmp_path.glob(".*"))


def test_fields_inside_objects_are_merged() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": None}) == {
        "a": {"b": 1, "c": 4}, "d": 3, "e": None,
    }  # fmt: skip
