"""random runs of the scheduler, in both loops: equal tokens, nothing lost, nothing starved"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minnow.cache.blocks import BlockPool
from minnow.config.scheduler import SchedulerConfig
from minnow.core.errors import RequestError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import StepPlan
from minnow.engine import policy
from minnow.engine.scheduler import Scheduler
from tests.fakes import Collector, FakePending, FakeRunner, alone, alone_scores

BLOCK_SIZE = 4
EOS = (0, 1, 2)  # of 64 ids, so that about every twentieth token ends


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests, the turns in which they come and are aborted, and the engine that serves them.

    An abort takes effect between plan and commit, so it may hit any state.
    """

    requests: tuple[tuple[int, Request], ...]
    aborts: dict[str, int] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()
    config: SchedulerConfig
    num_blocks: int
    max_model_len: int
    is_caching: bool
    num_ahead: int  # plans made before the oldest is committed: 0 is the plain loop, 1 the overlapped one
    num_drafts: int = 0

    @property
    def max_context_tokens(self) -> int:
        """Where a request without max_tokens ends."""
        return min(self.max_model_len, (self.num_blocks - 1) * BLOCK_SIZE + 1)

    @property
    def max_turns(self) -> int:
        """Far more turns than any order of these requests needs, and few enough to notice starvation."""
        last = max(turn for turn, _ in self.requests)
        return (
            last
            + 20
            + 2
            * len(self.requests)
            * sum(
                len(request.token_ids) + (request.sampling.max_tokens or self.max_context_tokens)
                for _, request in self.requests
            )
        )


