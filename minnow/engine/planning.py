"""Planning: a plan in the making, its budgets, starts, blocks and rows (no torch)"""

from dataclasses import dataclass, field

from minnow.core.step import RowBlocks, RowStart, RowStep, StepPlan
from minnow.engine import policy
from minnow.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Planning:
    """A plan in the making; the scheduler fills it.

    Attributes:
        budget_tokens: that the step may still compute.
        budget_drafts: how many of these may be drafts.
        budget_logprobs: tokens of prompts whose log-probabilities it may still yield.
    """

    budget_tokens: int
    budget_drafts: int = 0
    budget_logprobs: int = policy.MAX_PROMPT_LOGPROBS
    starts: list[RowStart] = field(default_factory=list)
    blocks_by_row: dict[int, list[int]] = field(default_factory=dict)
    step_by_row: dict[int, tuple[Sequence, RowStep]] = field(default_factory=dict)
    has_preempted: bool = False

    def budget_of(self, planned: Sequence, start: int) -> int:
        """Tokens that a sequence may compute from `start` on, as far as the budgets go."""
        is_scored = planned.num_prompt_logprobs(start, 1) > 0
        return min(self.budget_tokens, self.budget_logprobs) if is_scored else self.budget_tokens

    def add(
        self, row: int, planned: Sequence, num_tokens: int, *, num_drafts: int = 0, num_lookahead_slots: int = 0
    ) -> None:
        """Compute the next tokens of a sequence, then its drafts; the slots are for the drafts after them."""
        start = planned.num_computed_tokens
        is_last_chunk = start + num_tokens == planned.num_known_tokens
        step = RowStep(
            row=row,
            start=start,
            num_tokens=num_tokens + num_drafts,
            num_drafts=num_drafts,
            num_lookahead_slots=num_lookahead_slots,
            num_prompt_logprobs=planned.num_prompt_logprobs(start, num_tokens),
            is_sampling=is_last_chunk and planned.is_generating,
        )
        self.step_by_row[row] = (planned, step)
        self.budget_tokens -= step.num_tokens
        self.budget_drafts -= num_drafts
        self.budget_logprobs -= step.num_prompt_logprobs

    def drop(self, row: int) -> None:
        """Forget what was planned for a row whose sequence is preempted."""
        self.has_preempted = True
        self.blocks_by_row.pop(row, None)
        if row in self.step_by_row:
            _, step = self.step_by_row.pop(row)
            self.budget_tokens += step.num_tokens
            self.budget_drafts += step.num_drafts
            self.budget_logprobs += step.num_prompt_logprobs

    def finish(self, step: int, stops: tuple[int, ...]) -> StepPlan:
        """The plan."""
        return StepPlan(
            step=step,
            stops=stops,
            starts=tuple(self.starts),
            blocks=tuple(RowBlocks(row=row, block_ids=tuple(ids)) for row, ids in self.blocks_by_row.items() if ids),
            rows=tuple(row_step for _, row_step in self.step_by_row.values()),
        )
