"""many alike steps at once leave the same as one by one"""

from random import Random
from typing import Any

import pytest

from minnow.cache.blocks import BlockPool
from minnow.config.scheduler import SchedulerConfig
from minnow.core.request import Request, SamplingParams
from minnow.core.step import RowResult, StepPlan, StepResult, TokenOutput
from minnow.engine.scheduler import Scheduler
from tests.fakes import CONFIG, make_request, make_scheduler, step

SIZE = 4
WATCHED = ("state", "token_ids", "block_ids", "row", "num_computed_tokens", "num_published_blocks", "has_answered",
           "num_in_flight", "num_pending_tokens")  # fmt: skip


class Machine:
    """A scheduler whose every request yields one id of its own, over and over."""

    def __init__(self, num_blocks: int, config: SchedulerConfig, *, is_caching: bool) -> None:
        self.blocks = BlockPool(num_blocks, SIZE)
        self.scheduler = Scheduler(
            config,
            self.blocks,
            max_model_len=4096,
            eos_token_ids=(),
            seed=0,
            enable_prefix_caching=is_caching,
            clock=lambda: 0.0,
        )
        self.request_by_row: dict[int, str] = {}

    def step(self) -> list[TokenOutput] | None:
        """One step, or None where there is nothing to do."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        outputs = self.scheduler.commit(plan, self.answer(plan))
        self.scheduler.check()
        return outputs

    def answer(self, plan: StepPlan) -> StepResult:
        """What the device says."""
        self.request_by_row |= {start.row: start.request_id for start in plan.starts}
        rows = [
            RowResult(row=row.row, token_ids=(token_of(self.request_by_row[row.row]),) if row.is_sampling else ())
            for row in plan.rows
        ]
        return StepResult(step=plan.step, rows=tuple(rows))

    def state(self) -> dict[str, Any]:
        """Everything that decides what happens later."""
        scheduler, pool = self.scheduler, self.blocks
        sequences = [[getattr(s, name) for name in WATCHED] + [s.request.request_id] for s in scheduler._by_id.values()]
        return {
            "sequences": sequences,
            "free": list(pool._free),
            "hashes": pool._hash_by_block,
            "users": pool._num_users,
            "evictions": pool.num_evictions,
            "stats": scheduler.stats(),
            "step": scheduler._step,
            "rows": scheduler._free_rows,
        }


def token_of(request_id: str) -> int:
    """Even ones share what they say, so that their prefixes meet."""
    return 900 + int(request_id) % 2 * int(request_id)


def request(rng: Random, number: int) -> Request:
    """Prompts of a few kinds, so that prefixes are shared."""
    kind, length = rng.randrange(3), rng.randint(1, 30)
    sampling = SamplingParams(max_tokens=rng.randint(1, 60), ignore_eos=True)
    return Request(request_id=str(number), token_ids=(kind,) * length, sampling=sampling)


@pytest.mark.parametrize("seed", range(30))
def test_settled_together_or_one_by_one(seed: int) -> None:
    rng = Random(seed)
    num_blocks = rng.choice((30, 60, 200))
    config = SchedulerConfig(max_num_batched_tokens=rng.choice((6, 40)), max_num_seqs=rng.choice((1, 3, 6)))
    is_caching = rng.random() < 0.7
    one, many = (Machine(num_blocks, config, is_caching=is_caching) for _ in range(2))
    num_repeated = added = 0
    while added < 25 or not one.scheduler.is_idle:
        while added < 25 and rng.random() < 0.3:
            new = request(rng, added)
            one.scheduler.add(new)
            many.scheduler.add(new)
            added += 1
        count = many.scheduler.num_repeatable_steps()
        if count:
            count = rng.randint(1, count)
            ids = [token_of(name) for name, _ in many.scheduler.progress()]
            many.scheduler.repeat(count, ids)
            many.scheduler.check()
            for _ in range(count):
                outputs = one.step()
                assert outputs is not None and all(len(o.token_ids) == 1 and not o.finish_reason for o in outputs)
                assert len(outputs) == len(ids)
            num_repeated += count
        else:
            assert one.step() == many.step()
        assert one.state() == many.state()
    assert num_repeated > 0


def test_nothing_is_promised_that_could_turn_out_otherwise() -> None:
    scheduler, runner = make_scheduler(num_speculative_tokens=2)
    scheduler.add(make_request("a", 9, 20))
    while not scheduler.is_idle:
        assert scheduler.num_repeatable_steps() == 0  # drafts: nobody knows how many are kept
        step(scheduler, runner)


@pytest.mark.parametrize(("num_blocks", "count"), [(20, 8), (6, 3)])
def test_as_far_as_the_blocks_go_and_no_end_is_near(num_blocks: int, count: int) -> None:
    machine = Machine(num_blocks, CONFIG, is_caching=False)
    for number, answer in enumerate((12, 10)):
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        machine.scheduler.add(Request(request_id=str(number), token_ids=(1,) * 5, sampling=sampling))
    assert machine.scheduler.num_repeatable_steps() == 0  # nobody runs
    machine.step()
    assert machine.scheduler.num_repeatable_steps() == count  # the second ends in the ninth; blocks may end earlier
    machine.scheduler.repeat(2, [1, 1])
    assert machine.scheduler.progress() == [("0", 7), ("1", 7)]
    machine.scheduler.check()


def test_whoever_may_start_ends_it() -> None:
    machine = Machine(100, SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2), is_caching=False)
    for number in range(3):
        sampling = SamplingParams(max_tokens=20 + number, ignore_eos=True)
        machine.scheduler.add(Request(request_id=str(number), token_ids=(1,) * 3, sampling=sampling))
    machine.step()
    assert machine.scheduler.num_waiting == 1 and machine.scheduler.num_running == 2
    assert machine.scheduler.num_repeatable_steps() == 18  # the third has no row
    machine.scheduler.abort("0")
    assert machine.scheduler.num_repeatable_steps() == 0
