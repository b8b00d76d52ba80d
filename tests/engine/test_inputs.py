"""StepInputs of a plan: what a step's kernels are told of its sequences"""

import torch

from minnow.core.request import SamplingParams
from minnow.core.step import RowBlocks, RowStart, RowStep, StepPlan
from minnow.engine import inputs
from minnow.engine.rows import RowTable
from minnow.kernels import registry


def test_what_was_generated_stays_so_when_a_sequence_starts_anew() -> None:
    """After a preemption the tokens that it had drawn are computed again, but not as a prompt."""
    device = torch.device("cpu")
    table = RowTable(4, 8, device)
    starts = tuple(
        RowStart(
            row=row,
            request_id=str(row),
            token_ids=tuple(range(num_tokens)),
            num_prompt_tokens=num_prompt,
            num_computed_tokens=0,
            sampling=SamplingParams(),
            stop_token_ids=(),
            seed=0,
        )
        for row, num_tokens, num_prompt in ((2, 9, 9), (0, 12, 5))
    )
    plan = StepPlan(
        step=1,
        starts=starts,
        blocks=(RowBlocks(row=2, block_ids=(1,)), RowBlocks(row=0, block_ids=(2,))),
        rows=(RowStep(row=2, start=0, num_tokens=9), RowStep(row=0, start=0, num_tokens=12)),
    )
    table.apply(plan)
    built = inputs.build(plan, table, registry.bind(registry.target_of(device)), 16)
    assert built.prompt_end is not None and built.prompt_end.tolist() == [9, 5]
    assert built.query_start.tolist() == [0, 9, 21]
