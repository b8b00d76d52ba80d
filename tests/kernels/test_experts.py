"""experts whose matrices come in different formats, each as it is"""

import pytest
import torch

from minnow.formats.quantized import encode
from minnow.kernels.compare import compare
from minnow.kernels.experts import OP, cpu, reference
from minnow.kernels.experts.activation import Activation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 5, 40])
def test_every_expert_may_have_formats_of_its_own(isa: str, num_tokens: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_tokens)

    def expert(*formats: str):
        shapes = ((96, 64), (96, 64), (64, 96))
        values = [torch.randn(shape, generator=generator) * shape[1] ** -0.5 for shape in shapes]
        return tuple(encode(name, value) for name, value in zip(formats, values, strict=True))

    table = (
        expert("nvfp4", "nvfp4", "nvfp4"),
        expert("int8", "int8", "int8"),
        expert("bf16", "nvfp4", "mxfp8"),
        expert("int4", "int4", "f16"),
    )
    ids = torch.stack([torch.randperm(4, generator=generator)[:3] for _ in range(num_tokens)])
    arguments = (
        torch.randn(num_tokens, 64, generator=generator).to(dtype),
        ids,
        torch.rand(num_tokens, 3, generator=generator),
        table,
        Activation(kind="silu"),
    )
    assert compare(OP, cpu.experts(*arguments), reference.experts(*arguments)) == []
