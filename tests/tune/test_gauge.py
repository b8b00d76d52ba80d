"""projections in another gauge: the same model, and rounded keys that disturb it less"""

from pathlib import Path

import torch

from minnow.tune import cache, gauge, target
from minnow.tune.attend import attend_densely, attend_rounded
from minnow.tune.target import Target
from tests.tiny import write_tiny


def _loaded(directory: Path) -> Target:
    """A tiny model whose keys have pairs that dwarf their neighbours, and that queries hardly look at."""
    write_tiny(directory, family="llama", dtype="float32")
    loaded = target.load(directory, torch.float32)
    changed = {name: 1.5 * loaded.weights[name] for name in cache.trained_names(loaded)}
    half, width = loaded.config.rotary_dim // 2, loaded.config.head_dim
    for name, weight in changed.items():
        for pair in (half - 1, half // 2 + 1):
            factor = 8.0 if "k_proj" in name else 1 / 8
            weight.unflatten(0, (-1, width))[:, [pair, half + pair]] *= factor
    return loaded.replaced(changed)


def test_products_stay_and_rounding_disturbs_less(tmp_path: Path) -> None:
    before = _loaded(tmp_path)
    generator = torch.Generator().manual_seed(0)
    ids, other = torch.randint(before.config.vocab_size, (2, 128), generator=generator)
    found = gauge.gauged(before, ids)
    assert set(found) == set(cache.trained_names(before))
    assert all(not torch.equal(found[name], before.weights[name]) for name in found)
    after = before.replaced(found)
    wanted = before.forward(other[None], attend=attend_densely).last
    assert torch.allclose(after.forward(other[None], attend=attend_densely).last, wanted, rtol=1e-4, atol=1e-4)

    def disturbed(model: Target) -> float:
        return float((model.forward(other[None], attend=attend_rounded).last - wanted).square().mean())

    assert disturbed(after) < 0.7 * disturbed(before)


def test_projections_before_a_norm_are_left_alone(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="m3", dtype="float32", layers=1)
    loaded = target.load(tmp_path, torch.float32)
    assert loaded.config.use_qk_norm
    found = gauge.gauged(loaded, torch.arange(32))
    assert all(torch.equal(found[name], loaded.weights[name]) for name in found)