class Drive:
    """Serves a workload, checking every turn."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.collector = Collector()
        self.refused: set[str] = set()
        self.runner = FakeRunner(BLOCK_SIZE, workload.failing, workload.num_drafts)
        self.scheduler = Scheduler(
            workload.config,
            BlockPool(workload.num_blocks, BLOCK_SIZE),
            max_model_len=workload.max_model_len,
            eos_token_ids=EOS,
            seed=0,
            enable_prefix_caching=workload.is_caching,
            num_speculative_tokens=workload.num_drafts,
        )
        self._arriving = sorted(workload.requests, key=lambda pair: pair[0])
        self._running: list[tuple[StepPlan, FakePending]] = []

    def run(self) -> None:
        """All requests to their ends."""
        for turn in range(self.workload.max_turns):
            while self._arriving and self._arriving[0][0] <= turn:
                self._add(self._arriving.pop(0)[1])
            if not self._arriving and self.scheduler.is_idle:
                return
            self._turn(turn)
        raise AssertionError(f"requests are still waiting after {self.workload.max_turns} turns")

    def _turn(self, turn: int) -> None:
        is_waiting = not self.scheduler.is_idle and not self._running
        num_preemptions = self.scheduler.stats().num_preemptions
        plan = self.scheduler.plan()
        self.scheduler.check()
        assert plan is not None or not is_waiting, "there is work, and nothing is planned"
        if plan is not None:
            self._check_plan(plan, has_preempted=self.scheduler.stats().num_preemptions > num_preemptions)
            self._running.append((plan, self.runner.launch(plan)))
        for name, moment in self.workload.aborts.items():
            if moment == turn:
                output = self.scheduler.abort(name)
                self.collector.take([output] if output else [])
                self.scheduler.check()
        while len(self._running) > (self.workload.num_ahead if plan is not None else 0):
            due, pending = self._running.pop(0)
            self.collector.take(self.scheduler.commit(due, pending.result()))
            self.scheduler.check()

    def _add(self, request: Request) -> None:
        try:
            self.scheduler.add(request)
        except RequestError:
            self.refused.add(request.request_id)

    def _check_plan(self, plan: StepPlan, *, has_preempted: bool) -> None:
        config = self.workload.config
        assert not (has_preempted and plan.starts), "one was preempted and another admitted in its place"
        assert 0 < sum(row.num_tokens for row in plan.rows) <= config.max_num_batched_tokens
        assert len(plan.rows) <= config.max_num_seqs
        assert sum(row.num_prompt_logprobs for row in plan.rows) <= policy.MAX_PROMPT_LOGPROBS
        assert all(0 <= row.row < config.max_num_seqs and row.num_tokens > 0 for row in plan.rows)
        assert self.scheduler.stats().num_running <= config.max_num_seqs

    def expect_all_answered(self) -> None:
        """Every request got what it gets alone; aborted ones a beginning of it; all memory is back."""
        for _, request in self.workload.requests:
            self._expect(request)
        stats = self.scheduler.stats()
        assert stats.num_free_blocks == stats.num_blocks and not stats.num_running and not stats.num_waiting

    def _expect(self, request: Request) -> None:
        name = request.request_id
        if name in self.refused:
            total = len(request.token_ids) + (1 if request.sampling.max_tokens is None else request.sampling.max_tokens)
            assert total > self.workload.max_context_tokens - 1, f"{name} was refused and would have fitted"
            return
        got, end = self.collector.token_ids.get(name, []), self.collector.ends.get(name)
        expected, reason = alone(request, eos_token_ids=EOS, max_total_tokens=self.workload.max_context_tokens)
        if end is None:  # aborted before it came
            assert name in self.workload.aborts and not got
        elif end.finish_reason == "abort":
            assert name in self.workload.aborts and got == expected[: len(got)]
        elif end.finish_reason == "error":
            assert name in self.workload.failing and not got
        else:
            assert (got, end.finish_reason) == (expected, reason), f"{name} differs from the run alone"
            assert end.stop_token_id == (expected[-1] if reason == "stop" else None)
        if end is not None:
            scores = self.collector.scores[name]
            is_cut = not got and end.finish_reason in ("abort", "error")
            expected_scores = () if request.sampling.prompt_logprobs is None else alone_scores(request)
            assert scores == expected_scores or (is_cut and not scores), f"{name} is scored wrong"
        assert self.collector.num_cached_tokens.get(name, 0) < len(request.token_ids)


@st.composite
def make_requests(draw: st.DrawFn) -> Request:
    """Prompts of a few families that share beginnings, with lengths around whole blocks."""
    num_tokens = BLOCK_SIZE * draw(st.integers(1, 7)) + draw(st.integers(-1, 1))
    num_shared = draw(st.integers(0, num_tokens))
    family, own = draw(st.integers(0, 1)), draw(st.integers(2, 40))
    tokens = [(family * 7 + i) % 50 if i < num_shared else (own * 11 + i) % 60 for i in range(num_tokens)]
    max_tokens = draw(st.none() | st.integers(0, 14))
    return Request(
        request_id="",
        token_ids=tuple(tokens),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, max_tokens or 0)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=tuple(draw(st.lists(st.integers(0, 63), max_size=2))),
            prompt_logprobs=draw(st.sampled_from((None, None, None, 0))),
        ),
        arrival_s=draw(st.integers(0, 3)),
        priority=draw(st.integers(-1, 1)),
        cache_salt=draw(st.sampled_from((None, None, "x"))),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Small pools, narrow budgets, every setting."""
    requests = draw(st.lists(st.tuples(st.integers(0, 25), make_requests()), min_size=1, max_size=9))
    named = tuple((turn, replace(request, request_id=str(i))) for i, (turn, request) in enumerate(requests))
    names = st.sampled_from([request.request_id for _, request in named])
    return Workload(
        requests=named,
        aborts=draw(st.dictionaries(names, st.integers(0, 40), max_size=3)),
        failing=draw(st.frozensets(names, max_size=1)),
        config=SchedulerConfig(
            max_num_batched_tokens=draw(st.integers(1, 24)),
            max_num_seqs=draw(st.integers(1, 5)),
            long_prefill_token_threshold=draw(st.sampled_from((0, 0, 1, 3, 8))),
            scheduler_reserve_full_isl=draw(st.booleans()),
            watermark=draw(st.sampled_from((0.0, 0.0, 0.1, 0.5))),
            scheduling_policy=draw(st.sampled_from(("fcfs", "priority"))),
        ),
        num_blocks=draw(st.integers(5, 20)),
        max_model_len=draw(st.integers(16, 60)),
        is_caching=draw(st.booleans()),
        num_ahead=draw(st.integers(0, 2)),
        num_drafts=draw(st.sampled_from((0, 0, 1, 3, 7))),
    )


