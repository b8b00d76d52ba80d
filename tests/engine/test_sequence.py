"""when a sequence ends, and what it tells"""

import pytest

from minnow.core.request import Request, SamplingParams
from minnow.engine import sequence
from minnow.engine.sequence import Sequence

EOS = 63


def make(sampling: SamplingParams, *, order: int = 0, seed: int = 0, context: int = 12) -> Sequence:
    """A sequence with a prompt of 4 tokens."""
    return sequence.make(
        Request(request_id="a", token_ids=(1, 2, 3, 4), sampling=sampling),
        rank=(0, 0.0, order),
        max_context_tokens=context,
        eos_token_ids=(EOS,),
        engine_seed=seed,
        chain=None,
    )


@pytest.mark.parametrize(
    ("sampling", "token_ids", "expected"),
    [
        (SamplingParams(), (7, 8), (2, None)),
        (SamplingParams(), (7, EOS, 8), (2, "stop")),
        (SamplingParams(ignore_eos=True), (7, EOS, 8), (3, None)),
        (SamplingParams(ignore_eos=True, stop_token_ids=(EOS,)), (7, EOS, 8), (2, "stop")),
        (SamplingParams(stop_token_ids=(8,)), (7, 8, EOS), (2, "stop")),
        (SamplingParams(max_tokens=2), (7, 8, 9), (2, "length")),
        (SamplingParams(max_tokens=2), (7, EOS), (2, "stop")),
        (SamplingParams(), tuple(range(20)), (8, "length")),
        (SamplingParams(min_tokens=2), (EOS, EOS, EOS), (3, "stop")),
        (SamplingParams(min_tokens=2, max_tokens=2), (EOS, EOS), (2, "length")),
    ],
)
def test_end(sampling: SamplingParams, token_ids: tuple[int, ...], expected: tuple[int, str | None]) -> None:
    taken = make(sampling)
    assert taken.take(token_ids) == expected
    assert taken.token_ids == [1, 2, 3, 4, *token_ids[: expected[0]]]


def test_stop_ids_are_named_once() -> None:
    assert make(SamplingParams(stop_token_ids=(5, EOS, 5))).stop_token_ids == (EOS, 5)


def test_nothing_is_computed_for_the_last_token_it_may_have() -> None:
    last = make(SamplingParams(max_tokens=2))
    assert last.num_remaining_tokens == 4
    last.num_computed_tokens = 4
    last.num_pending_tokens = 1
    assert last.num_remaining_tokens == 1
    last.num_computed_tokens = 5
    last.num_pending_tokens = 2
    assert last.num_remaining_tokens == 0
    echo = make(SamplingParams(max_tokens=0))
    assert not echo.is_generating and echo.num_remaining_tokens == 4


def test_seeds_are_given_or_fresh_and_repeatable() -> None:
    assert make(SamplingParams(seed=-5)).seed == -5
    fresh = {make(SamplingParams(), order=order, seed=seed).seed for order in range(50) for seed in range(2)}
    assert len(fresh) == 100
    assert all(-(2**63) <= seed < 2**63 for seed in fresh)
    assert make(SamplingParams(), order=3).seed == make(SamplingParams(), order=3).seed


def test_only_the_first_answer_tells_the_cached_tokens() -> None:
    told = make(SamplingParams())
    told.num_cached_tokens = 3
    answers = [told.answer((7,), (), finish_reason=None, error=None) for _ in range(2)]
    assert [answer.num_cached_tokens for answer in answers] == [3, 0]
    assert told.answer((7,), (), finish_reason="stop", error=None).stop_token_id == 7


def test_every_output_tells_of_the_preemptions_so_far() -> None:
    answering = make(SamplingParams())
    for num_preemptions in (0, 2):
        answering.num_preemptions = num_preemptions
        assert answering.answer((7,), (), finish_reason=None, error=None).num_preemptions == num_preemptions
