"""test doubles: a clock that is set by hand, and a runner whose model is arithmetic"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise

from minnow.cache.blocks import BlockPool
from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import Request, SamplingParams
from minnow.core.step import RowResult, RowStart, RowStep, StepPlan, StepResult, TokenLogprobs, TokenOutput
from minnow.engine.scheduler import Scheduler

NUM_TOKEN_IDS = 64  # vocabulary of the fake model
NOISE = -1  # what a drafter's context is where it may not be read
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def _mix(before: int, token_id: int) -> int:
    """Keys and values of a position: a function of those before it and of its own token."""
    return ((before ^ (token_id + 1)) * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)


def _draw(state: int, stop_token_ids: Collection[int], is_too_early: bool) -> int:
    token_id = (state >> 33) % NUM_TOKEN_IDS
    while is_too_early and token_id in stop_token_ids:
        token_id = (token_id + 1) % NUM_TOKEN_IDS
    return token_id


def _score(state: int, token_id: int) -> TokenLogprobs:
    """What a position says about the token after it."""
    return TokenLogprobs(logprob=-float(_mix(state, token_id) >> 40), rank=1)


def alone_scores(request: Request) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities that the fake model gives a prompt."""
    state, scores = 0, []
    for token_id, following in pairwise(request.token_ids):
        state = _mix(state, token_id)
        scores.append(_score(state, following))
    return tuple(scores)


