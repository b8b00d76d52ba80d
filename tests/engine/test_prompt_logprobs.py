"""log-probabilities of prompts against transformers' full pass, whatever the steps they are computed in"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minnow.cache.blocks import BlockPool
from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import Request, SamplingParams
from minnow.core.step import StepPlan, TokenLogprobs
from minnow.engine.engine import Engine
from minnow.engine.runner import Pending
from minnow.engine.scheduler import Scheduler
from tests import tiny
from tests.engine import running
from tests.engine.running import GREEDY
from tests.model import llama_oracle, oracle

BAR = 1e-4  # largest difference of a log-probability, f32; as of a logit in the tests of the model
NUM_TOP = 5
SCORED = replace(GREEDY, max_tokens=3, prompt_logprobs=NUM_TOP)
EXACT: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A checkpoint, and a full pass of it by others: logits f32 [T V] of ids i64 [T]."""

    directory: Path
    forward: Callable[[Tensor], Tensor]

    def engine(self, **settings: Any) -> Engine:
        return running.make(self.directory, **EXACT, **settings)


@pytest.fixture(scope="module", params=["m3", "llama"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    directory: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "m3":
        model = oracle.make(7, sparse=[False, True], moe=[False, True], block_size=16, num_blocks=4)
        oracle.export(model, directory)
        return Setup(directory=directory, forward=lambda ids: oracle.forward(model, ids)[0])
    tiny.write_tiny(directory, family="llama", layers=2, dtype="float32", vocab_size=128)
    reference = llama_oracle.make(directory)
    return Setup(directory=directory, forward=lambda ids: llama_oracle.forward(reference, ids))


def _prompts(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(11)
    return [tuple(torch.randint(0, 128, (n,), generator=generator).tolist()) for n in lengths]


def _check(setup: Setup, prompt: tuple[int, ...], seen: Sequence[TokenLogprobs]) -> None:
    """Against the full pass: the token's own value, its rank, the likeliest and their values."""
    assert len(seen) == len(prompt) - 1
    expected = setup.forward(torch.tensor(prompt)).log_softmax(-1)
    for values, token_id, found in zip(expected, prompt[1:], seen, strict=False):
        assert abs(found.logprob - float(values[token_id])) <= BAR
        above, below = (int((values > found.logprob + margin).sum()) for margin in (BAR, -BAR))
        assert above < found.rank <= below + 1
        best = values.topk(NUM_TOP).values.tolist()
        assert [value for _, value in found.top] == pytest.approx(best, abs=BAR)
        assert all(abs(float(values[i]) - value) <= BAR for i, value in found.top)
        assert len({i for i, _ in found.top}) == NUM_TOP
        assert sum(math.exp(value) for _, value in found.top) <= 1 + 1e-3


LENGTHS = (1, 2, 16, 17, 70, 150)
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "small chunks": {"max_num_batched_tokens": 7},
    "odd chunks": {"max_num_batched_tokens": 61, "long_prefill_token_threshold": 16},
    "preempted": {
        "num_gpu_blocks_override": 12,
        "max_num_batched_tokens": 61,
        "long_prefill_token_threshold": 16,
        "scheduler_reserve_full_isl": False,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_prompts_are_scored_as_by_a_full_pass(setup: Setup, way: str) -> None:
    """Beside ordinary requests, whose tokens stay those of a run alone."""
    prompts, plain = _prompts(LENGTHS), _prompts((40, 9, 33))
    expected = running.run(setup.engine(), plain, GREEDY)
    engine = setup.engine(**WAYS[way])
    for i in range(max(len(prompts), len(plain))):
        if i < len(plain):
            engine.add(Request(request_id=f"plain{i}", token_ids=plain[i], sampling=GREEDY))
        engine.add(Request(request_id=f"scored{i}", token_ids=prompts[i], sampling=SCORED))
    outputs = running.finish(engine)
    num_preemptions = sum(outputs[f"scored{i}"][-1].num_preemptions for i in range(len(prompts)))
    assert (num_preemptions > 0) == (way == "preempted")
    assert [running.tokens(outputs[f"plain{i}"]) for i in range(len(plain))] == expected
    assert not any(output.prompt_logprobs for i in range(len(plain)) for output in outputs[f"plain{i}"])
    for i, prompt in enumerate(prompts):
        first, *later = outputs[f"scored{i}"]
        _check(setup, prompt, first.prompt_logprobs)
        assert not any(output.prompt_logprobs for output in later)
        assert len(running.tokens(outputs[f"scored{i}"])) == 3
    assert running.run(setup.engine(), prompts, replace(SCORED, prompt_logprobs=None)) == [
        running.tokens(outputs[f"scored{i}"]) for i in range(len(prompts))
    ]


def test_max_tokens_zero_scores_and_ends(setup: Setup) -> None:
    engine = setup.engine(max_num_batched_tokens=32)
    prompts = _prompts(LENGTHS)
    for i, prompt in enumerate(prompts):
        sampling = replace(SCORED, max_tokens=0)
        engine.add(Request(request_id=str(i), token_ids=prompt, sampling=sampling))
    outputs = running.finish(engine)
    for i, prompt in enumerate(prompts):
        (only,) = outputs[str(i)]
        assert (only.token_ids, only.finish_reason) == ((), "length")
        _check(setup, prompt, only.prompt_logprobs)
    assert engine.stats().computed_tokens == sum(LENGTHS)


@pytest.mark.parametrize("num_ahead", [1, 2])
def test_plans_made_ahead_score_alike(setup: Setup, num_ahead: int) -> None:
    """The overlapped loop on a cache that is too small: nothing is delivered twice, or lost."""
    runner = setup.engine(num_gpu_blocks_override=12).runner
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=5, scheduler_reserve_full_isl=False),
        BlockPool(12, 16),
        max_model_len=170,
        eos_token_ids=(),
        seed=0,
        enable_prefix_caching=True,
    )
    prompts = _prompts((60, 50, 61, 30, 70))
    for i, prompt in enumerate(prompts):
        sampling = replace(SCORED, max_tokens=20)
        scheduler.add(Request(request_id=str(i), token_ids=prompt, sampling=sampling))
    in_flight: list[tuple[StepPlan, Pending]] = []
    scores: dict[str, list[TokenLogprobs]] = {str(i): [] for i in range(len(prompts))}
    while not scheduler.is_idle:
        if (plan := scheduler.plan()) is not None:
            in_flight.append((plan, runner.launch(plan)))
        while len(in_flight) > (0 if plan is None else num_ahead):
            oldest, pending = in_flight.pop(0)
            for output in scheduler.commit(oldest, pending.result()):
                scores[output.request_id] += output.prompt_logprobs
    assert scheduler.stats().num_preemptions > 0
    for i, prompt in enumerate(prompts):
        _check(setup, prompt, scores[str(i)])


# C06
@pytest.mark.parametrize("num_tokens", [127, 128, 129, 256, 2_176])
def test_a_prompt_that_is_cached_whole_is_scored_again(tmp_path: Path, num_tokens: int) -> None:
    tiny.write_tiny(tmp_path, family="m3", layers=2, dtype="float32")
    engine = running.make(tmp_path, **EXACT)
    (prompt,) = _prompts((num_tokens,))
    seen = []
    for i in range(3):
        engine.add(Request(request_id=str(i), token_ids=prompt, sampling=SCORED))
        outputs = running.finish(engine)[str(i)]
        assert outputs[0].num_cached_tokens == 0
        seen.append((outputs[0].prompt_logprobs, running.tokens(outputs)))
    assert len(seen[0][0]) == num_tokens - 1
    assert seen[0] == seen[1] == seen[2]
    engine.add(Request(request_id="plain", token_ids=prompt, sampling=replace(SCORED, prompt_logprobs=None)))
    outputs = running.finish(engine)["plain"]
    assert outputs[0].num_cached_tokens == (num_tokens - 1) // 16 * 16  # what scored prompts leave behind is shared
    assert running.tokens(outputs) == seen[0][1]


# D08
@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 1},
        {"allowed_token_ids": (3, 4)},
        {"logit_bias": ((5, -100.0), (6, -100.0))},
        {"temperature": 0.9, "repetition_penalty": 1.8, "seed": 3},
    ],
)
def test_masks_do_not_touch_what_is_told(setup: Setup, changes: dict[str, Any]) -> None:
    """The raw distribution, all values finite; the drawn token's own value goes with it."""
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 2, **changes}, logprobs=5, prompt_logprobs=5)
    (prompt,) = _prompts((20,))
    engine = setup.engine()
    engine.add(Request(request_id="a", token_ids=prompt, sampling=sampling))
    outputs = running.finish(engine)["a"]
    _check(setup, prompt, outputs[0].prompt_logprobs)
    drawn = running.tokens(outputs)
    found = [found for output in outputs for found in output.logprobs]
    expected = setup.forward(torch.tensor([*prompt, *drawn])).log_softmax(-1)[len(prompt) - 1 : -1]
    for token_id, one, values in zip(drawn, found, expected, strict=True):
        assert abs(one.logprob - float(values[token_id])) <= BAR
        assert all(math.isfinite(value) for _, value in one.top)
