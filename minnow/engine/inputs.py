"""plan + rows -> StepInputs for the model"""

import torch

from minnow.core.step import RowStep, StepPlan
from minnow.engine.rows import RowTable, send
from minnow.kernels.registry import Kernels
from minnow.model.step import StepInputs

_FROM_ROW = -1  # stands for the token that the row drew last, which only the device knows for sure


def build(
    plan: StepPlan, table: RowTable, kernels: Kernels, block_size: int, tap_layers: tuple[int, ...] = ()
) -> StepInputs:
    """Gather the step's tokens; the rows must have been brought up to the plan.

    Only as many columns of the block tables as the longest sequence needs are handed on. Logits come first of the
    rows that draw tokens (of each its last token and its drafts), then of the prompt tokens that score the next one,
    both in the plan's order.
    """
    ids: list[int] = []
    query_start = [0]
    drawing: list[int] = []
    scoring: list[int] = []
    for step in plan.rows:
        known = table.rows[step.row].token_ids
        last = step.start + step.num_tokens
        drafts = _drafts(table, step)
        is_decode = step.num_tokens == 1 + len(drafts) and step.start + 1 == len(known)
        scoring += range(len(ids), len(ids) + step.num_prompt_logprobs)
        ids += [_FROM_ROW, *drafts] if is_decode else known[step.start : last]
        query_start.append(len(ids))
        if step.is_sampling:
            drawing += range(len(ids) - 1 - len(drafts), len(ids))
    device = table.block_table.device
    max_blocks = max(-(-(step.start + step.num_tokens) // block_size) for step in plan.rows)

    def whole(values: list[int]) -> torch.Tensor:
        return send(values, torch.int32, device)

    filled, positions, slots, block_table = kernels.step_inputs(
        whole(ids),
        whole([step.row for step in plan.rows]),
        whole([step.start for step in plan.rows]),
        starts := whole(query_start),
        table.last_token,
        table.block_table[:, :max_blocks],
        block_size,
    )
    slots_row = [table.rows[step.row].adapter_slot for step in plan.rows]
    prompt_end = [table.rows[step.row].num_prompt_tokens for step in plan.rows]
    return StepInputs(
        ids=filled,
        positions=positions,
        slots=slots,
        query_start=starts,
        block_table=block_table,
        logits_rows=send(drawing + scoring, torch.int64, device),
        prompt_end=whole(prompt_end) if device.type == "cpu" else None,  # kernels for a GPU have one way
        tap_layers=tap_layers,
        adapter_slots=whole(slots_row) if any(slots_row) else None,
    )


def _drafts(table: RowTable, step: RowStep) -> list[int]:
    """The drafts that a row verifies in this step."""
    if not step.num_drafts:
        return []
    drafts = table.rows[step.row].drafts
    assert drafts is not None and step.num_drafts <= len(drafts.ids), f"row {step.row} has no such drafts"
    return drafts.ids[: step.num_drafts]
