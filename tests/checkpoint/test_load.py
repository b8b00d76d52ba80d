"""weights come back as they were written, whatever side the global scale is on"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minnow.checkpoint.load import WeightSource, fill, open_weights
from minnow.core.errors import CheckpointError
from minnow.formats.quantized import Quantized, decode
from tests import tiny

W1 = "model.layers.1.block_sparse_moe.experts.2.w1"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def by_hand(codes: Tensor, scales: Tensor) -> Tensor:
    """Decode NVFP4 with a table, before any global scale."""
    values = E2M1[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()]
    return values * scales.float().repeat_interleave(16, dim=-1)


def change(directory: Path, edited: dict[str, Tensor]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(tensors | edited, file)


@pytest.mark.parametrize(
    ("format", "suffixes", "stored", "factor"),
    [
        ("m3.1", ("weight_packed", "weight_scale", "weight_global_scale"), 8.0, 0.125),
        ("modelopt-nvfp4", ("weight", "weight_scale", "weight_scale_2"), 8.0, 8.0),
    ],
)
def test_global_scale_sides(
    tmp_path: Path, format: str, suffixes: tuple[str, str, str], stored: float, factor: float
) -> None:
    config = tiny.write_tiny(tmp_path, format=format)
    change(tmp_path, {f"language_model.{W1}.{suffixes[2]}": torch.tensor([stored])})
    on_disk = load_file(tmp_path / "model.safetensors")
    codes, scales = (on_disk[f"language_model.{W1}.{s}"] for s in suffixes[:2])
    weight = open_weights(tmp_path, config).take(W1)
    assert isinstance(weight, Quantized)
    assert weight.shape == (32, 64)
    assert weight.global_scale is not None and weight.global_scale.shape == ()
    assert torch.equal(decode(weight), by_hand(codes, scales) * factor)


def test_scalar_and_one_element_global_scales_are_the_same(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path, format="modelopt-nvfp4")
    before = decode(open_weights(tmp_path, config).take(W1))
    name = f"language_model.{W1}.weight_scale_2"
    change(tmp_path, {name: load_file(tmp_path / "model.safetensors")[name].reshape(())})
    assert torch.equal(decode(open_weights(tmp_path, config).take(W1)), before)


@pytest.mark.parametrize("format", tiny.FORMATS)
def test_weights_decode_near_the_plain_ones(tmp_path: Path, format: str) -> None:
    plain = open_weights(tmp_path / "reference", tiny.write_tiny(tmp_path / "reference", dtype="float32"))
    source = open_weights(tmp_path / format, tiny.write_tiny(tmp_path / format, format=format))
    for name in plain.names:
        wanted, found = decode(plain.take(name)), decode(source.take(name))
        assert (found - wanted).norm() <= 0.15 * wanted.norm(), name


@pytest.mark.parametrize("form", ["int4", "int8", "fp8", "mxfp4", "mxfp8", "nvfp4"])
def test_own_conversions_of_each_format(tmp_path: Path, form: str) -> None:
    name = "model.layers.1.mlp.up_proj"
    plain = open_weights(
        tmp_path / "reference", tiny.write_tiny(tmp_path / "reference", family="llama", dtype="float32")
    )
    config = tiny.write_tiny(tmp_path / form, family="llama", formats={"model.layers.*.mlp.up_proj": form})
    weight = open_weights(tmp_path / form, config).take(name)
    assert isinstance(weight, Quantized) and weight.spec.name == form
    wanted = decode(plain.take(name))
    assert (decode(weight) - wanted).norm() <= 0.15 * wanted.norm()


def test_plain_weights_keep_their_dtype_and_share_memory(tmp_path: Path) -> None:
    source = open_weights(tmp_path, tiny.write_tiny(tmp_path))
    embedding = source.take("model.embed_tokens")
    bias = source.take("model.layers.1.block_sparse_moe.e_score_correction_bias")
    again = source.take("model.embed_tokens")
    assert isinstance(embedding, Tensor) and isinstance(bias, Tensor) and isinstance(again, Tensor)
    assert (embedding.dtype, bias.dtype) == (torch.bfloat16, torch.float32)
    assert embedding.data_ptr() == again.data_ptr()


def test_other_devices_get_every_part(tmp_path: Path) -> None:
    weight = open_weights(tmp_path, tiny.write_tiny(tmp_path, format="m3.1"), "meta").take(W1)
    assert isinstance(weight, Quantized) and weight.scales is not None and weight.global_scale is not None
    assert {weight.codes.device.type, weight.scales.device.type, weight.global_scale.device.type} == {"meta"}


@pytest.mark.parametrize("stored", [0.0, -1.0, float("nan"), float("inf")])
def test_unusable_global_scale_is_refused(tmp_path: Path, stored: float) -> None:
    config = tiny.write_tiny(tmp_path, format="m3.1")
    change(tmp_path, {f"language_model.{W1}.weight_global_scale": torch.tensor([stored])})
    with pytest.raises(CheckpointError, match=r"experts\.2\.w1\.weight_global_scale at \[0\]"):
        open_weights(tmp_path, config)


def test_nan_scale_bytes_are_refused_with_tensor_and_index(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path, format="m3.1")
    name = f"language_model.{W1}.weight_scale"
    scales = load_file(tmp_path / "model.safetensors")[name].clone()
    scales.view(torch.uint8)[3, 2] = 0x7F
    change(tmp_path, {name: scales})
    with pytest.raises(CheckpointError, match=r"w1\.weight_scale at \[3, 2\] is byte 0x7f"):
        open_weights(tmp_path, config)


def test_missing_and_unused_tensors_fail_loudly(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path)
    change(tmp_path, {"language_model.model.layers.1.self_attn.q_proj.bias": torch.zeros(128)})
    with pytest.raises(CheckpointError, match=r"1 extra: .*q_proj\.bias"):
        open_weights(tmp_path, config)


def test_unknown_weight(tmp_path: Path) -> None:
    source = open_weights(tmp_path, tiny.write_tiny(tmp_path, family="llama"))
    with pytest.raises(CheckpointError, match="no weight lm_head"):
        source.take("lm_head")


class Holder(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.weight_names = names


def test_fill(tmp_path: Path) -> None:
    source: WeightSource = open_weights(tmp_path, tiny.write_tiny(tmp_path, family="llama", layers=1))
    first, rest = Holder(*source.names[:2]), Holder(*source.names[2:])
    model = nn.ModuleList([first, nn.Sequential(rest), nn.Identity()])
    fill(model, source)
    assert torch.equal(first.weights[1], source.take(source.names[1]))  # type: ignore[arg-type, index]
    assert len(rest.weights) == len(source.names) - 2  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=f"no notice of {source.names[0]}"):
        fill(nn.ModuleList([Holder(*source.names[1:])]), source)
