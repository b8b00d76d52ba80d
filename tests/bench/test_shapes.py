from typing import Any

import pytest

from minnow.bench.limits import Limits
from minnow.bench.verdict import Row
from tests.bench.test_compare import script


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with small dims: what it does is tested, not how long it takes."""
    module = script("shapes.py")
    small = {"WIDTH": 64, "INNER": 32, "NUM_EXPERTS": 8, "MILLION": 16_384, "LENGTHS": (8_192, 16_384)}
    for name, value in {**small, "_WHOLE_MEMORY": 1 << 16}.items():
        monkeypatch.setattr(module, name, value)
    limits = Limits(num_threads=2, instruction_set="", operations_s={"f32": 1e11, "bf16": 2e11})
    monkeypatch.setattr(Limits, "bytes_s", lambda self, num_bytes: 1e10)
    monkeypatch.setattr(module, "measure_limits", lambda num_threads: limits)
    return module


def test_every_bar_of_the_true_shapes_is_measured(shapes: Any) -> None:
    bench = shapes.Bench(2, True)
    bench.repeats = 1
    found = [row for part in (shapes.matrix, shapes.attention, shapes.moe) for row in part(bench)]
    rows = {row["work"]: Row(**row) for row in found}
    assert len(rows) == len(found)
    bars = [(row.bar, row.unit, row.is_least) for row in rows.values()]
    assert bars == [
        (1.25, "x", False),  # 8 rows
        (1.6, "x", False),  # 32 rows
        (1.2, "x", True),  # 2,048 rows against torch
        (1.0, "%", False),  # resident bytes
        (70.0, "%", True),  # index scan
        (60.0, "%", True),  # sparse attention, 1 row
        (2.5, "x", False),  # 8 rows
        (6.0, "x", True),  # MSA against dense
        (60.0, "%", True),  # dense attention
        (70.0, "%", True),  # MoE, 1 row
        (2.0, "x", True),  # MoE, 512 rows against torch
    ]
    assert all(row.value is not None and row.value >= 0 for row in rows.values())
    assert all(isinstance(line, str) for row in rows.values() for line in row.lines())


def test_part_that_fails_is_a_row(shapes: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fails(bench: Any) -> Any:
        """Something large."""
        raise MemoryError("no room")

    for name in ("matrix", "attention", "moe"):
        monkeypatch.setattr(shapes, name, fails)
    assert shapes.main(["2", "1", "matrix", "attention", "moe"]) == 0
    assert capsys.readouterr().out.count("MemoryError: no room") == 3


def test_chosen_blocks_overlap_as_said(shapes: Any) -> None:
    blocks = shapes._blocks(8, 3)
    assert blocks.shape == (8, 4, 16)
    for head in range(4):
        rows = [set(blocks[t, head].tolist()) for t in range(8)]
        assert all(len(row) == 16 for row in rows)
        assert all(len(rows[0] & row) == 14 for row in rows[1:])
        assert blocks[:, head].diff(dim=1).gt(0).all()


def test_both_layers_compute_the_same(shapes: Any) -> None:
    """Rows of torch's layer go through the experts that were chosen, with their weights."""
    layer = shapes.TorchExperts()
    x = shapes.torch.randn(5, 64).bfloat16()
    ids, weights = shapes._choose(5, 0)
    whole = layer(x, ids, weights)
    parts = shapes.torch.cat([layer(x[i : i + 1], ids[i : i + 1], weights[i : i + 1]) for i in range(5)])
    assert shapes.torch.allclose(whole.float(), parts.float(), rtol=0.05, atol=5.0)