@settings(max_examples=300, deadline=None)
@given(workloads())
def test_any_workload(workload: Workload) -> None:
    drive = Drive(workload)
    drive.run()
    drive.expect_all_answered()


def crowd(num_requests: int, *, seed: int, num_ahead: int, num_drafts: int = 0) -> Workload:
    """Many requests with a few shared beginnings on a pool that holds about six of them."""
    chance = random.Random(seed)
    requests = []
    for number in range(num_requests):
        num_tokens = BLOCK_SIZE * chance.randint(1, 8) + chance.randint(-1, 1)
        num_shared = chance.choice((0, 4, 8, 16, num_tokens))
        family = chance.randint(0, 3)
        tokens = tuple((family * 7 + i) % 50 if i < num_shared else chance.randint(0, 63) for i in range(num_tokens))
        sampling = SamplingParams(max_tokens=chance.randint(1, 16))
        request = Request(request_id=str(number), token_ids=tokens, sampling=sampling)
        requests.append((number // 3, request))
    return Workload(
        requests=tuple(requests),
        config=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=12),
        num_blocks=60,
        max_model_len=64,
        is_caching=True,
        num_ahead=num_ahead,
        num_drafts=num_drafts,
    )


@pytest.mark.parametrize(("num_ahead", "num_drafts", "num_blocks"), [(0, 0, 60), (1, 0, 60), (0, 5, 18)])
def test_a_crowd_with_shared_prefixes_on_a_small_pool(num_ahead: int, num_drafts: int, num_blocks: int) -> None:
    """Case C05: 512 requests, preemptions and prefix hits, each answered as if it were alone."""
    workload = replace(crowd(512, seed=5, num_ahead=num_ahead, num_drafts=num_drafts), num_blocks=num_blocks)
    drive = Drive(workload)
    drive.run()
    drive.expect_all_answered()
    stats = drive.scheduler.stats()
    assert not drive.refused and len(drive.collector.ends) == 512
    assert stats.num_preemptions > 20 and stats.prefix_hits_tokens > 500
    assert stats.generation_tokens == sum(map(len, drive.collector.token_ids.values()))
    assert num_drafts == len(stats.accepted_per_position)
    assert stats.accepted_per_position == tuple(sorted(stats.accepted_per_position, reverse=True))
    assert not num_drafts or stats.num_accepted_tokens > stats.num_drafts > 0
    num_prompt_tokens = sum(len(request.token_ids) for _, request in workload.requests)
    assert stats.prompt_tokens == stats.prefix_queries_tokens == num_prompt_tokens  # each counted once, come what may


def test_all_loops_give_the_same_tokens() -> None:
    ends = []
    for num_ahead in (0, 1, 2):
        drive = Drive(crowd(60, seed=9, num_ahead=num_ahead))
        drive.run()
        ends.append((drive.collector.token_ids, {k: v.finish_reason for k, v in drive.collector.ends.items()}))
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_an_abort_in_every_turn_of_a_run(num_ahead: int) -> None:
    """Case C03: whatever the turn, the blocks come back and the others' tokens stay the same."""
    workload = crowd(8, seed=3, num_ahead=num_ahead)
    workload = replace(workload, num_blocks=16, config=replace(workload.config, max_num_batched_tokens=10))
    for turn in range(50):
        for name in ("0", "4", "7"):
            drive = Drive(replace(workload, aborts={name: turn}))
            drive.run()
            drive.expect_all_answered()
