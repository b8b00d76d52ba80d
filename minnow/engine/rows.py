"""the request table on the device: one fixed row a sequence"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minnow.core.request import SamplingParams
from minnow.core.step import RowResult, StepPlan

_ARRAY_CODES = {torch.int32: "i", torch.int64: "q", torch.float32: "f", torch.float64: "d"}
_CPU = torch.device("cpu")


def send(values: Sequence[float], dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """A short list as a tensor [N]; by way of an array, which takes a quarter of the time of `torch.tensor`."""
    if not values:
        return torch.empty(0, dtype=dtype, device=device)
    found = torch.frombuffer(array(_ARRAY_CODES[dtype], values), dtype=dtype)
    return found if device == _CPU else found.to(device)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens that the next step of a row verifies.

    Attributes:
        ids: of the target's vocabulary.
        q: f32 [P W], the very distributions over the draft vocabulary that they were drawn from; None: each was the
            only one possible.
    """

    ids: list[int]
    q: Tensor | None


@dataclass(slots=True)
class Row:
    """What the muscle remembers of a sequence between steps.

    Attributes:
        token_ids: prompt and output so far; grows with each sampled token.
        block_ids: the entries of the row's block table that are set.
        bias: f32 [V], what the request adds to every row of logits, minus infinity where a token may not be drawn; made
            by the sampler when it is first needed.
        drafts: made after its last step, or None.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...]
    seed: int
    adapter_slot: int = 0
    block_ids: list[int] = field(default_factory=list)
    bias: Tensor | None = None
    drafts: Drafts | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens


class RowTable:
    """Fixed rows: block tables and last tokens on the device, the rest on the host."""

    def __init__(self, num_rows: int, max_blocks: int, device: torch.device) -> None:
        self.rows: dict[int, Row] = {}
        self.block_table = torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device)
        self._last_ids = array("i", bytes(4 * num_rows))
        last = torch.frombuffer(self._last_ids, dtype=torch.int32)
        self.last_token = last.to(device)

    def apply(self, plan: StepPlan) -> None:
        """Stops, starts, then new blocks: the rows as the plan's steps need them."""
        for row in plan.stops:
            del self.rows[row]
        for start in plan.starts:
            assert start.row not in self.rows, f"row {start.row} starts twice"
            self.rows[start.row] = Row(
                list(start.token_ids),
                start.num_prompt_tokens,
                start.sampling,
                start.stop_token_ids,
                start.seed,
                start.adapter_slot,
            )
            self._set_last(start.row, start.token_ids[-1])
        for added in plan.blocks:
            row_state = self.rows[added.row]
            first, last = len(row_state.block_ids), len(row_state.block_ids) + len(added.block_ids)
            self.block_table[added.row, first:last] = send(added.block_ids, torch.int32)
            row_state.block_ids += added.block_ids

    def append(self, result: RowResult) -> None:
        """Add the tokens that a row drew."""
        if result.token_ids:
            self.rows[result.row].token_ids.extend(result.token_ids)
            self._set_last(result.row, result.token_ids[-1])

    def _set_last(self, row: int, token_id: int) -> None:
        if self.last_token.device == _CPU:
            self._last_ids[row] = token_id  # the same memory, without an operation of torch's
        else:
            self.last_token[row] = token_id
