"""launch(plan) -> Pending; its result() is the StepResult; one rank"""

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from minnow.cache.pool import Pool
from minnow.core.step import RowResult, StepPlan, StepResult
from minnow.engine import inputs, sampler
from minnow.engine.rows import RowTable
from minnow.kernels.registry import Kernels
from minnow.model.step import StepFunction


class Pending(Protocol):
    """A step that was launched."""

    def result(self) -> StepResult:
        """Wait for the step and give its result."""
        ...


class Done:
    """A step that is finished: on a CPU, a launch is the step itself."""

    def __init__(self, value: StepResult) -> None:
        self._value = value

    def result(self) -> StepResult:
        """The result."""
        return self._value


class Runner:
    """Runs plans on one device; there is no other way to run the model, warm-up included."""

    def __init__(
        self, step_function: StepFunction, pool: Pool, kernels: Kernels, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self._step_function = step_function
        self._pool = pool
        self._kernels = kernels
        self._block_size = pool.layout.block_size
        max_blocks = -(-max_model_len // self._block_size)
        self._table = RowTable(max_num_seqs, max_blocks, pool.device)

    def launch(self, plan: StepPlan) -> Pending:
        """Run a step. A plan without rows only settles stops."""
        self._table.apply(plan)
        if not plan.rows:
            return Done(StepResult(step=plan.step, rows=()))
        step_inputs = inputs.build(plan, self._table, self._kernels, self._block_size)
        output = self._step_function(step_inputs, self._pool.layers)
        results = self._results(plan, output.logits)
        for result in results:
            self._table.append(result)
        return Done(StepResult(step=plan.step, rows=results))

    def _results(self, plan: StepPlan, logits: Tensor) -> tuple[RowResult, ...]:
        """Of each row: the token drawn, and the prompt tokens scored; logits are in the order of `inputs.build`."""
        drawing = [(step.row, self._table.rows[step.row]) for step in plan.rows if step.is_sampling]
        scoring = [(step, self._table.rows[step.row]) for step in plan.rows if step.num_prompt_logprobs]
        drawn = sampler.sample(self._kernels, logits[: len(drawing)], drawing) if drawing else []
        scored = sampler.score_prompts(logits[len(drawing) :], scoring) if scoring else []
        by_row = {result.row: result for result in drawn}
        for result in scored:
            beside = by_row.get(result.row)
            if beside is None or result.error is not None:
                by_row[result.row] = result
            elif beside.error is None:
                by_row[result.row] = replace(beside, prompt_logprobs=result.prompt_logprobs)
        return tuple(by_row.get(step.row, RowResult(row=step.row)) for step in plan.rows)
