"""what is split for the checkpoint is assembled again bit for bit"""

import pytest
import torch

from minnow.arch import names
from minnow.checkpoint.parts import assemble, split
from minnow.config import model
from minnow.core.errors import CheckpointError
from minnow.formats import nvfp4
from minnow.formats.quantized import Quantized, encode
from tests import tiny

CONFIG = model.parse(tiny.config_json(format="m3.1"))
SPECS = names.tensors(names.modules(CONFIG)["model.layers.1.block_sparse_moe.experts.0.w1"], CONFIG)


def test_inverting_a_global_scale_twice_loses_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    for spread in torch.rand(500, generator=generator).tolist():
        weight = nvfp4.encode_weight(torch.randn(1, 16, generator=generator) * (0.01 + spread))
        tensors = split(weight, SPECS, "nvfp4")
        again = assemble("nvfp4", {spec.part: tensors[spec.name] for spec in SPECS}, "w1")
        assert isinstance(again, Quantized) and again.global_scale is not None and weight.global_scale is not None
        assert torch.equal(again.global_scale.reshape(()), weight.global_scale.reshape(()))


def test_a_factor_of_one_is_left_out() -> None:
    weight = encode("nvfp4", torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    tensors = split(weight, SPECS, "nvfp4")
    again = assemble("nvfp4", {spec.part: tensors[spec.name] for spec in SPECS}, "w1")
    assert isinstance(again, Quantized) and again.global_scale is None


def test_another_format_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"experts\.0\.w1 is mxfp8; nvfp4 is to be written"):
        split(encode("mxfp8", torch.ones(32, 64)), SPECS, "nvfp4")
    with pytest.raises(CheckpointError, match="is a plain tensor; nvfp4"):
        split(torch.ones(32, 64), SPECS, "nvfp4")
