"""masks, penalties, random numbers, log-probabilities, rows that fail alone"""

import itertools
import math
from typing import Any

import pytest
import torch

from minnow.core.request import SamplingParams
from minnow.core.step import RowStep
from minnow.engine.rows import Row
from minnow.engine.sampler import random_uniform, sample, score_prompts
from tests.drive import make_kernels

KERNELS = make_kernels()


def _row(sampling: SamplingParams, prompt: list[int], output: list[int], seed: int = 0) -> Row:
    return Row(prompt + output, len(prompt), sampling, (4,), seed)


def _draw(logits: list[float], row: Row) -> int:
    (result,) = sample(KERNELS, torch.tensor([logits]), [(0, row)])
    return result.token_ids[0]


GREEDY: dict[str, Any] = {"temperature": 0.0}
FLAT = [1.0, 0.9, 0.8, 0.7, 2.0]


def test_the_largest_logit_wins_at_temperature_zero() -> None:
    assert _draw(FLAT, _row(SamplingParams(**GREEDY), [1], [])) == 4


def test_allowed_ids_bias_and_minimum() -> None:
    assert _draw(FLAT, _row(SamplingParams(**GREEDY, allowed_token_ids=(2, 3)), [1], [])) == 2
    assert _draw(FLAT, _row(SamplingParams(**GREEDY, logit_bias=((3, 5.0),)), [1], [])) == 3
    assert _draw(FLAT, _row(SamplingParams(**GREEDY, min_tokens=2), [1], [7])) == 0  # 4 would end it too early
    assert _draw(FLAT, _row(SamplingParams(**GREEDY, min_tokens=2), [1], [7, 7])) == 4


def test_penalties() -> None:
    repeated = SamplingParams(**GREEDY, repetition_penalty=3.0)
    assert _draw(FLAT, _row(repeated, [4], [])) == 0  # the prompt counts
    assert _draw([-1.0, -2.0, -9.0, -9.0, -9.0], _row(repeated, [0], [])) == 1  # negative logits are multiplied
    often = SamplingParams(**GREEDY, frequency_penalty=0.6)
    assert _draw(FLAT, _row(often, [4, 4, 4], [])) == 4  # the prompt does not count
    assert _draw(FLAT, _row(often, [], [4])) == 4
    assert _draw(FLAT, _row(often, [], [4, 4])) == 0
    assert _draw(FLAT, _row(SamplingParams(**GREEDY, presence_penalty=1.1), [], [4, 4])) == 0


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    assert random_uniform(5, 9) == random_uniform(5, 9)
    arguments = itertools.product((0, -1, 2**63 - 1), (0, 1), (0, 1))
    seen = [random_uniform(*each) for each in arguments]
    assert len(set(seen)) == len(seen)
    many = torch.tensor([random_uniform(seed, position) for seed in range(100) for position in range(100)])
    assert float(many.min()) >= 0.0 and float(many.max()) < 1.0
    counts = torch.histc(many, 20, 0.0, 1.0)
    assert float(((counts - 500) ** 2 / 500).sum()) < 43.8  # chi-square, 19 degrees of freedom, 0.1 %
    by_seed, by_position = many.view(100, 100).mean(0), many.view(100, 100).mean(1)
    assert float((by_seed - 0.5).abs().max()) < 0.13 and float((by_position - 0.5).abs().max()) < 0.13


PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.5, "logit_bias": ((7, -100.0), (8, 3.0))},
)


@pytest.mark.parametrize("settings", PENALTIES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(poison: float, settings: dict[str, Any]) -> None:
    rows = [(i, _row(SamplingParams(temperature=0.8, **settings), [1], [], seed=i)) for i in range(3)]
    logits = torch.randn(3, 50)
    clean = sample(KERNELS, logits, rows)
    logits[1, 7] = poison
    seen = sample(KERNELS, logits, rows)
    assert (seen[0], seen[2]) == (clean[0], clean[2])
    assert seen[1].token_ids == () and seen[1].error == "the model's logits are not finite"


@pytest.mark.parametrize("settings", PENALTIES)
def test_minus_infinity_is_a_ban_unless_there_is_nothing_else(settings: dict[str, Any]) -> None:
    """With penalties or without: as the operation's reference has it."""
    rows = [(i, _row(SamplingParams(temperature=5.0, logprobs=3, **settings), [1], [], seed=i)) for i in range(3)]
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    clean = sample(KERNELS, logits, rows)
    logits[1, :], logits[2, : clean[2].token_ids[0] + 1] = -math.inf, -math.inf
    seen = sample(KERNELS, logits, rows)
    assert seen[0] == clean[0]
    assert seen[1].token_ids == () and seen[1].error == "the model's logits are not finite"
    assert seen[2].error is None and seen[2].token_ids[0] > clean[2].token_ids[0]
    assert all(math.isfinite(value) for _, value in seen[2].logprobs[0].top)


def test_what_the_model_and_the_request_ban_together_is_no_mistake_of_the_model() -> None:
    row = _row(SamplingParams(allowed_token_ids=(2, 3)), [1], [])
    (result,) = sample(KERNELS, torch.tensor([[1.0, 1.0, -math.inf, -math.inf]]), [(0, row)])
    assert result.error is not None and result.error.startswith("no token may be drawn")


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, -2.0]])
    sampling = SamplingParams(**GREEDY, logprobs=2, logit_bias=((2, 50.0),))
    (result,) = sample(KERNELS, logits, [(0, _row(sampling, [0], []))])
    expected = logits[0].log_softmax(0)
    assert result.token_ids == (2,)
    (own,) = result.logprobs
    assert own.logprob == pytest.approx(float(expected[2])) and own.rank == 2
    assert [i for i, _ in own.top] == [1, 2]
    assert own.top[0][1] == pytest.approx(float(expected[1]))


def test_logprobs_are_finite() -> None:
    logits = torch.full((1, 4), -1e30)
    logits[0, 1] = 1e30
    (result,) = sample(KERNELS, logits, [(0, _row(SamplingParams(**GREEDY, logprobs=4), [0], []))])
    assert all(math.isfinite(value) for _, value in result.logprobs[0].top)


@pytest.mark.parametrize(("poison", "last"), [(math.nan, 8), (math.inf, 8), (-math.inf, 50)])
def test_prompts_are_scored_by_the_tokens_before_them(poison: float, last: int) -> None:
    """More rows than are looked at at once; one sequence that is not finite fails alone."""
    logits = torch.randn(203, 50, generator=torch.Generator().manual_seed(1))
    logits[5, 9], logits[150, 7:last], logits[150, :7] = -math.inf, poison, -math.inf
    row = _row(
        SamplingParams(prompt_logprobs=3, temperature=0.1, repetition_penalty=2.0), [i % 50 for i in range(120)], []
    )
    counts = (1, 100, 99, 3)
    steps = [(RowStep(row=i, start=5, num_tokens=n, num_prompt_logprobs=n), row) for i, n in enumerate(counts)]
    results = score_prompts(logits, steps)
    assert [(len(result.prompt_logprobs), result.error) for result in results] == [
        (1, None), (100, None), (0, "the model's logits are not finite"), (3, None)
    ]  # fmt: skip
    expected = logits.log_softmax(-1)
    for place, result in ((0, results[0]), (1, results[1]), (200, results[3])):
        for i, found in enumerate(result.prompt_logprobs):
            values = expected[place + i]
            assert found.logprob == pytest.approx(float(values[(6 + i) % 50]))
            assert found.rank == int((values > values[(6 + i) % 50]).sum()) + 1
            assert found.top == tuple(zip(*(part.tolist() for part in values.topk(3)[::-1]), strict=True))
