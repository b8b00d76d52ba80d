"""what steps of a few tokens cost on this machine, measured by running them"""

import statistics
import time
from collections.abc import Callable

from minnow.core.request import SamplingParams
from minnow.core.step import RowBlocks, RowStart, RowStep, StepPlan
from minnow.engine.pace import StepCosts
from minnow.engine.rows import Drafts
from minnow.engine.runner import Runner

_SIZES = (1, 2, 3, 4, 6, 8, 16, 32)
_REPEATS = 3


def measure(
    runner: Runner,
    num_drafts: int,
    *,
    max_num_seqs: int,
    num_blocks: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """Seconds of steps of 1, 2, ... tokens: with drafts that are verified and the next ones made, and without.

    Steps of made-up greedy sequences run as all steps do, before any request has come. Those between two sizes that
    are measured lie on a line.

    Args:
        num_drafts: at once; each sequence has as many, but for the last.
        num_blocks: that are free; each sequence takes one.
    """
    most = min(max_num_seqs, num_blocks)
    return StepCosts(
        drafting=_curve(runner, num_drafts, most * (1 + num_drafts), clock), plain=_curve(runner, 0, most, clock)
    )


def _curve(runner: Runner, num_drafts: int, most: int, clock: Callable[[], float]) -> tuple[float, ...]:
    last = min(most, _SIZES[-1])
    sizes = [*(size for size in _SIZES if size < last), last]
    measured = [_one_size(runner, size, num_drafts, clock) for size in sizes]
    found: list[float] = []
    for place, size in enumerate(sizes):
        here = min(measured[place:])  # a step that took longer than one of more tokens was disturbed
        before, steps = found[-1] if found else here, size - len(found)
        found += [before + (here - before) * i / steps for i in range(1, steps + 1)]
    return tuple(found)


def _one_size(runner: Runner, num_tokens: int, num_drafts: int, clock: Callable[[], float]) -> float:
    counts = [min(1 + num_drafts, num_tokens - start) for start in range(0, num_tokens, 1 + num_drafts)]
    rows = range(len(counts))
    starts = tuple(
        RowStart(
            row=row, request_id=str(row), token_ids=(0,), num_prompt_tokens=1, num_computed_tokens=0,
            sampling=SamplingParams(temperature=0.0), stop_token_ids=(), seed=0,
        )
        for row in rows
    )  # fmt: skip
    taken = []
    for _ in range(1 + _REPEATS):
        blocks = tuple(RowBlocks(row=row, block_ids=(1 + row,)) for row in rows)  # nobody reads what they write there
        runner.launch(StepPlan(step=0, starts=starts, blocks=blocks))
        for row, count in enumerate(counts):
            runner.expect(row, Drafts([0] * (count - 1), None))
        steps = tuple(
            RowStep(row=row, start=0, num_tokens=count, num_drafts=count - 1, num_lookahead_slots=num_drafts)
            for row, count in enumerate(counts)
        )
        start_s = clock()
        runner.launch(StepPlan(step=0, rows=steps)).result()
        taken.append(clock() - start_s)
        runner.launch(StepPlan(step=0, stops=tuple(rows)))
    return statistics.median(taken[1:])  # the first one finds nothing in the caches
