"""the rules of scheduling, one by one"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minnow.core.errors import RequestError
from minnow.core.request import Request, SamplingParams
from minnow.engine import policy, sequence
from minnow.engine.sequence import Sequence


def request(num_tokens: int = 4, *, max_tokens: int | None = None, priority: int = 0, arrival_s: float = 0) -> Request:
    """A request of so many tokens."""
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(
        request_id="a", token_ids=(1,) * num_tokens, sampling=sampling, priority=priority, arrival_s=arrival_s
    )


def test_fcfs_goes_by_arrival_alone() -> None:
    late_but_urgent = policy.rank(request(priority=-5, arrival_s=-1), 1, "fcfs")
    assert policy.rank(request(), 0, "fcfs") < late_but_urgent


def test_priority_goes_by_priority_then_time_then_order() -> None:
    expected = [
        policy.rank(request(priority=-1, arrival_s=9), 3, "priority"),
        policy.rank(request(arrival_s=1), 2, "priority"),
        policy.rank(request(arrival_s=2), 0, "priority"),
        policy.rank(request(arrival_s=2), 1, "priority"),
        policy.rank(request(priority=1), 4, "priority"),
    ]
    assert sorted(reversed(expected)) == expected


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "numbers"),
    [
        (101, None, ("101", "102", "100")),
        (100, None, ("100", "101", "100")),
        (101, 0, ("101", "100")),
        (99, 2, ("99", "max_tokens 2", "101", "100")),
        (50, 51, ("50", "51", "101", "100")),
    ],
)
def test_too_long_for_the_context(num_prompt_tokens: int, max_tokens: int | None, numbers: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        policy.check_fits(request(num_prompt_tokens, max_tokens=max_tokens), max_model_len=100, cache_tokens=1000)
    assert caught.value.code == "context_length_exceeded" and caught.value.status == 400
    assert all(number in str(caught.value) for number in numbers)
    assert caught.value.param == ("prompt" if num_prompt_tokens >= 100 else "max_tokens")


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(99, None), (100, 0), (99, 1), (50, 50)])
def test_just_fits_the_context(num_prompt_tokens: int, max_tokens: int | None) -> None:
    policy.check_fits(request(num_prompt_tokens, max_tokens=max_tokens), max_model_len=100, cache_tokens=100)


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(65, None), (65, 0), (60, 6), (65, 1)])
def test_too_long_for_the_cache(num_prompt_tokens: int, max_tokens: int | None) -> None:
    with pytest.raises(RequestError, match=r"65 tokens of cache.*holds 64.*--kv-cache-memory-bytes") as caught:
        policy.check_fits(request(num_prompt_tokens, max_tokens=max_tokens), max_model_len=100, cache_tokens=64)
    assert caught.value.code == "cache_capacity_exceeded"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        policy.check_fits(request(0), max_model_len=100, cache_tokens=64)


def test_the_threshold_holds_back_only_when_others_are_there() -> None:
    assert policy.num_chunk_tokens(100, 64, threshold_tokens=16, is_alone=False) == 16
    assert policy.num_chunk_tokens(100, 64, threshold_tokens=16, is_alone=True) == 64
    assert policy.num_chunk_tokens(100, 64, threshold_tokens=0, is_alone=False) == 64
    assert policy.num_chunk_tokens(8, 64, threshold_tokens=16, is_alone=False) == 8


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50), st.booleans())
def test_a_chunk_is_never_empty_nor_too_long(remaining: int, budget: int, threshold: int, is_alone: bool) -> None:
    chunk = policy.num_chunk_tokens(remaining, budget, threshold_tokens=threshold, is_alone=is_alone)
    assert 0 < chunk <= min(remaining, budget)


def test_the_watermark_is_kept_free() -> None:
    assert policy.can_admit(5, 5, num_reserved_blocks=0)
    assert not policy.can_admit(5, 5, num_reserved_blocks=1)
    assert policy.can_admit(5, 6, num_reserved_blocks=1)


def test_the_preempted_need_all_their_blocks() -> None:
    def made(order: int) -> Sequence:
        return sequence.make(
            request(), rank=(0, 0.0, order), max_context_tokens=9, eos_token_ids=(), engine_seed=0, chain=None
        )

    fresh, resumed = made(0), made(1)
    resumed.num_preemptions = 1
    assert not policy.needs_whole(fresh, is_reserving=False)
    assert policy.needs_whole(fresh, is_reserving=True)
    assert policy.needs_whole(resumed, is_reserving=False)
    assert policy.victim([fresh, resumed]) is resumed


@pytest.mark.parametrize(
    ("confidences", "step_costs", "counts"),
    [
        ([(0.9, 0.9, 0.9)], (1.0, 1.0, 1.0, 1.0), [3]),  # what costs nothing is always worth it
        ([(0.9, 0.9, 0.9)], (1.0, 2.0, 3.0, 4.0), [0]),
        ([(0.9, 0.1, 0.9)], (1.0, 1.2, 1.4, 1.6), [1]),  # the third cannot be had without the second
        ([(0.5,), (0.9, 0.8)], (1.0, 1.0, 1.2, 1.5, 2.6), [0, 1]),
        ([(0.5,), (0.9, 0.8)], (1.0, 1.0, 1.2, 1.4, 1.5), [1, 2]),
        ([(0.0, 1.0)], (1.0, 1.0, 1.0), [0]),
        ([(0.9,), ()], (1.0, 1.0), [0, 0]),  # beyond the table costs grow in proportion
        ([], (1.0,), []),
    ],
)
def test_drafts_are_verified_as_far_as_they_pay(
    confidences: list[tuple[float, ...]], step_costs: tuple[float, ...], counts: list[int]
) -> None:
    assert policy.num_worthwhile_drafts(confidences, step_costs) == counts


def test_what_is_looked_at_never_depends_on_later_confidences() -> None:
    """The leak of the specification's counterexample: a draft may not be taken for the sake of one after it."""
    costs = (1.0, 1.5, 1.6)
    for later in (0.0, 0.5, 1.0):
        (count,) = policy.num_worthwhile_drafts([(0.4, later)], costs)
        assert count == 0  # 1.4 / 1.5 is no gain, whatever 1.4 + 0.4 * later over 1.6 is
