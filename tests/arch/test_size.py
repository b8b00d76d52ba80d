"""sizes agree with the tensors listed and with the published figures"""

import math

import pytest

from minnow.arch import names, size
from minnow.arch.storage import ITEM_BYTES
from minnow.config import model
from tests import tiny


def test_flash_groups() -> None:
    config = model.known("m3.1-flash")
    assert config is not None
    total = size.measure(config)
    share = {s.kind: s for s in total.shares}
    assert share["routed expert"].num_parameters == 413_122_166_784
    assert share["attention"].num_parameters == 6_653_214_720
    assert share["dense ffn"].num_parameters == 679_477_248
    assert share["shared expert"].num_parameters == 3_227_516_928
    assert share["router"].num_parameters == 44_826_624
    assert share["embedding"].num_parameters + share["head"].num_parameters == 2_458_386_432
    assert round(share["vision"].num_parameters / 1e6, 2) == 865.57
    assert round(share["attention"].num_bytes / 1e9, 3) == 6.861
    assert round(total.num_parameters / 1e9, 2) == 427.05
    assert round(total.num_bytes / 1e9, 1) == 250.1
    assert round(total.num_active_parameters / 1e9, 1) == 23.5
    assert total.num_tensors == 89_632


@pytest.mark.parametrize("format", tiny.FORMATS)
@pytest.mark.parametrize("vision", [False, True])
def test_agrees_with_the_tensors(format: str, vision: bool) -> None:
    config = model.parse(tiny.config_json(format=format, vision=vision))
    expected = names.expected(config).values()
    total = size.measure(config)
    assert total.num_tensors == len(expected)
    assert total.num_bytes == sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in expected)


def test_dtypes_of_the_file_win_where_there_is_a_choice() -> None:
    config = model.parse(tiny.config_json(family="llama", formats={"model.layers.*.self_attn.q_proj": "int4"}))
    name = "language_model.model.embed_tokens.weight"
    plain, seen = size.measure(config), size.measure(config, {name: "F32"})
    assert seen.num_bytes - plain.num_bytes == 320 * 64 * 2
    assert [s.format for s in seen.shares if s.kind == "embedding"] == ["f32"]
