"""sizes agree with the tensors listed and with the published figures"""

import dataclasses
import functools
import math
import re
from pathlib import Path

import pytest

from minnow.arch import drafter, names, sharding, size
from minnow.arch.sharding import Ranks
from minnow.arch.storage import ITEM_BYTES
from minnow.config import drafter as drafter_config
from minnow.config import model
from minnow.core.errors import ConfigError, FormatError
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


@pytest.mark.parametrize("format", tiny.FORMATS)
@pytest.mark.parametrize(
    "ranks", [Ranks(), Ranks(tp=2), Ranks(ep=2), Ranks(tp=2, ep=2), Ranks(ep=8), Ranks(tp=1, ep=3)]
)
def test_a_rank_holds_the_parts_that_the_table_gives_it(format: str, ranks: Ranks) -> None:
    """Against a plain sum over every tensor of the fullest rank, one by one."""
    config = model.parse(tiny.config_json(format=format, vision=True))
    if ranks.tp == 2 and format not in ("plain", "modelopt-nvfp4"):  # half of 96 values are no blocks of 32
        with pytest.raises(FormatError, match=r"layers\.0\.mlp\.down_proj: .* a width of 48 does not fit"):
            size.measure(config, ranks=ranks)
        return
    total = 0
    for name, module in names.modules(config).items():
        expert = re.search(r"experts\.(\d+)\.", name)
        if expert and int(expert[1]) >= -(-config.num_local_experts // ranks.ep):
            continue
        shape = sharding.shape_on_rank(name, module.shape, ranks, config.num_key_value_heads)
        part = dataclasses.replace(module, shape=shape)
        total += sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in names.tensors(part, config))
    assert size.measure(config, ranks=ranks).num_bytes == total


def test_flash_on_four_ranks() -> None:
    config = model.known("m3.1-flash")
    assert config is not None
    whole, experts = size.measure(config), size.measure(config, ranks=Ranks(ep=4))
    split, both = size.measure(config, ranks=Ranks(tp=4)), size.measure(config, ranks=Ranks(tp=4, ep=4))
    assert round(experts.num_bytes / 1e9, 2) == 75.81  # a quarter of the experts, all of the rest
    copied = {"vision", "router", "router bias", "norm"}
    bytes_of = lambda total: sum(s.num_bytes for s in total.shares if s.kind in copied)  # noqa: E731
    assert bytes_of(split) == bytes_of(whole)
    assert whole.num_bytes / 4 < split.num_bytes < whole.num_bytes / 4 + bytes_of(whole)
    assert split.num_bytes - both.num_bytes == 57 * 128 * 3 * 3 / 4 * 8  # scales of whole tensors
    assert split.num_active_parameters == whole.num_active_parameters
    converted = size.measure(config, ranks=Ranks(tp=4), format_by_kind={"routed expert": "mxfp8"})
    assert {s.format for s in converted.shares if s.kind == "routed expert"} == {"mxfp8"}
    more = converted.num_bytes - split.num_bytes
    assert more == 413_122_166_784 // 4 * (33 / 32 - 9 / 16) - 57 * 128 * 3 * 8


def test_more_ranks_than_heads_hold_copies_and_others_must_divide() -> None:
    shape = functools.partial(sharding.shape_on_rank, num_kv_heads=4)
    assert shape("model.layers.0.self_attn.k_proj", (512, 64), Ranks(tp=8)) == (128, 64)
    assert shape("model.layers.0.self_attn.q_proj", (8192, 64), Ranks(tp=8)) == (1024, 64)
    assert shape("lm_head", (321, 64), Ranks(tp=8)) == (41, 64)
    assert shape("model.layers.9.block_sparse_moe.experts.3.w2", (64, 32), Ranks(tp=8)) == (64, 4)
    assert shape("model.layers.9.block_sparse_moe.experts.3.w2", (64, 32), Ranks(tp=8, ep=8)) == (64, 32)
    with pytest.raises(ConfigError, match="3 ranks do not divide the 4 key/value heads"):
        shape("model.layers.0.self_attn.k_proj", (512, 64), Ranks(tp=3))
    with pytest.raises(
        ConfigError, match=r"3 ranks do not divide the 8192 values of model\.layers\.0\.self_attn\.q_pr"
    ):
        shape("model.layers.0.self_attn.q_proj", (8192, 64), Ranks(tp=3))


def test_a_drafter_splits_like_its_model(tmp_path: Path) -> None:
    config = tiny.write_tiny_drafter(tmp_path, tiny.write_tiny(tmp_path, family="llama"))
    whole, half = size.drafter_bytes(config), size.drafter_bytes(config, Ranks(tp=2))
    expected = drafter.expected(config).values()
    assert whole == sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in expected)
    split = sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in expected if "_proj" in s.name and "layers" in s.name)
    assert half == whole - split // 2
    assert size.drafter_bytes(None) == 0


def test_the_drafter_of_m3_1_has_97_tensors() -> None:
    """Counted in the published checkpoint: 35 linears with their scales, and 27 others."""
    target = model.known("m3.1-flash")
    assert target is not None
    directory = Path(model.__file__).parent / "known" / "m3.1-flash" / "dspark"
    found = drafter.expected(drafter_config.read(directory, target))
    assert len(found) == 97
    assert sum(name.endswith("_scale_inv") for name in found) == 35
