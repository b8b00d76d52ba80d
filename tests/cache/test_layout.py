"""bytes and places of one block"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minnow.cache.layout import CACHE_FORMATS, BlockLayout, PageGroup, Plane, layout_of
from minnow.config.model import ModelConfig, SparseConfig
from minnow.core.errors import ConfigError, FormatError
from minnow.formats.spec import SPEC_BY_NAME

M3_1 = ModelConfig(
    vocab_size=200064,
    hidden_size=6144,
    num_hidden_layers=60,
    num_attention_heads=64,
    num_key_value_heads=4,
    head_dim=128,
    dense_intermediate_size=12288,
    is_moe=(False,) * 3 + (True,) * 57,
    sparse=SparseConfig(is_sparse=(True,) * 60),
)
DRAFTER = PageGroup(
    name="draft", layers=tuple(range(5)), num_heads=1, head_dim=128, format=SPEC_BY_NAME["fp8"], has_values=True
)


def plane_bytes(plane: Plane) -> list[tuple[int, int]]:
    """Every contiguous run of a plane as [start, stop)."""
    return [
        (start, start + plane.width_bytes)
        for head in range(plane.num_heads)
        for token in range(plane.num_tokens)
        for start in [plane.offset_bytes + head * plane.head_stride_bytes + token * plane.token_stride_bytes]
    ]


@pytest.mark.parametrize(
    ("kv_format", "index_format", "kv_token_bytes", "index_token_bytes"),
    [("nvfp4", "nvfp4", 34_560, 4_320), ("fp8", "fp8", 61_440, 7_680), ("bfloat16", "bf16", 122_880, 15_360)],
)
def test_bytes_of_a_token_are_those_published(
    kv_format: str, index_format: str, kv_token_bytes: int, index_token_bytes: int
) -> None:
    layout = layout_of(M3_1, kv_format, index_format)
    by_name = {group.name: group.token_bytes * group.num_layers for group in layout.groups}
    assert by_name == {"kv": kv_token_bytes, "index": index_token_bytes}
    assert layout.token_bytes == kv_token_bytes + index_token_bytes
    assert layout.row_bytes == 128 * layout.token_bytes


def test_one_rank_of_four_with_a_drafter_has_the_published_row() -> None:
    layout = layout_of(M3_1, "nvfp4", "nvfp4", num_kv_heads=1, drafter=DRAFTER)
    assert layout.row_bytes == 1_822_720
    assert layout.num_pages == len(layout.pages()) == 125
    assert [page.num_bytes for page in layout.pages()] == [18_432, 9_216] * 60 + [32_768] * 5
    whole = layout_of(M3_1, "nvfp4", "nvfp4", drafter=replace(DRAFTER, num_heads=4))
    assert whole.token_bytes == 44_000


def test_nvfp4_slots_hold_all_codes_then_all_scales() -> None:
    page = layout_of(M3_1, "nvfp4", "nvfp4").page("kv", 1)
    assert page.offset_bytes == 4 * 18_432 + 9_216
    at = page.offset_bytes
    assert page.keys == Plane(
        offset_bytes=at, num_heads=4, num_tokens=128, width_bytes=64, head_stride_bytes=18_432, token_stride_bytes=64
    )
    assert page.key_scales == replace(page.keys, offset_bytes=at + 8_192, width_bytes=8, token_stride_bytes=8)
    assert page.values == replace(page.keys, offset_bytes=at + 9_216)
    assert page.value_scales == replace(page.key_scales, offset_bytes=at + 9_216 + 8_192)
    index = layout_of(M3_1, "nvfp4", "nvfp4").page("index", 1)
    assert (index.offset_bytes, index.num_bytes) == (at + 4 * 18_432, 9_216)
    assert index.values is None and index.value_scales is None


def test_only_sparse_layers_have_index_keys() -> None:
    m3 = replace(M3_1, sparse=SparseConfig(is_sparse=(False,) * 3 + (True,) * 57))
    layout = layout_of(m3, "fp8", "fp8")
    order = [(page.group.name, page.layer) for page in layout.pages()]
    assert order[:7] == [("kv", 0), ("kv", 1), ("kv", 2), ("kv", 3), ("index", 3), ("kv", 4), ("index", 4)]
    dense = replace(M3_1, sparse=SparseConfig(is_sparse=(False,) * 60))
    assert layout_of(dense, "fp8", "fp8", block_size=16).group("index") is None


def test_layout_id_changes_with_anything_that_moves_a_byte() -> None:
    base = layout_of(M3_1, "nvfp4", "nvfp4")
    others = [
        layout_of(M3_1, "fp8", "nvfp4"),
        layout_of(M3_1, "nvfp4", "fp8"),
        layout_of(M3_1, "nvfp4", "nvfp4", num_kv_heads=1),
        layout_of(M3_1, "nvfp4", "nvfp4", drafter=DRAFTER),
        layout_of(replace(M3_1, sparse=SparseConfig(is_sparse=(True,) * 59 + (False,))), "nvfp4", "nvfp4"),
        replace(base, block_size=64),
    ]
    assert layout_of(M3_1, "nvfp4", "nvfp4").layout_id == base.layout_id
    assert len({layout.layout_id for layout in [base, *others]}) == 7


def test_refusals_name_the_value_and_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"int4.*one of f32, bf16, fp8, nvfp4"):
        layout_of(M3_1, "int4", "fp8")
    with pytest.raises(ConfigError, match=r"block_size is 64.*--block-size 128"):
        layout_of(M3_1, "fp8", "fp8", block_size=64)
    with pytest.raises(FormatError, match="24"):
        layout_of(replace(M3_1, head_dim=24), "nvfp4", "nvfp4")
    with pytest.raises(ConfigError, match=r"no multiple of 2"):  # a bf16 plane would begin on an odd byte
        odd = PageGroup(name="kv", layers=(0,), num_heads=1, head_dim=1, format=SPEC_BY_NAME["fp8"], has_values=False)
        index = replace(odd, name="index", format=SPEC_BY_NAME["bf16"])
        BlockLayout(groups=(odd, index), block_size=1)


@st.composite
def layouts(draw: st.DrawFn) -> BlockLayout:
    num_layers = draw(st.integers(1, 4))
    config = replace(
        M3_1,
        num_hidden_layers=num_layers,
        num_key_value_heads=draw(st.integers(1, 3)),
        head_dim=16 * draw(st.integers(1, 3)),
        sparse=SparseConfig(
            is_sparse=tuple(draw(st.lists(st.booleans(), min_size=num_layers, max_size=num_layers))),
            index_dim=16 * draw(st.integers(1, 3)),
            block_size=16 * draw(st.integers(1, 2)),
        ),
    )
    drafter = replace(DRAFTER, layers=(0, 1), num_heads=config.num_key_value_heads) if draw(st.booleans()) else None
    formats = st.sampled_from(CACHE_FORMATS)
    return layout_of(config, draw(formats), draw(formats), drafter=drafter)


@given(layouts())
def test_planes_cover_the_row_exactly_once(layout: BlockLayout) -> None:
    runs = sorted(run for page in layout.pages() for plane in page.planes for run in plane_bytes(plane))
    assert runs[0][0] == 0 and runs[-1][1] == layout.row_bytes
    assert all(before[1] == after[0] for before, after in pairwise(runs))
    for page in layout.pages():
        assert sum(plane.num_heads * plane.num_tokens * plane.width_bytes for plane in page.planes) == page.num_bytes
        element_bytes = page.group.format.bits // 8 or 1
        assert page.keys.offset_bytes % element_bytes == 0
