"""views of the pool: what is written through them lies where the layout says, and moves with its block"""

from typing import Any

import pytest
import torch

from minnow.cache.layout import BlockLayout, layout_of
from minnow.cache.pool import Pool
from minnow.config.model import ModelConfig, known, parse
from minnow.formats.quantized import Quantized, Weight, decode, encode
from minnow.kernels.kv_write.reference import kv_write
from tests import tiny

CPU = torch.device("cpu")


def _config(**overrides: Any) -> ModelConfig:
    return parse(tiny.config_json(layers=3, **overrides))


def _layout(kv: str, index: str) -> BlockLayout:
    return layout_of(_config(), kv, index)


def _values(num_tokens: int, heads: int, width: int, seed: int) -> torch.Tensor:
    """A scale of its own for each head, token and group of 16."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.rand(num_tokens, heads, width // 16, 1, generator=generator) * 8 + 0.1
    return (torch.randn(num_tokens, heads, width // 16, 16, generator=generator) * groups).flatten(2)


@pytest.mark.parametrize("kv", ["bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize("index", ["bf16", "fp8", "nvfp4"])
def test_every_cache_reads_back_what_was_written(kv: str, index: str) -> None:
    pool = Pool(_layout(kv, index), 5, CPU)
    slots = torch.randperm(4 * 16, generator=torch.Generator().manual_seed(2))[:40] + 16
    written: list[tuple[Weight, torch.Tensor, str]] = []
    for layer, cache in enumerate(pool.layers):
        parts = [(cache.k, 2, kv), (cache.v, 2, kv)] + ([(cache.index, 1, index)] if layer else [])
        for number, (part, heads, name) in enumerate(parts):
            assert part is not None
            values = _values(40, heads, 32, 10 * layer + number)
            kv_write(values, part, slots)
            written.append((part, values, name))
    assert len(written) == 8
    for part, values, name in written:
        seen = decode(part)[slots // 16, :, slots % 16]
        expected = values.to(torch.float8_e4m3fn).float() if name == "fp8" else decode(encode(name, values))
        assert torch.equal(seen, expected)


@pytest.mark.parametrize("kv", ["bf16", "fp8", "nvfp4"])
def test_moving_a_block_moves_codes_and_scales(kv: str) -> None:
    pool = Pool(_layout(kv, kv), 4, CPU)
    for cache in pool.layers:
        for part in (cache.k, cache.v, cache.index):
            if part is not None:
                kv_write(_values(16, part.shape[1], 32, 3), part, torch.arange(16, 32))
    before = [decode(part)[1].clone() for c in pool.layers for part in (c.k, c.v, c.index) if part is not None]
    pool.rows[3] = pool.rows[1]
    pool.rows[1] = 0
    after = [decode(part)[3] for c in pool.layers for part in (c.k, c.v, c.index) if part is not None]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert any(float(b.abs().max()) > 1 for b in before)


def test_views_share_the_rows_and_cover_them() -> None:
    """Filling every view through its own bytes fills every byte of the rows, once."""
    pool = Pool(_layout("nvfp4", "fp8"), 2, CPU)
    for cache in pool.layers:
        for part in (cache.k, cache.v, cache.index):
            for plane in (part.codes, part.scales) if isinstance(part, Quantized) else ():
                if plane is not None:
                    plane.view(torch.uint8).add_(1)
    assert torch.equal(pool.rows, torch.ones_like(pool.rows))


def test_m31_in_nvfp4_has_the_published_bytes() -> None:
    config = known("m3.1-flash")
    assert config is not None
    pool = Pool(layout_of(config, "nvfp4", "nvfp4"), 2, CPU)
    assert pool.rows.shape == (2, (34_560 + 4_320) * 128)
    assert pool.layers[0].k.shape == (2, 4, 128, 128)
    assert isinstance(pool.layers[59].k, Quantized)
    assert all(cache.index is not None and cache.index.shape == (2, 1, 128, 128) for cache in pool.layers)


def test_dense_layers_have_no_index_keys() -> None:
    pool = Pool(_layout("bf16", "bf16"), 2, CPU)
    assert [cache.index is None for cache in pool.layers] == [True, False, False]
