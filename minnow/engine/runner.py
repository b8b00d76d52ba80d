"""launch(plan) -> Pending; its result() is the StepResult; one rank"""

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from minnow.cache.pool import Pool
from minnow.core.step import RowResult, RowStep, StepPlan, StepResult
from minnow.engine import inputs, sampler
from minnow.engine.rows import Drafts, Row, RowTable
from minnow.engine.speculative import Speculator
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
        self,
        step_function: StepFunction,
        pool: Pool,
        kernels: Kernels,
        *,
        max_num_seqs: int,
        max_model_len: int,
        speculator: Speculator | None = None,
    ) -> None:
        self._step_function = step_function
        self._pool = pool
        self._kernels = kernels
        self._speculator = speculator
        self._block_size = pool.layout.block_size
        max_blocks = -(-max_model_len // self._block_size)
        self._table = RowTable(max_num_seqs, max_blocks, pool.device)

    def launch(self, plan: StepPlan) -> Pending:
        """Run a step. A plan without rows only settles stops."""
        self._table.apply(plan)
        if not plan.rows:
            return Done(StepResult(step=plan.step, rows=()))
        speculator = self._speculator
        taps = speculator.tap_layers if speculator else ()
        step_inputs = inputs.build(plan, self._table, self._kernels, self._block_size, taps)
        output = self._step_function(step_inputs, self._pool.layers)
        results = self._results(plan, output.logits)
        for result in results:
            self._table.append(result)
        if speculator:
            results = speculator.advance(plan, step_inputs, output.taps, results, self._table)
        return Done(StepResult(step=plan.step, rows=results))

    def expect(self, row: int, drafts: Drafts) -> None:
        """Give a row drafts that nobody has made, to measure what their verification costs."""
        self._table.rows[row].drafts = drafts

    def _results(self, plan: StepPlan, logits: Tensor) -> tuple[RowResult, ...]:
        """Of each row: the tokens drawn, and the prompt tokens scored; logits are in the order of `inputs.build`."""
        own = [(step, self._table.rows[step.row]) for step in plan.rows]
        plain: list[tuple[int, Row]] = []
        drafted: list[tuple[RowStep, Row]] = []
        places: tuple[list[int], list[int]] = ([], [])  # of their logits
        first = 0
        for step, row in own:
            if not step.is_sampling:
                continue
            places[step.num_drafts > 0].extend(range(first, first + 1 + step.num_drafts))
            first += 1 + step.num_drafts
            if step.num_drafts:
                drafted.append((step, row))
            else:
                plain.append((step.row, row))
        drawn = sampler.sample(self._kernels, _rows_of(logits, places[0]), plain) if plain else []
        if drafted:
            assert self._speculator is not None, "drafts without a drafter"
            drawn += self._speculator.verify(_rows_of(logits, places[1]), drafted)
        scoring = [(step, row) for step, row in own if step.num_prompt_logprobs]
        scored = sampler.score_prompts(logits[first:], scoring) if scoring else []
        by_row = {result.row: result for result in drawn}
        for result in scored:
            beside = by_row.get(result.row)
            if beside is None or result.error is not None:
                by_row[result.row] = result
            elif beside.error is None:
                by_row[result.row] = replace(beside, prompt_logprobs=result.prompt_logprobs)
        return tuple(by_row.get(step.row, RowResult(row=step.row)) for step in plan.rows)


def _rows_of(logits: Tensor, places: list[int]) -> Tensor:
    """Some rows; those that lie side by side are a view, no copy."""
    if len(places) == len(logits):
        return logits
    is_run = places[-1] - places[0] == len(places) - 1
    return logits[places[0] : places[-1] + 1] if is_run else logits[places]
