"""prompts whose keys and values come from beyond the pool: the tokens stay what they are"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from minnow.cache.blocks import BlockPool
from minnow.cache.tiers import HostTier
from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import Request
from minnow.core.step import StepPlan
from minnow.engine.scheduler import Scheduler
from tests.fakes import CONFIG, Collector, FakePending, FakeRunner, expect_alone, make_request, run_until_idle

SIZE = 4


@dataclass
class Host:
    """A tier with contents: what the fake device had in a block goes down with it, and comes up before a step."""

    tier: HostTier
    runner: FakeRunner = field(default_factory=lambda: FakeRunner(SIZE))
    block_by_hash: dict[bytes, list[int]] = field(default_factory=dict)
    coming: dict[str, tuple[int, list[list[int]]]] = field(default_factory=dict)

    def keep(self, block_id: int, block_hash: bytes) -> None:
        self.tier.keep(block_id, block_hash)
        self.block_by_hash[block_hash] = [self.runner._pool[block_id, i] for i in range(SIZE)]

    def num_tokens_after(self, request: Request, num_tokens: int, hashes: Sequence[bytes]) -> int:
        return self.tier.num_tokens_after(request, num_tokens, hashes)

    def load(self, request: Request, num_tokens: int, count: int, hashes: Sequence[bytes]) -> None:
        self.tier.load(request, num_tokens, count, hashes)
        first, last = num_tokens // SIZE, (num_tokens + count) // SIZE
        self.coming[request.request_id] = first, [self.block_by_hash[name] for name in hashes[first:last]]

    def launch(self, plan: StepPlan) -> FakePending:
        """Bring what is to come into the blocks that were taken for it, then run the step."""
        table_by_row = {blocks.row: blocks.block_ids for blocks in plan.blocks}
        for start in plan.starts:
            first, blocks = self.coming.pop(start.request_id, (0, []))
            for block_id, states in zip(table_by_row[start.row][first:], blocks, strict=False):
                for i, state in enumerate(states):
                    self.runner._pool[block_id, i] = self.runner._contexts[block_id, i] = state
        return self.runner.launch(plan)


def make(num_blocks: int, host_blocks: int, config: SchedulerConfig = CONFIG) -> tuple[Scheduler, Host]:
    host = Host(HostTier(host_blocks, SIZE))
    scheduler = Scheduler(
        config,
        BlockPool(num_blocks, SIZE, on_eviction=host.keep),
        max_model_len=64,
        eos_token_ids=(0,),
        seed=0,
        enable_prefix_caching=True,
        source=host,
    )
    return scheduler, host


def test_a_prefix_goes_down_and_comes_back() -> None:
    scheduler, host = make(num_blocks=9, host_blocks=20)
    collector = Collector()
    first, other = make_request("a", 21), make_request("b", 25, first=30)
    again = make_request("c", 23)  # as the first, and a bit more
    for each in (first, other, again):
        scheduler.add(each)
        run_until_idle(scheduler, host, collector)
    expect_alone(collector, first, other, again)
    assert host.tier.num_loaded_blocks > 0 or host.tier.num_blocks == 3
    assert collector.num_cached_tokens == {"a": 0, "b": 0, "c": 20}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_and_goes(seed: int) -> None:
    """A small pool, a host of any size, prompts that share prefixes, preemptions: tokens as alone."""
    scheduler, host = make(num_blocks=14, host_blocks=(3, 8, 40)[seed % 3])
    collector = Collector()
    asked = [
        make_request(f"{i}", 6 + (7 * i + seed) % 23, 3 + (5 * i + seed) % 11, first=1 + 20 * (i * (seed + 3) % 3))
        for i in range(30)
    ]
    for i, each in enumerate(asked):
        scheduler.add(each)
        if i % 3 == seed % 3:
            run_until_idle(scheduler, host, collector)
    run_until_idle(scheduler, host, collector)
    expect_alone(collector, *asked)
    assert host.tier.num_loaded_blocks > 0 or host.tier.num_blocks == 3


class Elsewhere:
    """All of a prompt but its last token comes from another engine, once."""

    def __init__(self) -> None:
        self.left = {"a"}

    def num_tokens_after(self, request: Request, num_tokens: int, hashes: Sequence[bytes]) -> int:
        assert not hashes
        return len(request.token_ids) - 1 - num_tokens if request.request_id in self.left else 0

    def load(self, request: Request, num_tokens: int, count: int, hashes: Sequence[bytes]) -> None:
        self.left.remove(request.request_id)


def test_a_prompt_computed_elsewhere_starts_with_its_last_token() -> None:
    scheduler = Scheduler(
        CONFIG,
        BlockPool(20, SIZE),
        max_model_len=64,
        eos_token_ids=(),
        seed=0,
        enable_prefix_caching=False,
        source=Elsewhere(),
    )
    for name in "ab":
        scheduler.add(make_request(name, 15))
    plan = scheduler.plan()
    assert plan is not None
    assert [(row.start, row.num_tokens, row.is_sampling) for row in plan.rows] == [(14, 1, True), (0, 15, True)]
    assert [len(blocks.block_ids) for blocks in plan.blocks] == [4, 4]
    assert plan.starts[0].num_computed_tokens == 14
    scheduler.check()
