"""moving cache to another engine and to host memory; what ways of a prefill cost"""

from pathlib import Path

import pytest

from minnow.cache.layout import BlockLayout
from minnow.core.errors import ConfigError
from minnow.plan import capacity, prefill, published, transfer
from minnow.plan.capacity import EVERYTHING

GIB = 1 << 30
RATES = {"slow": 50e9, "fast": 100e9, "scale-up": 900e9}


def row(strategy: str) -> BlockLayout:
    return capacity.row(published.deploy("m3.1-flash", "gb300", strategy), EVERYTHING)


def test_a_sequence_moves_in_whole_blocks() -> None:
    moved = transfer.move(row("dep4"), 200_000, RATES)
    assert (moved.num_blocks, moved.reads_by_page, moved.reads_by_block) == (1563, 195_375, 1563)
    assert round(moved.num_bytes / 1e9, 2) == 8.80
    assert [round(1e3 * s) for s in moved.seconds_by_link.values()] == [176, 88, 10]
    assert round(transfer.move(row("tp4"), 200_000, {}).num_bytes / 1e9, 2) == 2.85
    assert transfer.move(row("tp4"), 1, {}).num_bytes == 1_822_720


def test_rows_travel_as_they_are_only_between_equal_layouts() -> None:
    engine = {s: capacity.measure(published.deploy("m3.1-flash", "gb300", s)) for s in ("dep2", "dep4", "tp4")}
    moved = transfer.between(engine["dep2"], engine["dep4"])
    assert moved.has_one_layout and "NVIDIA GB300's own links" in moved.seconds_by_link
    assert "400 Gb/s network card" in moved.seconds_by_link
    assert not transfer.between(engine["tp4"], engine["dep4"]).has_one_layout


def test_host_memory_in_huge_pages() -> None:
    kept = transfer.offload(row("tp4"), 560 * GIB, 4)
    assert (kept.num_blocks, kept.num_huge_pages) == (329_889, 2240)
    assert round(kept.num_tokens / 1e6, 1) == 42.2 and round(kept.total_bytes / 1e12, 2) == 2.41
    assert round(transfer.offload(row("dep2"), 180 * GIB, 2).num_tokens / 1e6, 2) == 4.39


@pytest.mark.parametrize("num_bytes", [0, GIB - 1, 560 * 10**9])
def test_host_memory_must_fill_pages(num_bytes: int) -> None:
    with pytest.raises(ConfigError, match=rf"host memory is {num_bytes} bytes a rank.*set \d+GiB"):
        transfer.offload(row("tp4"), num_bytes, 4)


def test_sequence_parallel_prefill_costs_a_copy_of_the_output_projections() -> None:
    model = published.flash().model
    assert round(prefill.sequence_parallel_bytes(model) / 1e9, 3) == 3.114
    plain = published.deploy("m3.1-flash", "mi355x", "tp4", experts_format="mxfp8")
    sharded = published.deploy("m3.1-flash", "mi355x", "tp4", experts_format="mxfp8", has_sequence_parallel=True)
    fewer = (capacity.hold(d, EVERYTHING).memory.num_tokens for d in (plain, sharded))
    assert round((next(fewer) - next(fewer)) / 1e3) == pytest.approx(218, abs=1)


def test_a_preempted_sequence_is_computed_again() -> None:
    assert prefill.num_recomputed_steps(200_000, 8192) == 25


def test_thresholds_of_dual_batches() -> None:
    fine = {"has_sequence_parallel": True, "most_step_tokens": 32_768}
    assert prefill.problems(16_384, 32_768, **fine) == ()  # type: ignore[arg-type]
    assert prefill.problems(8192, 32_768, **fine) == ()  # type: ignore[arg-type]
    [half] = prefill.problems(8190, 32_768, **fine)  # type: ignore[arg-type]
    assert "halves of 4095 tokens are not sharded" in half and "set 8192 or more" in half
    assert prefill.problems(2048, 32_768, has_sequence_parallel=False, most_step_tokens=32_768) == ()
    [split] = prefill.problems(16_384, 8192, **fine)  # type: ignore[arg-type]
    assert "set 32768 or more, so that decode steps stay whole" in split


def test_free_huge_pages_of_this_machine(tmp_path: Path) -> None:
    assert transfer.free_huge_pages(tmp_path) == 0
    (tmp_path / "free_hugepages").write_text("2240\n", encoding="ascii")
    assert transfer.free_huge_pages(tmp_path) == 2240