def alone(request: Request, *, eos_token_ids: tuple[int, ...], max_total_tokens: int) -> tuple[list[int], str]:
    """Output and finish reason that the fake model gives a request when nothing else exists."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids) | set(() if sampling.ignore_eos else eos_token_ids)
    if sampling.max_tokens is not None:
        max_total_tokens = min(max_total_tokens, len(request.token_ids) + sampling.max_tokens)
    state, output = 0, list[int]()
    for token_id in request.token_ids:
        state = _mix(state, token_id)
    while len(request.token_ids) + len(output) < max_total_tokens:
        output.append(_draw(state, stops, len(output) < sampling.min_tokens))
        if output[-1] in stops:
            return output, "stop"
        state = _mix(state, output[-1])
    return output, "length"


@dataclass
class _Row:
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    request_id: str
    table: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)


@dataclass
class FakePending:
    """A step that has run; whoever asks later gets the same answer."""

    done: StepResult

    def result(self) -> StepResult:
        """The answer."""
        return self.done


class FakeRunner:
    """Runs plans on rows and a pool of numbers, and is strict about both.

    Every position stores a number that depends on all tokens before it, read through the block table, so a wrong
    table, a block reused too early or a wrong prefix hit changes the tokens.

    Its drafts are right more often than not. What a drafter keeps lies beside each position: the same number for what
    was computed and kept, and noise where a draft block or a refused draft was; a draft that would be made over noise
    is a failure.

    Args:
        block_size: tokens in a block.
        failing: requests whose first drawn token is an error instead.
        num_drafts: at once; 0 without a drafter.
    """

    def __init__(self, block_size: int, failing: Collection[str] = (), num_drafts: int = 0) -> None:
        self.num_computed_tokens = 0
        self._block_size = block_size
        self._failing = failing
        self._num_drafts = num_drafts
        self._pool: dict[tuple[int, int], int] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self.rows: dict[int, _Row] = {}

    def launch(self, plan: StepPlan) -> FakePending:
        """Run a step at once."""
        assert len(set(plan.stops)) == len(plan.stops), "a row stops twice"
        for row in plan.stops:
            del self.rows[row]
        for start in plan.starts:
            self._start(start)
        for added in plan.blocks:
            self.rows[added.row].table += added.block_ids
        assert len({step.row for step in plan.rows}) == len(plan.rows), "a row steps twice"
        num_users = Counter(block_id for row in self.rows.values() for block_id in row.table)
        assert 0 not in num_users, "a table holds the null block"
        results = tuple(self._run(step, num_users) for step in plan.rows)
        return FakePending(StepResult(step=plan.step, rows=results))

    def _start(self, start: RowStart) -> None:
        assert start.row not in self.rows, f"row {start.row} starts while it runs"
        self.rows[start.row] = _Row(
            token_ids=list(start.token_ids),
            num_prompt_tokens=start.num_prompt_tokens,
            num_computed_tokens=start.num_computed_tokens,
            sampling=start.sampling,
            stop_token_ids=start.stop_token_ids,
            request_id=start.request_id,
        )

    def _run(self, step: RowStep, num_users: Counter[int]) -> RowResult:
        row = self.rows[step.row]
        end = step.start + step.num_tokens
        assert step.start == row.num_computed_tokens, "a step leaves tokens out or computes them twice"
        assert step.num_drafts <= len(row.drafts), "a step verifies drafts that nobody made"
        tokens = row.token_ids + row.drafts[: step.num_drafts]
        assert 0 < step.num_tokens <= len(tokens) - step.start, "a step has no tokens or unknown ones"
        assert end + step.num_lookahead_slots <= len(row.table) * self._block_size, "the block table is too short"
        state = self._read(row, step.start - 1) if step.start else 0
        assert step.start + step.num_prompt_logprobs < row.num_prompt_tokens or not step.num_prompt_logprobs
        scores: list[TokenLogprobs] = []
        states: list[int] = []
        for position in range(step.start, end):
            state = _mix(state, tokens[position])
            block_id = row.table[position // self._block_size]
            assert num_users[block_id] == 1, f"block {block_id} is written while others read it"
            self._pool[block_id, position % self._block_size] = state
            self._contexts[block_id, position % self._block_size] = state
            states.append(state)
            if len(scores) < step.num_prompt_logprobs:
                scores.append(_score(state, row.token_ids[position + 1]))
        row.num_computed_tokens = end - step.num_drafts
        self.num_computed_tokens += step.num_tokens
        if not step.is_sampling:
            return RowResult(row=step.row, prompt_logprobs=tuple(scores))
        assert end == len(tokens), "a token is drawn before all are computed"
        if row.request_id in self._failing:
            row.token_ids.append(0)  # a step launched before this one is known to have failed goes on with something
            return RowResult(row=step.row, error="logits are not finite")
        drawn: list[int] = []
        for state in states[-1 - step.num_drafts :]:
            num_output_tokens = len(row.token_ids) - row.num_prompt_tokens
            drawn.append(_draw(state, row.stop_token_ids, num_output_tokens < row.sampling.min_tokens))
            row.token_ids.append(drawn[-1])
            if len(row.token_ids) <= len(tokens) and row.token_ids[-1] != tokens[len(row.token_ids) - 1]:
                break
        row.num_computed_tokens = len(row.token_ids) - 1
        for position in range(row.num_computed_tokens, end):  # of refused drafts
            self._contexts[row.table[position // self._block_size], position % self._block_size] = NOISE
        num_drafts = self._draft(row, states[len(drawn) - 2 - step.num_drafts], step.num_lookahead_slots)
        return RowResult(row=step.row, token_ids=tuple(drawn), prompt_logprobs=tuple(scores), num_drafts=num_drafts)

    def _draft(self, row: _Row, state: int, num_slots: int) -> int:
        """Make drafts after the last token; a third of them are wrong."""
        last = len(row.token_ids) - 1
        for position in range(last):
            place = row.table[position // self._block_size], position % self._block_size
            assert self._contexts[place] == self._pool[place], f"the drafter's context is not there at {position}"
        row.drafts = []
        for _ in range(min(num_slots, self._num_drafts)):
            state = _mix(state, (row.token_ids + row.drafts)[-1])
            is_wrong = (state >> 20) % 3 == 0
            row.drafts.append(((state >> 33) + is_wrong) % NUM_TOKEN_IDS)
        for position in range(last, last + len(row.drafts)):
            place = row.table[position // self._block_size], position % self._block_size
            self._contexts[place] = NOISE
        return len(row.drafts)

    def _read(self, row: _Row, position: int) -> int:
        return self._pool[row.table[position // self._block_size], position % self._block_size]


class Collector:
    """Gathers the outputs of each request and checks their order."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.ends: dict[str, TokenOutput] = {}
        self.num_cached_tokens: dict[str, int] = {}
        self.num_preemptions: dict[str, int] = {}
        self.scores: dict[str, tuple[TokenLogprobs, ...]] = {}  # of the prompt

    def take(self, outputs: list[TokenOutput]) -> None:
        """Add the outputs of a step."""
        for output in outputs:
            assert output.request_id not in self.ends, f"{output.request_id} answers after its end"
            assert output.token_ids or output.finish_reason, "an output says nothing"
            is_first = output.request_id not in self.token_ids
            assert is_first or not (output.prompt_logprobs or output.queued_s), "a later output tells of the prompt"
            assert output.num_preemptions >= self.num_preemptions.get(output.request_id, 0), "preemptions got fewer"
            self.num_preemptions[output.request_id] = output.num_preemptions
            self.scores.setdefault(output.request_id, output.prompt_logprobs)
            self.num_cached_tokens.setdefault(output.request_id, output.num_cached_tokens)
            self.token_ids.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output


