"""what the report names: missing, extra, misshapen, mistyped tensors, broken scales, damaged files"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minnow.checkpoint import verify
from minnow.core.errors import CheckpointError
from tests import tiny

EXPERT = "language_model.model.layers.2.block_sparse_moe.experts.3.w2"
Tensors = dict[str, torch.Tensor]


def change(directory: Path, edit: Callable[[Tensors], object]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize("format", tiny.FORMATS)
def test_sound_checkpoints_pass(tmp_path: Path, format: str) -> None:
    config = tiny.write_tiny(tmp_path, format=format, vision=format == "m3.1")
    report = verify.check(tmp_path, config, scales=True)
    assert report.num_problems == 0
    assert report.num_tensors == len(load_file(tmp_path / "model.safetensors"))


def test_every_problem_in_one_error(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path, format="m3.1")

    def edit(tensors: Tensors) -> None:
        del tensors["language_model.model.norm.weight"]
        del tensors[f"{EXPERT}.input_global_scale"]
        tensors["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["language_model.model.embed_tokens.weight"] = torch.zeros(64, 320, dtype=torch.bfloat16)
        tensors[f"{EXPERT}.weight_scale"] = tensors[f"{EXPERT}.weight_scale"].float()

    change(tmp_path, edit)
    with pytest.raises(CheckpointError) as caught:
        verify.check(tmp_path, config)
    text = str(caught.value)
    assert "2 missing: " in text and "language_model.model.norm.weight" in text
    assert f"{EXPERT}.input_global_scale" in text
    assert "1 extra: language_model.model.layers.0.self_attn.rotary_emb.inv_freq" in text
    assert "embed_tokens.weight is [64, 320] where [320, 64] is right" in text
    assert f"{EXPERT}.weight_scale is F32 where F8_E4M3 is right" in text


def test_all_missing_are_named_shortly(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path)
    change(tmp_path, lambda tensors: [tensors.pop(n) for n in list(tensors) if ".experts." in n])
    with pytest.raises(CheckpointError) as caught:
        verify.check(tmp_path, config)
    prefix = "language_model.model.layers.{1-3}.block_sparse_moe.experts.{0-7}"
    assert f"72 missing: {prefix}.w1.weight, {prefix}.w2.weight, {prefix}.w3.weight" in str(caught.value)


def test_listing_is_exact() -> None:
    found = [f"l.{i}.e.{j}.w" for i in (0, 1) for j in (0, 1, 4)] + ["l.2.e.7.w"]
    assert verify.listed(found) == "l.0.e.{0,1,4}.w, l.1.e.{0,1,4}.w, l.2.e.7.w"
    assert verify.listed(found, 1) == "l.0.e.{0,1,4}.w and 2 more like these"


def test_multi_token_prediction_is_ignored(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({"model.mtp.0.weight": torch.ones(2)}))
    report = verify.check(tmp_path, config)
    assert report.num_ignored == 1


def test_router_and_norms_may_have_the_other_float(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path)
    gate = "language_model.model.layers.1.block_sparse_moe.gate.weight"
    norm = "language_model.model.norm.weight"
    change(tmp_path, lambda t: t.update({gate: t[gate].bfloat16(), norm: t[norm].float()}))
    verify.check(tmp_path, config)
    change(tmp_path, lambda t: t.update({gate: t[gate].half()}))
    with pytest.raises(CheckpointError, match=r"gate\.weight is F16 where F32 or BF16 is right"):
        verify.check(tmp_path, config)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_nan_in_nvfp4_scales_is_found(tmp_path: Path, byte: int) -> None:
    config = tiny.write_tiny(tmp_path, format="m3.1")

    def edit(tensors: Tensors) -> None:
        tensors[f"{EXPERT}.weight_scale"].view(torch.uint8)[5, 1] = byte

    change(tmp_path, edit)
    assert verify.verify(tmp_path, config).num_problems == 0  # scales are read on demand
    with pytest.raises(
        CheckpointError, match=rf"experts\.3\.w2\.weight_scale at \[5, 1\] is byte 0x{byte:02x} \(NaN\)"
    ):
        verify.check(tmp_path, config, scales=True)


def test_nan_in_e8m0_and_broken_global_scales_are_found(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path, format="m3.1")
    query = "language_model.model.layers.1.self_attn.q_proj.weight_scale_inv"

    def edit(tensors: Tensors) -> None:
        tensors[query][7, 0] = 255
        tensors[f"{EXPERT}.weight_global_scale"][0] = 0.0
        tensors[f"{EXPERT}.input_global_scale"][0] = float("nan")

    change(tmp_path, edit)
    report = verify.verify(tmp_path, config, scales=True)
    assert set(report.bad_scales) == {
        f"{query} at [7, 0] is byte 0xff (NaN)",
        f"{EXPERT}.weight_global_scale at [0] is 0.0",
        f"{EXPERT}.input_global_scale at [0] is nan",
    }


def test_infinite_integer_scales_are_found(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path, family="llama", formats={"model.layers.*.self_attn.q_proj": "int4"})
    name = "language_model.model.layers.0.self_attn.q_proj"
    change(tmp_path, lambda t: t[f"{name}.weight_min"].__setitem__((2, 1), float("inf")))
    assert verify.verify(tmp_path, config, scales=True).bad_scales == (f"{name}.weight_min at [2, 1] is inf",)


def test_digests(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path)
    assert not verify.verify(tmp_path, config, digests=True).checked_files
    verify.write_digests(tmp_path)
    assert set(json.loads((tmp_path / verify.DIGESTS_NAME).read_text())) == {"config.json", "model.safetensors"}
    report = verify.verify(tmp_path, config, digests=True)
    assert report.checked_files and report.num_problems == 0
    (tmp_path / "config.json").write_text("{}")
    (found,) = verify.verify(tmp_path, config, digests=True).bad_files
    assert found.startswith("config.json has SHA-256 ")


def test_digests_cover_folders_and_stay_inside(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path / "m")
    (tmp_path / "m/dspark").mkdir()
    (tmp_path / "m/dspark/config.json").write_text("{}")
    verify.write_digests(tmp_path / "m")
    assert "dspark/config.json" in json.loads((tmp_path / "m" / verify.DIGESTS_NAME).read_text())
    assert verify.verify(tmp_path / "m", config, digests=True).bad_files == ()
    (tmp_path / "m/dspark/config.json").write_text("{ }")
    (found,) = verify.verify(tmp_path / "m", config, digests=True).bad_files
    assert found.startswith("dspark/config.json has SHA-256 ")
    (tmp_path / "m/dspark/config.json").unlink()
    assert verify.verify(tmp_path / "m", config, digests=True).bad_files == ("dspark/config.json is missing",)
    for name in ("../secret", "/etc/passwd", "a/../../b"):
        (tmp_path / "m" / verify.DIGESTS_NAME).write_text(json.dumps({name: "0"}))
        with pytest.raises(CheckpointError, match=f"names '{name}', which lies outside the directory"):
            verify.verify(tmp_path / "m", config, digests=True)
    (tmp_path / "m" / verify.DIGESTS_NAME).write_text("[[1, 2]]")
    with pytest.raises(CheckpointError, match="is no JSON object of file names"):
        verify.verify(tmp_path / "m", config, digests=True)
