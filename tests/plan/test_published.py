"""the published comparison, and every set of assumptions that reproduces it"""

import pytest

from minnow.plan import capacity, published
from minnow.plan.capacity import EVERYTHING, KV_ONLY, WITH_INDEX


def test_76_and_60_are_the_same_memory_counted_twice() -> None:
    found = capacity.measure(published.flash())
    assert (found.published.num_sequences_engine, found.allocated.num_sequences_engine) == (76, 60)
    assert (found.published.layout.token_bytes, found.allocated.layout.token_bytes) == (34_560, 44_000)
    assert round(found.published.slack, 2) == 0.29
    # With every stored byte charged, 76 would take more than the device has.
    needed = found.weights.num_bytes + 19 * 262_144 * 44_000
    assert round(needed / 1e9) == 295 and needed > published.flash().device.memory_bytes


def test_the_older_model_holds_28() -> None:
    m3 = published.m3()
    assert round(m3.weights().num_bytes / 1e9, 1) == 124.2
    held = capacity.hold(m3, KV_ONLY)
    assert held.num_sequences_engine == 28 and round(held.slack, 2) == 0.84


SETS = {  # usable GB, reserve GB by utilization, and the part of it that also fits the decode rank
    "A": ((247.9, 253.1), {0.90: (6.5, 11.6), 0.92: (12.3, 17.4)}, {0.90: (7.1, 11.5)}),
    "A'": ((247.9, 255.2), {0.90: (4.4, 11.6)}, {0.90: (7.1, 11.5), 0.92: (10.1, 11.5)}),
    "B": (None, {}, {}),
    "B'": ((269.5, 270.5), {0.95: (3.5, 4.5)}, {}),
    "C": ((269.5, 279.7), {0.95: (0.0, 4.5)}, {1.0: (8.7, 11.5)}),
    "C'": ((269.5, 279.7), {0.95: (0.0, 4.5)}, {1.0: (8.7, 11.5)}),
    "D": (None, {}, {}),
}


def test_five_of_28_readings_fit_all_three_numbers() -> None:
    found = {finding.assumptions.name: finding for finding in published.examine()}
    assert found.keys() == SETS.keys()
    assert len(found) * len(published.UTILIZATIONS) == 28
    assert sum(len(finding.joint_bytes) for finding in found.values()) == 5


@pytest.mark.parametrize("name", SETS)
def test_a_set_allows_these_reserves(name: str) -> None:
    usable, reserves, joint = SETS[name]
    finding = next(f for f in published.examine() if f.assumptions.name == name)
    gigabytes = lambda pair: tuple(round(x / 1e9, 1) for x in pair)  # noqa: E731
    assert (finding.usable_bytes and gigabytes(finding.usable_bytes)) == usable
    for utilization, pair in reserves.items():
        assert gigabytes(finding.reserves_bytes[utilization]) == pair
    assert {u: gigabytes(pair) for u, pair in finding.joint_bytes.items()} == joint


def test_the_decode_rank_needs_the_drafter_charged_at_full_context() -> None:
    rank = published.decode_rank()
    tokens = [capacity.hold(rank, a).memory.num_tokens for a in (EVERYTHING, WITH_INDEX, KV_ONLY)]
    assert [round(count / 1e6, 2) for count in tokens] == [4.51, 5.10, 5.74]
    bounded = published.deploy("m3.1-flash", "gb300", "dep4", 0.95, has_hybrid_manager=True)
    held = capacity.hold(bounded, EVERYTHING)
    assert held.memory.num_tokens == tokens[1] and round(100 * (tokens[1] / tokens[0] - 1)) == 13
    assert held.tokens_each == 262_144 + -(-4096 * 5_120 // 38_880)  # the window's pages, in tokens of the rest


def test_memory_binds_before_the_limit_of_sequences_on_the_decode_rank() -> None:
    held = capacity.hold(published.deploy("m3.1-flash", "gb300", "dep4", 0.95, max_num_seqs=28), EVERYTHING)
    assert held.binds == "cache memory" and held.memory.num_tokens < 28 * 200_000