def step(scheduler: Scheduler, runner: FakeRunner) -> tuple[StepPlan, list[TokenOutput]]:
    """One turn of the plain loop, checked before and after; there must be something to do."""
    plan = scheduler.plan()
    assert plan is not None, "the scheduler has requests and plans nothing"
    scheduler.check()
    outputs = scheduler.commit(plan, runner.launch(plan).result())
    scheduler.check()
    return plan, outputs


def run_until_idle(scheduler: Scheduler, runner: FakeRunner, collector: Collector, max_steps: int = 10_000) -> int:
    """The plain loop to its end; returns the number of steps."""
    for num_steps in range(max_steps):
        if scheduler.is_idle:
            return num_steps
        collector.take(step(scheduler, runner)[1])
    raise AssertionError(f"not idle after {max_steps} steps")


def make_scheduler(
    config: SchedulerConfig = CONFIG,
    *,
    num_blocks: int = 33,
    block_size: int = 4,
    max_model_len: int = 64,
    is_caching: bool = True,
    eos: int = 0,
    num_speculative_tokens: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Scheduler, FakeRunner]:
    """A scheduler and its runner."""
    scheduler = Scheduler(
        config,
        BlockPool(num_blocks, block_size),
        max_model_len=max_model_len,
        eos_token_ids=(eos,),
        seed=0,
        enable_prefix_caching=is_caching,
        num_speculative_tokens=num_speculative_tokens,
        clock=clock,
    )
    return scheduler, FakeRunner(block_size, num_drafts=num_speculative_tokens)


def make_request(
    name: str, num_tokens: int, max_tokens: int | None = 4, *, first: int = 1, **changes: object
) -> Request:
    """A request whose tokens count up from `first`; it runs past end-of-sequence tokens."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    made = Request(request_id=name, token_ids=tuple(first + i % 50 for i in range(num_tokens)), sampling=sampling)
    return replace(made, **changes)  # type: ignore[arg-type]


def tokens_by_row(plan: StepPlan) -> dict[int, int]:
    """Tokens of each row of a step."""
    return {row.row: row.num_tokens for row in plan.rows}


def expect_alone(collector: Collector, *requests: Request, max_model_len: int = 64) -> None:
    """Each request got what it gets with nobody beside it."""
    for each in requests:
        token_ids, reason = alone(each, eos_token_ids=(0,), max_total_tokens=max_model_len)
        assert collector.token_ids[each.request_id] == token_ids
        assert collector.ends[each.request_id].finish_reason == reason
